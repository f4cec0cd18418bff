"""What is answered over the wire. Where an ε is null, none is finite."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpmerge.records import Sampling
from dpmerge.rules import GridRule, MixtureAccountant, ShownStanding


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Told):
    """An error (RFC 9457) with the library's text."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ModelCard(_Told):
    name: str
    kind: str
    run: str
    steps: int | None
    noise_multiplier: float | None
    sampling: Sampling | None
    utility: float | None
    epsilon: Annotated[dict[MixtureAccountant, float | None], Field(description="by each accountant that applies")]
    standing: ShownStanding
    warnings: list[str]


class PortfolioAnswer(_Told):
    dataset: str
    adjacency: str
    delta: float
    provenance: str
    utilities_source: str
    models: list[ModelCard]
    may_release: bool
    has_ledger: bool


class _Guaranteed(_Told):
    """`sentence` is `claim` with its assumptions. Without a finite ε both say why there is none."""

    claim: str
    sentence: str
    epsilon: float | None
    delta: float
    standing: ShownStanding
    rule: str
    by: str
    weights: dict[str, float]
    theorem: str
    theorem_title: str | None
    theorem_source: str | None
    assumptions: list[str]
    warnings: list[str]
    details: dict[str, Any]


class GuaranteeAnswer(_Guaranteed):
    adjacency: str
    conversion: str | None


class OptionAnswer(_Guaranteed):
    expected_utility: float | None
    utility_kind: str
    feasible: bool
    why: str


class TargetAnswer(_Told):
    epsilon: float
    delta: float


class Warming(_Told):
    """How many of the plans made beforehand are there: until all are, better weights may turn up."""

    done: int
    total: int


class PlanAnswer(_Told):
    """The options for a target, best first; `best` is the index of the first that fits."""

    target: TargetAnswer
    provenance: str
    utilities_source: str
    best: int | None
    options: list[OptionAnswer]
    warming: Warming


class GridAnswer(_Told):
    """One rule at every point of the grid: ε, null where it is not known or none is finite, and how it stands."""

    epsilons: list[float | None]
    standings: list[ShownStanding | Literal["pending"]]


class SimplexAnswer(_Told):
    """ε over the weights of two or three models; asked again, more points are known. Nothing is said between the points."""

    delta: float
    models: list[str]
    step: float
    points: list[list[float]]
    rules: dict[GridRule, GridAnswer]
    done: int
    total: int


class JobAnswer(_Told):
    """A job: follow it at `/v1/jobs/{id}/events`, fetch its result at `/v1/jobs/{id}`."""

    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled"]
    label: str
    done: int
    total: int | None
    problem: str | None
    result: PlanAnswer | ReleasedAnswer | VerdictAnswer | dict[str, Any] | None = None


class FigureAnswer(_Told):
    """What plotly.js draws."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


class EntryAnswer(_Told):
    """One entry of the ledger; `of` is the number of the release that it ends."""

    number: int
    kind: str
    at: str
    of: int | None
    name: str | None
    rule: str | None
    models: list[str]
    own: list[TargetAnswer]
    total: TargetAnswer | None
    hash: str


class ReleaseFolder(_Told):
    """A release that this server can verify, and its entry in the ledger."""

    name: str
    entry: int | None


class ReleasesAnswer(_Told):
    entries: list[EntryAnswer]
    folders: list[ReleaseFolder]
    may_release: bool


class Spent(_Told):
    """What all releases together guarantee."""

    epsilon: float | None
    delta_at_budget_epsilon: float
    standing: str
    theorem: str | None
    assumptions: list[str]


class Fits(_Told):
    """What of this portfolio may still be released."""

    alone: list[str]
    in_selection_with: str | None
    largest_probability: dict[str, float]
    text: list[str]


class BudgetAnswer(_Told):
    dataset: str
    adjacency: str
    budget: TargetAnswer
    spent: Spent
    releases: int
    warnings: list[str]
    counted: list[str]
    fits: Fits | None


class ReleasePreview(_Told):
    """What a release would write and spend. A draw also writes the files of one model; `fits` is null without a ledger."""

    name: str
    weights: dict[str, float]
    provenance: str
    guarantee: GuaranteeAnswer
    files: list[str]
    files_if_drawn: dict[str, list[str]]
    keeps_openings: bool
    budget: TargetAnswer | None
    total: TargetAnswer | None
    fits: bool | None
    notes: list[str]


class ReleasedAnswer(_Told):
    """What a release left: the result of its job."""

    name: str
    certificate: dict[str, Any]
    notes: list[str]


class VerdictAnswer(_Told):
    """A recheck, the result of its job. `code` 0: it holds, 1: it does not, 2: it could not be checked."""

    name: str
    code: Literal[0, 1, 2]
    sentence: str
    holds: list[str]
    broken: list[str]
    unchecked: list[str]
    warnings: list[str]


class Health(_Told):
    status: Literal["ok"]
    version: str
