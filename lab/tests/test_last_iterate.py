"""The table on hidden runs in docs/results.md: made by `dpmerge reproduce last-iterate`; one row is made anew here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd
from dpmerge_lab.experiments import last_iterate
from dpmerge_lab.experiments.catalogue import find
from dpmerge_lab.experiments.mnist import poisson_twin
from dpmerge_lab.experiments.results import Options

ROOT = Path(__file__).parent.parent.parent
KEPT = json.loads((ROOT / "lab" / "results" / "last-iterate" / "last-iterate.json").read_text(encoding="utf-8"))
THEOREMS = {"single-run": "composition", "transport-poisson": "transport", "joint-release": "joint release"}


def lines(numbers: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The table's rows."""
    found = []
    for name, rows in numbers.items():
        for row in rows:
            whole = " + ".join(f"{weight:.3g} {model}" if weight < 1 else model for model, weight in row["weights"].items())
            cells = [f"{row[when]['epsilon']:.4g}" for when in ("before", "now")]
            theorems = [THEOREMS.get(row[when]["theorem"], row[when]["theorem"]) for when in ("before", "now")]
            found.append(f"| {name} | {whole} | {cells[0]} ({theorems[0]}) | {cells[1]} ({theorems[1]}) |")
    return found


def test_the_docs_show_what_was_kept() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for line in lines(KEPT["numbers"]):
        assert line in text


def test_never_worse_and_far_better_where_a_run_can_hide() -> None:
    rows = [row for rows in KEPT["numbers"].values() for row in rows]
    assert all(row["now"]["epsilon"] <= row["before"]["epsilon"] for row in rows)
    assert all(row["now"] == row["before"] for row in KEPT["numbers"]["mnist.yaml"])  # clipping binds: nothing is known


def test_one_row_made_anew() -> None:
    """The MNIST twin alone, ε = 6.458 by composition."""
    row = last_iterate.row(last_iterate.of_setting(poisson_twin()), (1.0, 0.0))
    assert row["before"] == {"epsilon": pytest.approx(6.458, rel=1e-3), "theorem": "single-run"}
    assert row["now"]["theorem"] == "hidden-run" and 2.7 < row["now"]["epsilon"] < 3.0
    (kept,) = (one for one in KEPT["numbers"]["Poisson twin"] if one["weights"] == row["weights"])
    assert kept["now"]["epsilon"] == pytest.approx(row["now"]["epsilon"], rel=0.02)
    assert kept["before"]["epsilon"] == pytest.approx(row["before"]["epsilon"], rel=1e-4)


def test_records_are_those_of_the_portfolio_file() -> None:
    portfolio = last_iterate.portfolio_of(last_iterate.portfolio_file("digits.yaml"), 1437)
    assert portfolio.names == ("noise-1", "noise-2", "noise-6")
    mechanism = portfolio["noise-2"].mechanism
    assert isinstance(mechanism, DpSgd)
    assert (mechanism.steps, mechanism.noise_multiplier, mechanism.clip, mechanism.convex) == (150, 2.0, 2.001, "unclipped")
    assert mechanism.smoothness == pytest.approx(1.0) and mechanism.expected_batch == pytest.approx(143.7)


def test_a_quick_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = find("last-iterate", Options(quick=True, jobs=1))()
    assert list(result.numbers) == ["digits.yaml"] and len(result.numbers["digits.yaml"]) == 3
    monkeypatch.setattr(last_iterate, "_FOLDER", tmp_path)
    with pytest.raises(TrainingError, match="run this in a checkout"):
        find("last-iterate", Options(quick=True, jobs=1))()
