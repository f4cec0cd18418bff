"""Many linear combinations of one portfolio: what each guarantees, and what it is worth, as independent pieces of work."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from dpmerge.cache import code_fingerprint, without_cache
from dpmerge.errors import AccountingError
from dpmerge.records import Portfolio, Weights
from dpmerge.rules import (
    MIXTURE_ACCOUNTANTS,
    Accounting,
    Guarantee,
    MixtureAccountant,
    about_delta,
    assumed_by as by_each,
    build,
    of_many,
)

Point = tuple[float, ...]
Account = Literal["proved", "formula"]
_ACCURACY = 1e-4
T = TypeVar("T")
R = TypeVar("R")


class Mapper(Protocol):
    """`jobs.run_all` with executor and result store bound."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], *, keys: Sequence[str]) -> list[R]:
        """The function of every item, in order."""


class Scorer(Protocol):
    """Merges the portfolio's models with these weights and measures the result; must survive being pickled."""

    @property
    def fingerprint(self) -> str:
        """Identifies the function and the model files, so that stored scores of other models are not used."""

    def __call__(self, weights: Point) -> float:
        """The score."""


def combination_points(
    portfolio: Portfolio,
    points: Sequence[Point],
    delta: float,
    accounting: Accounting,
    run: Mapper,
    accounts: Iterable[Account] = ("proved", "formula"),
    accountants: Iterable[MixtureAccountant] = MIXTURE_ACCOUNTANTS,
    scorer: Scorer | None = None,
) -> list[dict[str, Any]]:
    """For every point {"proved": {"pld": ε, "rdp": ε, "standing": …, "assumptions": …}, "formula": {…}, "score": …}."""
    function = partial(_point, portfolio, delta, accounting, tuple(accounts), tuple(accountants), scorer)
    records = [model.record.model_dump_json() for model in portfolio.models]
    whole = (records, portfolio.names, *function.args[1:5], scorer and scorer.fingerprint, code_fingerprint())
    prefix = hashlib.sha256(repr(whole).encode()).hexdigest()
    keys = [f"{prefix[:32]}:{','.join(value.hex() for value in point)}" for point in points]
    return run(function, points, keys=keys)


def _point(
    portfolio: Portfolio,
    delta: float,
    accounting: Accounting,
    accounts: tuple[Account, ...],
    accountants: tuple[MixtureAccountant, ...],
    scorer: Scorer | None,
    point: Point,
) -> dict[str, Any]:
    result: dict[str, Any] = {"score": None if scorer is None else float(scorer(point))}
    weights = portfolio.weights_in_order(point)
    for account in accounts:
        assumed = 0.0 if account == "formula" else accounting.assume_smoothness
        asked = replace(accounting, assume_smoothness=assumed, accuracy=_ACCURACY)
        found = {by: _guarantee(weights, delta, replace(asked, by=by)) for by in accountants}
        conditional = any(guarantee is not None and guarantee.standing == "conditional" for guarantee in found.values())
        result[account] = {by: math.inf if guarantee is None else guarantee.epsilon for by, guarantee in found.items()}
        result[account]["standing"] = "conditional" if conditional else "proved"
        texts = (text for guarantee in found.values() if guarantee is not None for text in guarantee.assumptions)
        result[account]["assumptions"] = list(dict.fromkeys(texts))
    return result


def _guarantee(weights: Weights, delta: float, accounting: Accounting) -> Guarantee | None:
    """At the δ asked for, or nothing where the rule or the accountant has no answer."""
    try:
        with without_cache():  # there are many points, and the caller stores them
            return accounting.guarantee(build("combination", weights, accounting), delta=delta)
    except AccountingError:
        return None


def selection_assumptions(portfolio: Portfolio, delta: float, accounting: Accounting) -> tuple[str, ...]:
    """What random selection from all models assumes, whatever their weights; nothing where it has no answer."""
    everyone = portfolio.weights({name: 1 / len(portfolio.names) for name in portfolio.names})
    asked = replace(accounting, by="best", assume_smoothness=None)
    try:
        return asked.guarantee(build("selection", everyone, asked), delta=delta).assumptions
    except AccountingError:
        return ()


def assumed_by(stated: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Every assumption once, as many averages share it, and which of the rules drawn make it."""
    return by_each((title, map(of_many, texts)) for title, texts in stated)


def warned(delta: float, portfolio: Portfolio, accounting: Accounting) -> str | None:
    return " ".join(f"{text}." for text in about_delta(delta, portfolio.models, accounting.shuffle)) or None


def named(portfolio: Portfolio, point: Point) -> dict[str, float]:
    return dict(zip(portfolio.names, point, strict=True))
