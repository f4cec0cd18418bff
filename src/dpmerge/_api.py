"""The library's front door: what `import dpmerge` offers, each thing loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Portfolio
from dpmerge.rules import Combination, Joint, Selection


def selection(portfolio: Portfolio, weights: Mapping[str, float], *, shuffle: ShuffleAsPoisson | None = None) -> Selection:
    """Random selection: one model, drawn with these probabilities."""
    return Selection(portfolio.weights(weights), shuffle)


def combination(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
) -> Combination:
    """Linear combination: the average of the parameters with these weights."""
    return Combination(portfolio.weights(weights), assume_smoothness, shuffle)


def joint(portfolio: Portfolio, weights: Mapping[str, float], *, shuffle: ShuffleAsPoisson | None = None) -> Joint:
    """Joint release of every model that has weight: covers any merge of them."""
    return Joint(portfolio.weights(weights), shuffle)


def example_portfolio() -> Path:
    """The folder of the records that ship with the package: three softmax regressions on MNIST (M1, App. H.1)."""
    return Path(__file__).parent / "data" / "portfolio"
