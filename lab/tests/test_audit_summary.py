"""All scenarios on one page: the table rounds on the safe side, an alarm is told, and the documents say what was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpmerge.audit import Claim, Game, audit
from dpmerge.errors import EvaluationError
from dpmerge.figures import describe, render
from dpmerge.profiles import FloatArray, gaussian_epsilon
from dpmerge_lab import redraw
from dpmerge_lab.audit import SCENARIOS, __main__ as everything
from dpmerge_lab.audit.summary import Row, picture, table
from dpmerge_lab.experiments.aggregation_mnist_pictures import COLUMNS, NAMES
from tests.test_figures import inside, printed

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "lab" / "results" / "audit"


@dataclass(frozen=True)
class Overheard(Game):
    """A Gaussian mechanism with μ = 1 of which somebody claims less."""

    proved: float = 1.0
    name: str = "overheard"
    about: str = "A Gaussian mechanism"
    delta: float = 1e-3
    trials: int = 20_000

    def claims(self, delta: float) -> list[Claim]:
        return [
            Claim("wishful", "refuted", partial(gaussian_epsilon, 0.5), 0.5),
            Claim("proved", "proved", partial(gaussian_epsilon, self.proved), self.proved),
            Claim("also proved", "proved", 50.0),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        return float(with_record) + generator.standard_normal(trials)


def honest() -> Overheard:
    """Holds."""
    return Overheard()


def dishonest() -> Overheard:
    """Does not hold."""
    return Overheard(proved=0.6)


def test_a_row_has_the_best_bound_and_what_was_reached() -> None:
    result = audit(honest(), seed=1, jobs=1)
    row = Row.of(result)
    assert (row.claim, row.proved_by, row.exceeded, row.alarm) == ("wishful", "proved", True, False)
    assert row.measured == result.epsilon
    assert row.proved == pytest.approx(gaussian_epsilon(1.0, 1e-3))
    assert result.epsilon / gaussian_epsilon(1.0, 1e-3) < (row.reached or 0) < 1
    assert Row.of(audit(dishonest(), seed=1, jobs=1)).alarm


def test_the_table_rounds_on_the_safe_side() -> None:
    row = Row("s", "a", 1e-5, 10, "c", 1.00001, "p", 2.00001, 1.59999, 0.7999, True, False)
    assert table([row]).splitlines()[2] == "| 1 | `s` | 1e-05 | c | 1.001 ✗ | 1.599 | 2.001 | p | 79 % |"
    bare = replace(row, claim=None, claimed=None, proved=None, proved_by=None, reached=None, exceeded=None)
    assert table([replace(row, reached=float("inf"))]).splitlines()[2].endswith("| exceeded |")
    assert table([row, bare]).splitlines()[3] == "| 2 | `s` | 1e-05 |  |  | 1.599 |  |  |  |"


def test_the_picture_can_be_drawn() -> None:
    row = Row("s", "a", 1e-5, 10, "c", 1.0, "p", 2.0, 1.5, 0.75, True, False)
    nothing = replace(row, scenario="t", claimed=None, proved=None, measured=0.0)
    rows = [row, nothing, row, row, row]
    drawn = picture(rows, 0.99)
    assert render(drawn, ".png").startswith(b"\x89PNG")
    assert drawn.warning is None
    assert picture([*rows, replace(row, alarm=True)], 0.99).warning


def test_kept_numbers_are_enough_for_their_pictures() -> None:
    kept = RESULTS.parent
    drawn = dict(redraw.pictures(kept))
    others = ("-heatmap", "mnist-frontier", "-abstention")  # of records, and of what is not in the numbers
    folders = {path.parent for path in drawn}
    left = {path for folder in folders for path in folder.glob("*.png")} - {*drawn}
    assert all(path.exists() for path in drawn) and all(any(name in path.name for name in others) for path in left)
    assert len(drawn) >= 34
    for document in drawn.values():
        inside(printed(dict(document)))  # no text is cut off
    assert [path.parent.name for path in dict(redraw.pictures(kept, ["knob"]))] == ["knob"]
    table = describe(drawn[kept / "aggregation-mnist" / "aggregation-mnist-table.png"]).panels[0]
    assert table.categories == [NAMES.get(column, column) for column in COLUMNS]
    scenarios = describe(redraw.soundness(kept)).panels[0].categories
    assert scenarios == list(SCENARIOS)
    assert all(path.stat().st_size < 100_000 for path in kept.rglob("*.png")) and not list(kept.rglob("*.svg"))


def test_everything_is_audited_and_an_alarm_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:"
    monkeypatch.setattr(everything, "SCENARIOS", {f"{here}honest": ""})
    assert everything.main(tmp_path / "well", None, times=2, jobs=1)
    summary = json.loads((tmp_path / "well" / "summary.json").read_text())
    assert [(row["scenario"], row["trials"]) for row in summary["rows"]] == [("overheard", 40_000)]
    assert (tmp_path / "well" / "soundness.png").read_bytes().startswith(b"\x89PNG")
    assert "`overheard`" in (tmp_path / "well" / "summary.md").read_text()
    monkeypatch.setattr(everything, "SCENARIOS", {f"{here}honest": "", f"{here}dishonest": ""})
    assert not everything.main(tmp_path / "ill", tmp_path / "drawn.png", times=1, jobs=1)
    assert (tmp_path / "drawn.png").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="no folder for results"):
        everything.main(tmp_path / "file", None, times=1, jobs=1)


def test_the_documents_have_the_numbers_that_were_measured() -> None:
    """The page for auditors shows the kept results, of every scenario that ships, and no alarm is among them."""
    summary = json.loads((RESULTS / "summary.json").read_text())
    rows = [Row(**row) for row in summary["rows"]]
    assert [row.scenario for row in rows] == list(SCENARIOS)
    assert not any(row.alarm for row in rows)
    assert table(rows) in (ROOT / "docs" / "soundness.md").read_text()
    for row in rows:
        kept = json.loads((RESULTS / f"{row.scenario}.json").read_text())
        assert (kept["epsilon_at_least"], kept["alarm"]) == (row.measured, False)
