"""Tables of docs/results.md that were written by hand: every cell is in the numbers that are kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dpmerge_lab.experiments.coverage import SEPARATIONS
from dpmerge_lab.experiments.coverage_pictures import FAST, MEAN, RUNS, SLOW, SOLUTION
from dpmerge_lab.experiments.portfolio_pictures import AVERAGE, DRAW, FORMULA, JOINT, LAST_ONLY, PROVED, SELECTION
from dpmerge_lab.experiments.results import with_error
from dpmerge_lab.experiments.tail_averaging_pictures import LAST, TAIL

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "lab" / "results" / name / f"{name}.json").read_text(encoding="utf-8"))
    return dict(found["numbers"])


def rows(name: str) -> list[list[str]]:
    """Cells of all tables in the section of this experiment."""
    section = TEXT.split(f"\n## `{name}`")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines() if line.startswith("| ")]


def test_three_full_batches() -> None:
    names = {"as the paper": "as the paper", "never clipped": "never clipped", "constant rate": "never clipped, constant rate"}
    numbers, checked, portfolio = kept("mnist-replace-one"), 0, ""
    for cells in rows("mnist-replace-one"):
        weights = next((tuple(map(float, one[1:-1].split(","))) for one in cells if one.startswith("(")), None)
        if weights is None:
            continue
        portfolio = names.get(cells[0], portfolio)
        row = next(
            one for one in numbers[portfolio]["averages"] if tuple(one["weights"].values()) == pytest.approx(weights, abs=1e-9)
        )
        stated = [float(cell) for cell in cells[-7:-2]]
        accounts = [row[label] for label in (PROVED, LAST_ONLY, FORMULA, SELECTION, JOINT)]
        for told, epsilon in zip(stated, accounts, strict=True):
            assert epsilon <= told <= 1.01 * epsilon  # rounded up
        assert cells[-2:] == [with_error(row[AVERAGE]), with_error(row[DRAW])]
        checked += 1
    assert checked == 7


def test_last_iterates_and_averages() -> None:
    found = kept("tail-averaging")["rows"]
    largest = [row["ways"] for row in found if row["T"] == 2048]
    shown = [row for row in rows("tail-averaging") if "T = 2048" not in row[0] and "e-" in row[1]]
    assert len(shown) == len(largest) == 4
    for cells, ways in zip(shown, largest, strict=True):
        risks = [ways[way]["excess risk"]["mean"] for way in (LAST, TAIL, "PDA, γ = 3")]
        assert [float(cell.split()[0]) for cell in cells[1:4]] == pytest.approx(risks, rel=1e-2)


def test_coverage() -> None:
    numbers, checked = kept("coverage"), 0
    for cells in rows("coverage"):
        match = re.fullmatch(r"(.*?)(?:, ε = \d)?, (slowest|fastest)", cells[0])
        if match is None:
            continue
        direction = SLOW if match[2] == "slowest" else FAST
        own = [row for row in numbers[match[1]]["rows"] if (row["direction"], row["k"]) == (direction, 10)]
        held = [next(row[MEAN] for row in own if row.get("separation") == separation) for separation in SEPARATIONS]
        held.append(next(row[RUNS] for row in own if RUNS in row))
        shares = [of["0.95"][SOLUTION] for of in held]
        assert cells[2:] == [f"{one['share']:.3f} ± {one['error']:.3f}" for one in shares]
        curvature = numbers[match[1]]["curvature"][0 if direction == SLOW else -1]
        assert float(cells[1]) == pytest.approx(20 * 0.5 * curvature, rel=0.1)
        checked += 1
    assert checked == 5
