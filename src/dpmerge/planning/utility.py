"""Utilities of the models and how they were measured, which decides what weights chosen by them guarantee (theory.md §4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dpmerge.errors import UtilityError
from dpmerge.records import Extended, Portfolio, Strict, load_strict, named_numbers
from dpmerge.rules import Provenance, Validation


class ValidationSet(Extended):
    """The private validation set on which scores were measured, and whether none of its records was trained on.

    Scores are right answers divided by `divisor`, a constant that does not depend on the set; or by the number of its
    `records`, which is then published, and moves with them (docs/theory.md §4).
    """

    added: ClassVar[frozenset[str]] = frozenset({"records", "divisor"})
    records: Annotated[int, Field(ge=1)] | None = None
    divisor: Annotated[int, Field(ge=1)] | None = None
    disjoint: bool

    @model_validator(mode="after")
    def _one_divisor(self) -> ValidationSet:
        if (self.records is None) == (self.divisor is None):
            raise ValueError("give either the number of records, or a public constant by which right answers are divided")
        return self

    @property
    def described(self) -> Validation:
        return Validation(self.divisor or self.records or 0, self.disjoint, self.divisor is not None)


class MeasuredUtilities(Strict):
    """A file of measured utilities: on what, and on which models.

    `models` is "private" if the portfolio's own models were evaluated, and "stand-ins" if other models were, trained on public
    data in the same way. The first makes every later choice a function of the private models. `validation` is given
    if the scores come from private records, which then pay for the choice as well.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    measured_on: Annotated[str, Field(min_length=1)]
    models: Literal["private", "stand-ins"]
    utilities: Annotated[dict[str, float], Field(min_length=1)]
    validation: ValidationSet | None = None


@dataclass(frozen=True)
class Utilities:
    """A utility for every model of a portfolio, and the provenance of any weights chosen by them."""

    values: tuple[float, ...]
    provenance: Provenance
    source: str
    validation: Validation | None = None

    @classmethod
    def stated(cls, portfolio: Portfolio, given: Mapping[str, float]) -> Utilities:
        """Utilities that the user states without having looked at the models."""
        return cls(_complete(portfolio, given), "a-priori", "stated beforehand")

    @classmethod
    def of(cls, portfolio: Portfolio, given: Utilities | Mapping[str, float] | None) -> Utilities | None:
        """Utilities in any form; plain numbers count as stated beforehand."""
        return given if given is None or isinstance(given, Utilities) else cls.stated(portfolio, given)

    @classmethod
    def parse(cls, portfolio: Portfolio, text: str) -> Utilities:
        """`a=0.93,b=0.91`, or the path of a file of measured utilities."""
        if "=" not in text:
            return cls.load(portfolio, Path(text))
        return cls.stated(portfolio, named_numbers(text, "utility", UtilityError))

    @classmethod
    def load(cls, portfolio: Portfolio, path: Path) -> Utilities:
        """Read a file of measured utilities; what it says about the measurement decides the provenance."""
        hint = "give utilities as name=value,… or as a file of measured ones"
        measured = load_strict(MeasuredUtilities, path, UtilityError, hint)
        looked = measured.models == "private"
        whose = "the private models" if looked else "stand-ins"
        source = f"measured on {measured.measured_on!r} with {whose}"
        values = _complete(portfolio, measured.utilities)
        if measured.validation is None:
            return cls(values, "after-looking" if looked else "a-priori", source)
        if not looked:
            raise UtilityError(
                f"{path}: a private validation set together with stand-ins is not covered; measure stand-ins on public data"
            )
        if not all(0 <= value <= 1 for value in values):
            raise UtilityError(f"{path}: scores on a private validation set are fractions of right answers, in [0, 1]")
        validation = measured.validation.described
        if validation.exact(values) is None:
            raise UtilityError(
                f"{path}: scores on a private validation set are whole numbers of right answers divided by "
                f"{validation.divisor}, with all their digits; these are not"
            )
        return cls(values, "private-validation", f"{source}: private, not shown", validation)

    def claimed(self, provenance: Provenance | None) -> Utilities:
        """The same under a stated provenance: a stricter one is the user's choice, a laxer one is refused."""
        if provenance is None or provenance == self.provenance:
            return self
        if provenance == "private-validation":
            raise UtilityError(
                "private-validation needs a file of measured utilities that describes the set: its `validation` field"
            )
        if provenance == "a-priori" or self.provenance == "private-validation":
            raise UtilityError(
                f"these utilities were {self.source}, so weights chosen by them are not {provenance}: what may be claimed "
                f"is {self.provenance}. State utilities beforehand, or measure them on stand-ins trained on public data"
            )
        return replace(self, provenance=provenance)

    @classmethod
    def asked(cls, portfolio: Portfolio, text: str | None, provenance: Provenance | None) -> Utilities | None:
        """Utilities under a claimed provenance; none if none are given."""
        if text is not None:
            return cls.parse(portfolio, text).claimed(provenance)
        if provenance not in (None, "a-priori"):
            raise UtilityError(f"provenance {provenance!r} is about utilities, and none are given")
        return None

    @classmethod
    def less_private_is_more_useful(cls, portfolio: Portfolio, epsilons: Mapping[str, float]) -> Utilities:
        """Without any utilities: a model's own ε, squashed to [0, 1), says how useful it is."""
        values = tuple(1 - 1 / (1 + epsilons[name]) for name in portfolio.names)
        return cls(values, "a-priori", "less private is more useful")


def _complete(portfolio: Portfolio, given: Mapping[str, float]) -> tuple[float, ...]:
    portfolio.require_names(given, UtilityError)
    for name, value in given.items():
        if not math.isfinite(value):
            raise UtilityError(f"the utility of {name!r} is {value}; it must be finite")
    missing = [name for name in portfolio.names if name not in given]
    if missing:
        raise UtilityError(f"no utility for model {missing[0]!r}; every model of the portfolio needs one")
    return tuple(float(given[name]) for name in portfolio.names)
