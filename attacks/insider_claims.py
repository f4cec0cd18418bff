"""Someone with the private portfolio edits what it cannot show: the ledger's total, its entry, a draw, an assumption."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from attacks.victim import DATASET, DELTA, Outcome, certificate, dpmerge, forge, release, stopped, verified

TOTAL = "not covered: ledger total: not checked"


def attack(folder: Path) -> str:
    """With the portfolio alone each passes, and the verdict says that it did not look; the ledger refutes every one."""
    ledger, runs = folder / "ledger.db", folder / "runs"
    made = dpmerge("ledger", "new", ledger, "--dataset", DATASET, "--epsilon", "100", "--delta", DELTA)
    assert made.code == 0, made.text
    drawn = release(folder, "selection", "drawn", "leaky=0.25,safe=0.75", "--ledger", ledger)
    average = release(folder, "combination", "average", "leaky=0.25,safe=0.75", "--ledger", ledger)
    for victim in (drawn, average):
        whole = verified(victim, "--portfolio", runs, "--ledger", ledger)
        assert whole.code == 0, whole.text
        assert TOTAL not in whole.text, whole.text

    def lower_total(content: dict[str, Any]) -> None:
        content["ledger"]["epsilon"] /= 1000

    def no_entry(content: dict[str, Any]) -> None:
        content["ledger"] = None

    def other_chances(content: dict[str, Any]) -> None:
        content["rule"]["weights"] = {"leaky": (2.0**-20).hex(), "safe": (1 - 2.0**-20).hex()}

    def no_curvature(content: dict[str, Any]) -> None:
        content["rule"]["assume_smoothness"] = (0.0).hex()

    for victim, change, told in (
        (average, lower_total, TOTAL),
        (average, no_entry, f"{TOTAL}; the certificate names no ledger"),
        (drawn, other_chances, "not covered: that the model was drawn, and with these chances"),
        (average, no_curvature, "granted by whoever made it: clipped gradients are 0-smooth"),
    ):
        out = folder / "attacked"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(victim, out)
        forge(out, change, guarantee=True)
        _keep_openings(runs, victim, out)
        _passes_and_says(verified(out, "--portfolio", runs), told)
        stopped(verified(out, "--portfolio", runs, "--ledger", ledger), "it does NOT hold")
    return "the verdict says what it did not look at, and what was granted; the ledger refutes it"


def _keep_openings(runs: Path, victim: Path, out: Path) -> None:
    """What opens the commitments to the inputs lies in the portfolio, by the certificate's hash: the insider copies it."""
    before, after = (runs / ".dpmerge" / "openings" / f"{certificate(one)['sha256']}.json" for one in (victim, out))
    if before.exists():
        shutil.copyfile(before, after)


def _passes_and_says(found: Outcome, told: str) -> None:
    assert found.code == 0, found.text
    assert told in found.text, f"{told!r} is not said: {found.text}"
