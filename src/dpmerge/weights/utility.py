"""What the models are worth, and how that is known: the guarantee of chosen weights follows from it (docs/theory.md §4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dpmerge.errors import UtilityError
from dpmerge.records import Portfolio
from dpmerge.records.strict import Strict, load_strict, named_numbers

Provenance = Literal["a-priori", "after-looking"]


class MeasuredUtilities(Strict):
    """A file of measured utilities: on what, and on which models.

    `models` is "private" if the portfolio's own models were evaluated, and "stand-ins" if models were that were trained on
    public data in the same way. The first makes every later choice a function of the private models.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    measured_on: Annotated[str, Field(min_length=1)]
    models: Literal["private", "stand-ins"]
    utilities: Annotated[dict[str, float], Field(min_length=1)]


@dataclass(frozen=True)
class Utilities:
    """A utility for every model of a portfolio, and the provenance of any weights chosen by them."""

    values: tuple[float, ...]
    provenance: Provenance
    source: str

    @classmethod
    def stated(cls, portfolio: Portfolio, given: Mapping[str, float]) -> Utilities:
        """Stated beforehand, on the user's word."""
        return cls(_complete(portfolio, given), "a-priori", "stated beforehand")

    @classmethod
    def parse(cls, portfolio: Portfolio, text: str) -> Utilities:
        """`a=0.93,b=0.91`, or the path of a file of measured utilities."""
        if "=" not in text:
            return cls.load(portfolio, Path(text))
        return cls.stated(portfolio, named_numbers(text, "utility", UtilityError))

    @classmethod
    def load(cls, portfolio: Portfolio, path: Path) -> Utilities:
        """Read a file of measured utilities; measured on the private models, they make the choice `after-looking`."""
        hint = "give utilities as name=value,… or as a file of measured ones"
        measured = load_strict(MeasuredUtilities, path, UtilityError, hint)
        looked = measured.models == "private"
        whose = "the private models" if looked else "stand-ins"
        source = f"measured on {measured.measured_on!r} with {whose}"
        return cls(_complete(portfolio, measured.utilities), "after-looking" if looked else "a-priori", source)

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
