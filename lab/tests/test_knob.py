"""One portfolio for every ε: the experiment of `make demo`, and the table in docs/results.md that was made by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpmerge.rules import Combination
from dpmerge_lab.experiments.catalogue import find
from dpmerge_lab.experiments.knob import DELTA
from dpmerge_lab.experiments.last_iterate import portfolio_file, portfolio_of
from dpmerge_lab.experiments.results import Options

ROOT = Path(__file__).parent.parent.parent


def test_the_docs_show_what_was_kept() -> None:
    kept = json.loads((ROOT / "lab" / "results" / "knob" / "knob.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for epsilon, row in kept["numbers"].items():
        cells = [
            f"{of['mean']:.3f} ± {of['std'] / of['runs'] ** 0.5:.3f}" for of in (row["noise at release"], row["trained anew"])
        ]
        assert f"| {epsilon} | {row['noise']:.4f} | {cells[0]} | {cells[1]} |" in text
        assert row["epsilon"] <= float(epsilon)


def test_a_quick_run() -> None:
    result = find("knob", Options(seeds=2, quick=True, jobs=1))()
    row = result.numbers["0.5"]
    portfolio = portfolio_of(portfolio_file("knob.yaml"), 1437)
    even = dict.fromkeys(portfolio.names, 0.25)
    again = Combination(portfolio.weights(even), noise=row["noise"]).guarantee(delta=DELTA)
    assert again.theorem == row["theorem"] == "hidden-run"
    assert again.epsilon == pytest.approx(row["epsilon"]) and row["epsilon"] <= 0.5
    assert row["noise at release"]["runs"] == 2
    assert row["noise at release"]["mean"] > 0.4 and row["trained anew"]["mean"] > 0.5  # guessing has 0.1
    assert result.table is not None and [line[0] for line in result.table[2]] == ["0.5"]
