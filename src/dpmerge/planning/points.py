"""Many linear combinations of one portfolio: what each guarantees, and what it is worth, as independent pieces of work."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BeforeValidator

from dpmerge.cache import code_fingerprint, without_cache
from dpmerge.errors import AccountingError
from dpmerge.records import Portfolio, Weights
from dpmerge.rules import (
    MIXTURE_ACCOUNTANTS,
    Accounting,
    Guarantee,
    MixtureAccountant,
    Standing,
    about_delta,
    build,
    of_many,
)

Point = tuple[float, ...]
Account = Literal["proved", "formula"]
Epsilon = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]  # null in a JSON document
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


@runtime_checkable
class NoisyScorer(Scorer, Protocol):
    """A scorer that can also add noise to what it merges."""

    def noised(self, weights: Point, noise: float) -> float:
        """The score with one fresh draw of the noise."""


@dataclass(frozen=True)
class Accounted:
    """One combination under one account; ε is infinite where an accountant has no answer.

    The assumptions are as many combinations share them.
    """

    epsilon: dict[MixtureAccountant, float]
    standing: Standing
    assumptions: list[str]


@dataclass(frozen=True)
class Combined:
    """What one combination guarantees under every account asked for, and its score if it was measured."""

    score: float | None
    accounts: dict[Account, Accounted]


def combination_points(
    portfolio: Portfolio,
    points: Sequence[Point],
    delta: float,
    accounting: Accounting,
    run: Mapper,
    accounts: Iterable[Account] = ("proved", "formula"),
    accountants: Iterable[MixtureAccountant] = MIXTURE_ACCOUNTANTS,
    scorer: Scorer | None = None,
) -> list[Combined]:
    function = partial(_point, portfolio, delta, accounting, tuple(accounts), tuple(accountants), scorer)
    records = [model.record.model_dump_json() for model in portfolio.models]
    whole = (records, portfolio.names, *function.args[1:5], scorer and scorer.fingerprint, code_fingerprint())
    prefix = hashlib.sha256(repr(whole).encode()).hexdigest()
    keys = [f"{prefix[:32]}:{','.join(value.hex() for value in point)}" for point in points]
    return [
        Combined(found["score"], {account: Accounted(**one) for account, one in found["accounts"].items()})
        for found in run(function, points, keys=keys)
    ]


def _point(
    portfolio: Portfolio,
    delta: float,
    accounting: Accounting,
    accounts: tuple[Account, ...],
    accountants: tuple[MixtureAccountant, ...],
    scorer: Scorer | None,
    point: Point,
) -> dict[str, Any]:
    """`Combined` as plain data, which finished work is kept as."""
    score = None if scorer is None else float(scorer(point))
    weights = portfolio.weights_in_order(point)
    result: dict[Account, Accounted] = {}
    for account in accounts:
        assumed = 0.0 if account == "formula" else accounting.assume_smoothness
        asked = replace(accounting, assume_smoothness=assumed, accuracy=_ACCURACY)
        found = {by: _guarantee(weights, delta, replace(asked, by=by)) for by in accountants}
        known = [guarantee for guarantee in found.values() if guarantee is not None]
        result[account] = Accounted(
            {by: math.inf if guarantee is None else guarantee.epsilon for by, guarantee in found.items()},
            "conditional" if any(guarantee.standing == "conditional" for guarantee in known) else "proved",
            list(dict.fromkeys(of_many(text) for guarantee in known for text in guarantee.assumptions)),
        )
    return asdict(Combined(score, result))


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


def warned(delta: float, portfolio: Portfolio, accounting: Accounting) -> str | None:
    return " ".join(f"{text}." for text in about_delta(delta, portfolio.models, accounting.shuffle)) or None


def named(portfolio: Portfolio, point: Point) -> dict[str, float]:
    return dict(zip(portfolio.names, point, strict=True))
