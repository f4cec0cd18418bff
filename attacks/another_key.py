"""A forged certificate is signed with the forger's own key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import certificate, edit, forge, keys, release, stopped, verified
from dpmerge.release import Signer


def attack(folder: Path) -> str:
    """With the own key; claiming the trusted one; with a true signature of something else; with none."""
    key, own = keys(folder), keys(folder, "forgers")
    trust = ("--trust", folder / "key.pub")
    out = release(folder, "selection", "released", "leaky=1", "--sign", key)
    other = release(folder, "selection", "other", "safe=1", "--sign", key)
    assert verified(out, *trust).code == 0

    def nothing(content: dict[str, Any]) -> None:
        """A signature of one's own is forgery enough."""

    forge(out, nothing, signer=Signer(own))
    assert verified(out).code == 0, "without --trust a signature says only whose key it was"
    stopped(verified(out, *trust), "signed with another key than the one trusted")
    edit(out, lambda content: content["signature"].update(key=certificate(other)["signature"]["key"]))
    stopped(verified(out, *trust), "the signature is not that of the key stated")
    edit(out, lambda content: content.update(signature=certificate(other)["signature"]))
    stopped(verified(out, *trust), "the signature is not that of the key stated")
    forge(out, nothing)
    stopped(verified(out, *trust), "the certificate is not signed")
    return "only a signature of this very content by the trusted key counts"
