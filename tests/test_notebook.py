"""What is typed first in a notebook: short representations, tables, frames."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from dpmerge import notebook
from dpmerge.errors import MissingLibrary, PortfolioError
from dpmerge.jobs import ProgressBar, run_all
from dpmerge.planning import edge
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import round_up
from tests import builders
from tests.release_builders import runs


@pytest.fixture
def portfolio() -> Portfolio:
    return Portfolio([builders.dp_sgd("a", sigma=2.0, steps=5), builders.gaussian("b<i>", noise_std=4.0)])


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for pandas that keeps the rows it is given."""
    given: list[Any] = []
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = given.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    return given


def test_a_portfolio_is_a_collection(portfolio: Portfolio) -> None:
    assert len(portfolio) == 2 and [model.name for model in portfolio] == ["a", "b<i>"]
    assert portfolio["a"] is portfolio.models[0]
    assert repr(portfolio) == "Portfolio of 2 on test-data: a, b<i>"
    with pytest.raises(PortfolioError, match="no model named 'c'"):
        portfolio["c"]


def test_names_are_told_apart() -> None:
    twice: Record = builders.gaussian("a", noise_std=1.0).record
    with pytest.raises(PortfolioError, match="two models are named 'a'"):
        Portfolio((Model("a", twice), Model("a", twice)))


def test_html_is_escaped(portfolio: Portfolio) -> None:
    shown = portfolio._repr_html_()
    assert "b&lt;i&gt;" in shown and "<i>" not in shown and "gaussian" in shown and shown.count("<tr>") == 3
    found = dpmerge.selection(portfolio, {"a": 0.5, "b<i>": 0.5}).guarantee(delta=1e-5)
    shown = found._repr_html_()
    assert "<i>" not in shown and f"<li>{found.assumptions[0]}</li>" in shown and "proved" in shown
    assert repr(found) == str(found) == f"{found.claim} · assumes {'; '.join(found.assumptions)}"


def test_frames(portfolio: Portfolio, frames: list[Any]) -> None:
    portfolio.to_frame()
    assert [(row["name"], row["steps"], row["noise multiplier"]) for row in frames[0]] == [("a", 5, 2.0), ("b<i>", None, 4.0)]


def test_a_comparison_is_a_table(portfolio: Portfolio, frames: list[Any]) -> None:
    found = dpmerge.compare(portfolio, {"a": 0.5, "b<i>": 0.5}, delta=1e-5)
    first, *_, last = found.rows
    assert first.guarantee is not None and f"random selection: {first.guarantee.claim}" in repr(found)
    assert len(found) == 8 and found._repr_html_().count("<tr>") == 10 and last.label in found._repr_html_()
    found.to_frame()
    assert frames[0][0]["ε"] == first.guarantee.epsilon and found.as_dict()["rows"][0]["epsilon"] == first.guarantee.epsilon


def test_frames_need_pandas(portfolio: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibrary, match="install dpmerge\\[notebook\\]"):
        portfolio.to_frame()


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A notebook's kernel, and the bars that tqdm shows in it."""
    shown: list[Any] = []

    class Bar:
        def __init__(self, total: int | None, desc: str, leave: bool, bar_format: str = "") -> None:
            self.total, self.n, self.closed = total, 0, False
            self.labels = [desc]
            shown.append(self)

        def set_description_str(self, label: str) -> None:
            self.labels.append(label)

        def update(self, n: int = 1) -> None:  # there is no refresh: it would be a message for each block
            self.n += n

        def close(self) -> None:
            self.closed = True

    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    return shown


def test_a_notebook_shows_the_steps_of_a_plan(portfolio: Portfolio, bars: list[Any]) -> None:
    dpmerge.plan(portfolio, epsilon=50.0, delta=1e-5)
    assert len(bars) == 1 and bars[0].closed and "selection" in bars[0].labels
    told: list[str] = []
    dpmerge.plan(portfolio, epsilon=50.0, delta=1e-5, progress=told.append)
    assert len(bars) == 1 and "selection" in told


def test_a_bar_is_closed_when_work_fails(portfolio: Portfolio, bars: list[Any]) -> None:
    with pytest.raises(dpmerge.TargetError):
        dpmerge.frontier(portfolio, delta=1e-5, epsilons=[])
    assert [one.closed for one in bars] == [True]


def test_pieces_of_work_are_a_bar(bars: list[Any]) -> None:
    assert run_all(str, [1, 2, 3], jobs=1, progress=ProgressBar("numbers")) == ["1", "2", "3"]
    assert (bars[0].labels, bars[0].total, bars[0].n, bars[0].closed) == (["numbers"], 3, 3, True)


def test_a_merge_is_a_bar(tmp_path: Path, bars: list[Any]) -> None:
    portfolio = runs(tmp_path)
    dpmerge.merge(portfolio, {"a": 0.5, "b": 0.5}, rule="joint", delta=1e-5, out=tmp_path / "out")
    assert bars[0].labels == ["merging"] and bars[0].closed and bars[0].n == bars[0].total > 0


def test_without_a_notebook_or_tqdm_nothing_is_shown(monkeypatch: pytest.MonkeyPatch, bars: list[Any]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert notebook.bar(3, "") is None
    monkeypatch.undo()
    assert notebook.bar(3, "") is None and notebook.amounts("") is None


def test_a_frontier_is_a_picture(portfolio: Portfolio, frames: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found = dpmerge.frontier(portfolio, delta=1e-5, epsilons=[4.0, 40.0])
    assert repr(found).startswith("Frontier of 2 models at δ = 1e-05: ") and "random selection" in repr(found)
    png = found._repr_png_()
    assert png is not None and png.startswith(b"\x89PNG")
    found.to_frame()
    drawn = [row for row in frames[0] if row["title"] == "random selection" and row["by"] == "pld"]
    assert [row["epsilon"] for row in drawn] == [4.0, 40.0] and drawn[0]["standing"] == "proved"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert found._repr_png_() is None  # then the text above is shown


def test_maps_are_pictures() -> None:
    pytest.importorskip("matplotlib")
    two = Portfolio([builders.gaussian(name, noise_std=4.0) for name in "ab"])
    found = edge(two, delta=1e-5, step=0.5)
    assert repr(found) == "Edge from a to b at δ = 1e-05, 3 points" and found._repr_png_()


def test_a_ledger_is_a_table(tmp_path: Path, frames: list[Any]) -> None:
    portfolio = runs(tmp_path)
    ledger = dpmerge.Ledger.create(
        tmp_path / "ledger.db", dataset="test-data", adjacency="add-remove", epsilon=100.0, delta=1e-5
    )
    assert repr(ledger) == "<Ledger of test-data: ε = 0.0000 of 100 spent at δ = 1e-05>"
    released = dpmerge.merge(
        portfolio, {"a": 0.5, "b": 0.5}, rule="joint", delta=1e-5, out=tmp_path / "out", ledger=ledger.name
    )
    spent = ledger.cumulative()
    assert spent is not None and f"ε = {round_up(spent.epsilon)} of 100" in repr(ledger)
    ledger.to_frame()
    assert [row["entry"] for row in frames[0]] == ["1", "2"] and frames[0][0]["what"].startswith("joint of")
    shown = ledger._repr_html_()
    assert "joint of" in shown and "<Ledger" not in shown and released.certificate.ledger is not None
