"""Only the model card is edited: people read it, programs do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import certificate, edit, release, stopped, verified
from dpmerge.files import canonical, sha256
from dpmerge.release import certified_section
from dpmerge.rules import round_up


def attack(folder: Path) -> str:
    """Plainly; then with its new hash in the certificate, and the certificate's own hash fitted."""
    out = release(folder)
    card = out / "README.md"
    claim = round_up(certificate(out)["guarantee"]["epsilon"])
    assert claim in card.read_text()
    card.write_text(card.read_text().replace(claim, "0.0100"))
    stopped(verified(out), "the certified section of README.md does not say what is certified")

    def certify_it(content: dict[str, Any]) -> None:
        content["card"] = sha256(certified_section(card.read_text()).encode())
        content["sha256"] = sha256(canonical({k: v for k, v in content.items() if k not in ("sha256", "signature")}))

    edit(out, certify_it)
    stopped(verified(out), "the certified section of README.md does not say what is certified")
    return "the hash of its section is certified, and what that says is written again from the certificate and compared"
