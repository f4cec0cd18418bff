"""Weights that sum to 1 + 1e-6: renormalising them silently would release something else than was accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import DELTA, dpmerge, forge, portfolio, release, stopped, verified


def attack(folder: Path) -> str:
    """On the command line, for every rule; then in a certificate."""
    runs, out = portfolio(folder), folder / "out"
    for rule in ("selection", "combination", "joint"):
        made = dpmerge("merge", runs, "--rule", rule, "--weights", "leaky=0.250001,safe=0.75", "--delta", DELTA, "--out", out)
        stopped(made, "they are never renormalised", code=2)
        assert not out.exists()
    released = release(folder)

    def a_little_more(certificate: dict[str, Any]) -> None:
        certificate["rule"]["weights"]["leaky"] = (0.25 + 1e-6).hex()

    forge(released, a_little_more)
    stopped(verified(released), "they are never renormalised")
    return "weights are used exactly as they are, or refused"
