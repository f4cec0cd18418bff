"""Options that several verbs share, and how they become library arguments."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from dpmerge.profiles import ShuffleAsPoisson


class RuleName(StrEnum):
    """Merge rules."""

    selection = "selection"
    combination = "combination"
    joint = "joint"


class PlanRuleName(StrEnum):
    """What a plan can offer."""

    selection = "selection"
    combination = "combination"
    joint = "joint"
    tempered = "tempered"
    single = "single"


class AdjacencyName(StrEnum):
    """Which datasets are neighbours."""

    add_remove = "add-remove"
    replace_one = "replace-one"
    zero_out = "zero-out"


class ProvenanceName(StrEnum):
    """Who chose the weights, and by what."""

    a_priori = "a-priori"
    after_looking = "after-looking"
    private_validation = "private-validation"


class LookedName(StrEnum):
    """Whether what is merged was chosen by looking at the models."""

    a_priori = "a-priori"
    after_looking = "after-looking"


class ByName(StrEnum):
    """Accountants."""

    best = "best"
    pld = "pld"
    rdp = "rdp"
    gdp = "gdp"


class ConversionName(StrEnum):
    """RDP to (ε, δ) conversions."""

    tight = "tight"
    paper = "paper"


PortfolioArgument = Annotated[
    Path, typer.Argument(help="A folder; each sub-folder is a model with a record.json.", show_default=False)
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        help="name=value, separated by commas: a=0.2,b=0.8 (or a=1/3,…). Must sum to 1; a model not named has weight 0.",
        show_default=False,
    ),
]
DeltaOption = Annotated[float | None, typer.Option("--delta", help="Ask for ε at this δ.", show_default=False)]
AnyDeltaOption = Annotated[
    bool, typer.Option("--any-delta", help="Take also a δ above 0.01, at which a record may be lost with that probability.")
]
EpsilonOption = Annotated[float | None, typer.Option("--epsilon", help="Ask for δ at this ε.", show_default=False)]
ByOption = Annotated[
    ByName,
    typer.Option("--by", help="Accountant: privacy loss distribution, Rényi, Gaussian, or the best that applies."),
]
ConversionOption = Annotated[
    ConversionName, typer.Option("--conversion", help="From Rényi to (ε, δ): the tight one, or the papers'.")
]
SmoothnessOption = Annotated[
    float | None,
    typer.Option(
        "--assume-smoothness",
        help="Assume this Lipschitz constant of the gradients for every run; 0 gives the papers' formula. Conditional.",
        show_default=False,
    ),
]
ShuffleOption = Annotated[
    bool,
    typer.Option(
        "--treat-shuffle-as-poisson",
        help="Account shuffled batches as Poisson ones. The guarantee becomes conditional.",
    ),
]
ShuffleRateOption = Annotated[
    float | None,
    typer.Option(
        "--shuffle-rate",
        help="With --treat-shuffle-as-poisson: batch size / dataset size. Without it, no amplification is claimed.",
        show_default=False,
    ),
]
UtilityOption = Annotated[
    str | None,
    typer.Option(
        "--utility",
        help="name=value,… stated beforehand, or a file of measured utilities. Without it, less private is more useful.",
        show_default=False,
    ),
]
ProvenanceOption = Annotated[
    ProvenanceName | None,
    typer.Option(
        "--provenance",
        help="What you claim about the utilities; refused where a file of measured ones says otherwise.",
        show_default=False,
    ),
]
WhoChoseOption = Annotated[
    LookedName | None,
    typer.Option(
        "--provenance",
        help="How the weights were chosen. Joint release counts every model of the portfolio; with a-priori those with weight.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_smoothness(value: float | None) -> float | None:
    """Finite and not negative, if given."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise TargetError(f"--assume-smoothness is {value}; it must be finite and not negative")
    return value


def shuffle_treatment(treat: bool, rate: float | None) -> ShuffleAsPoisson | None:
    """The user's word about shuffled batches."""
    from dpmerge.profiles import ShuffleAsPoisson

    if rate is not None and not treat:
        raise TargetError("--shuffle-rate only has a meaning together with --treat-shuffle-as-poisson")
    if rate is not None and not 0 < rate <= 1:
        raise TargetError(f"--shuffle-rate is {rate}; it must lie in (0, 1]")
    if not treat:
        return None
    return ShuffleAsPoisson(1.0 if rate is None else rate)
