"""The record in the certificate is replaced by one with more noise, and everything that follows is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import forge, keys, release, stopped, verified


def attack(folder: Path) -> str:
    """Without signature and portfolio this cannot be seen; with either it is."""
    key = keys(folder)
    out = release(folder, "selection", "released", "leaky=1", "--sign", key)

    def more_noise(certificate: dict[str, Any]) -> None:
        certificate["records"]["leaky"]["record"]["mechanism"]["noise_multiplier"] *= 10

    forge(out, more_noise, guarantee=True)
    assert verified(out).code == 0, "a wholly consistent forgery holds by itself; that is why certificates are signed"
    stopped(verified(out, "--portfolio", folder / "runs"), "the record of model 'leaky' is not the one certified")
    stopped(verified(out, "--trust", folder / "key.pub"), "the certificate is not signed")
    return "the portfolio has another record; the forger cannot sign"
