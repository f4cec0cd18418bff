"""Answers of the HTTP API. A null ε means no finite ε."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpmerge.records import Sampling
from dpmerge.rules import GridRule, MixtureAccountant, ShownStanding


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Answer):
    """An error (RFC 9457) with the library's message."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ModelCard(_Answer):
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


class PortfolioAnswer(_Answer):
    """What is known without computing anything; `models` are names, `delta` is the one to begin with."""

    dataset: str
    adjacency: str
    delta: float
    provenance: str
    models: list[str]
    may_release: bool
    has_ledger: bool
    glossary: dict[str, str]


class ModelsAnswer(_Answer):
    delta: float
    models: list[ModelCard]


class _Guaranteed(_Answer):
    """`sentence` is `claim` with its assumptions. Without a finite ε, both give the reason."""

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
    plain_assumptions: Annotated[list[str], Field(description="the same in plain words, one for each")]
    warnings: list[str]
    details: dict[str, Any]


class GuaranteeAnswer(_Guaranteed):
    adjacency: str
    conversion: str | None


class OptionAnswer(_Guaranteed):
    """`noise` is added at release; `predicted_deviation` is what training and release leave in a parameter."""

    noise: float
    expected_utility: float | None
    utility_kind: str
    predicted_deviation: float | None
    feasible: bool
    why: str


class TargetAnswer(_Answer):
    epsilon: float
    delta: float


class Warming(_Answer):
    """Progress of the precomputed plans: better weights may be found until `done` equals `total`."""

    done: int
    total: int


class PlanAnswer(_Answer):
    """The options for a target, best first; `best` is the index of the first that meets the target, `aloud` tells it."""

    target: TargetAnswer
    aloud: list[str]
    provenance: str
    utilities_source: str
    why_no_noise: str
    best: int | None
    options: list[OptionAnswer]
    warming: Warming


class LinePoint(_Answer):
    """One known release that nothing known beats."""

    epsilon: float
    rule: str
    standing: ShownStanding
    weights: dict[str, float]
    noise: float
    expected_utility: float
    utility_kind: str
    predicted_deviation: float | None


class LineAnswer(_Answer):
    """The best known at every ε, from private to useful. Each point has its own guarantee; later calls return more points."""

    delta: float
    range: Annotated[list[float], Field(min_length=2, max_length=2)]
    worst: Annotated[float, Field(description="the least utility of a model")]
    points: list[LinePoint]
    done: Annotated[int, Field(description="points with noise that have a bound")]
    refined: Annotated[int, Field(description="those that have more than a quick bound")]
    total: int


class GridAnswer(_Answer):
    """One rule at every point of the grid. ε is null if it is pending, refused or not finite; `standings` tells which."""

    epsilons: list[float | None]
    standings: list[ShownStanding | Literal["pending"]]


class SimplexAnswer(_Answer):
    """ε on a grid over the weights of two or three models. Later calls return more points. Nothing is interpolated."""

    delta: float
    models: list[str]
    step: float
    points: list[list[float]]
    rules: dict[GridRule, GridAnswer]
    done: int
    total: int


class JobAnswer(_Answer):
    """A job. Its events are at `/v1/jobs/{id}/events`, its result at `/v1/jobs/{id}`."""

    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled"]
    label: str
    done: int
    total: int | None
    problem: str | None
    result: PlanAnswer | ReleasedAnswer | VerdictAnswer | dict[str, Any] | None = None


class EntryAnswer(_Answer):
    """One ledger entry. An entry that completes, recovers or voids a release gives that release's number in `of`."""

    number: int
    kind: str
    at: str
    of: int | None
    name: str | None
    rule: str | None
    models: list[str]
    own: list[TargetAnswer]
    total: TargetAnswer | None
    noise: float
    recipient: str | None
    hash: str


class ReleaseFolder(_Answer):
    """A release that this server can verify, and the number of its ledger entry."""

    name: str
    entry: int | None


class ReleasesAnswer(_Answer):
    entries: list[EntryAnswer]
    folders: list[ReleaseFolder]
    may_release: bool


class Spent(_Answer):
    """The guarantee of all releases together."""

    epsilon: float | None
    standing: str
    theorem: str | None
    assumptions: list[str]


class Fits(_Answer):
    """Models of this portfolio that still fit the budget."""

    alone: list[str]
    in_selection_with: str | None
    largest_probability: dict[str, float]
    text: list[str]


class BudgetAnswer(_Answer):
    dataset: str
    adjacency: str
    budget: TargetAnswer
    spent: Spent
    releases: int
    warnings: list[str]
    counted: list[str]
    fits: Fits | None


class ReleasePreview(_Answer):
    """What a release would write and spend. A draw also writes the drawn model's files; without a ledger `fits` is null.

    `after` says what the budget allows after it.
    """

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
    noise: float
    after: list[str]
    notes: list[str]


class ReleasedAnswer(_Answer):
    """A finished release: the result of its job."""

    name: str
    certificate: dict[str, Any]
    notes: list[str]


class VerdictAnswer(_Answer):
    """A finished recheck: the result of its job. `code` 0: valid, 1: not valid, 2: could not be checked."""

    name: str
    code: Literal[0, 1, 2]
    sentence: str
    holds: list[str]
    broken: list[str]
    unchecked: list[str]
    warnings: list[str]
    uncovered: list[str]
    certified: str
    assumptions: list[str]
    epsilon: float | None
    delta: float | None
    standing: str
    granted: list[str]
    left_out: list[str]


class Health(_Answer):
    status: Literal["ok"]
    version: str
