"""What is typed first in a notebook: short representations, tables, frames."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import dpmerge
from dpmerge.errors import MissingLibrary, PortfolioError
from dpmerge.records import Model, Portfolio, Record
from tests import builders


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
    with pytest.raises(MissingLibrary, match="pip install pandas"):
        portfolio.to_frame()
