"""The certified ε is lowered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import edit, forge, release, stopped, verified


def tenth(certificate: dict[str, Any]) -> None:
    """Claim ten times more privacy."""
    certificate["guarantee"]["epsilon"] /= 10


def attack(folder: Path) -> str:
    """Plainly; then by a forger who fits hash and model card to it, with ε lowered and with δ lowered."""
    out = release(folder)
    edit(out, tenth)
    stopped(verified(out), "its content does not have the hash it states")
    forge(out, tenth)
    stopped(verified(out), "the guarantee's epsilon is certified as")

    def smaller_delta(certificate: dict[str, Any]) -> None:
        certificate["guarantee"]["epsilon"] *= 100
        certificate["guarantee"]["delta"] /= 10

    forge(out, smaller_delta)
    stopped(verified(out), "the guarantee's epsilon is certified as")
    return "the certificate's hash does not fit; with a forged one, another ε follows from the records it carries"
