"""What goes over the wire: requests that refuse what they do not know, and answers. Where an ε is null, none is finite."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Rule = Literal["selection", "combination", "joint"]
By = Literal["best", "pld", "rdp", "gdp"]
# Proved, under an assumption that fails in general, covered by no theorem, or without a finite ε.
Standing = Literal["proved", "conditional", "refused", "none"]
SMALLEST_DELTA = 1e-100  # accounting is right down to here (docs/architecture.md); a fraction of a smaller δ may vanish
Epsilon = Annotated[float, Field(ge=0, le=1e6, description="ε")]
Delta = Annotated[float, Field(ge=SMALLEST_DELTA, lt=1, description="δ")]
AnyDelta = Annotated[bool, Field(description="take also a δ above 0.01")]
# The name of a release: one folder in the releases' own, never a path.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME, description="a new name: letters, digits, - and _, at most 64")]
WeightsByName = Annotated[dict[str, float], Field(min_length=1, max_length=1000, description="must sum to 1")]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AccountRequest(_Asked):
    """A merge, and either δ (to learn ε) or ε (to learn δ)."""

    rule: Rule
    weights: WeightsByName
    delta: Annotated[float, Field(ge=SMALLEST_DELTA)] | None = None
    epsilon: Annotated[float, Field(le=1e6)] | None = None
    by: By = "best"
    assume_smoothness: Annotated[float, Field(ge=0)] | None = None
    provenance: Literal["a-priori", "after-looking"] | None = None
    any_delta: AnyDelta = False


class PlanRequest(_Asked):
    """A target. `full` searches at the target itself, as a job; `quick` answers from plans made beforehand."""

    epsilon: Epsilon
    delta: Delta = 1e-5
    effort: Literal["quick", "full"] = "quick"
    any_delta: AnyDelta = False


class FrontierRequest(_Asked):
    """Targets for a frontier at one δ, and how many combinations to try on each edge."""

    delta: Delta = 1e-5
    epsilons: Annotated[list[Epsilon], Field(min_length=1, max_length=200)]
    points: Annotated[int, Field(ge=1, le=100)] = 15
    any_delta: AnyDelta = False


class ReleaseRequest(_Asked):
    """What to release, and under which name: exactly these weights; with ε, refused if they do not meet it."""

    name: Name
    rule: Rule
    weights: WeightsByName
    delta: Delta
    epsilon: Epsilon | None = None
    provenance: Literal["a-priori", "after-looking"] | None = None
    depends_on_releases: bool = False
    assume_smoothness: Annotated[float, Field(ge=0)] | None = None
    any_delta: AnyDelta = False


class VerifyRequest(_Asked):
    """The name of a release."""

    name: Name


class Problem(_Told):
    """An error (RFC 9457), with the text that the command line prints."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Sampling(_Told):
    """How batches were drawn."""

    scheme: str
    rate: float | None


class ModelCard(_Told):
    """One model of the portfolio."""

    name: str
    kind: str
    run: str
    steps: int | None
    noise_multiplier: float | None
    sampling: Sampling | None
    utility: float | None
    epsilon: Annotated[dict[Literal["pld", "rdp"], float | None], Field(description="by each accountant that applies")]
    standing: Standing
    warnings: list[str]


class PortfolioAnswer(_Told):
    """The portfolio, and what this server allows."""

    dataset: str
    adjacency: str
    delta: float
    provenance: str
    utilities_source: str
    models: list[ModelCard]
    may_release: bool
    has_ledger: bool


class GuaranteeAnswer(_Told):
    """A guarantee as a sentence (`claim`: without its assumptions), and its fields."""

    claim: str
    sentence: str
    epsilon: float | None
    delta: float
    adjacency: str
    standing: Standing
    rule: str
    theorem: str
    theorem_title: str
    theorem_source: str
    by: str
    conversion: str | None
    weights: dict[str, float]
    assumptions: list[str]
    warnings: list[str]
    details: dict[str, Any]


class OptionAnswer(_Told):
    """One way to release something."""

    rule: str
    by: str
    weights: dict[str, float]
    epsilon: float | None
    delta: float
    standing: Standing
    theorem: str
    theorem_title: str | None
    claim: str
    sentence: str
    expected_utility: float | None
    utility_kind: str
    feasible: bool
    why: str
    assumptions: list[str]
    warnings: list[str]
    details: dict[str, Any]


class TargetAnswer(_Told):
    """What was asked for."""

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
    standings: list[Standing | Literal["pending"]]


class SimplexAnswer(_Told):
    """ε over the weights of two or three models; asked again, more points are known. Nothing is said between the points."""

    delta: float
    models: list[str]
    step: float
    points: list[list[float]]
    rules: dict[Literal["selection", "combination"], GridAnswer]
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
    """One line of the ledger."""

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
    """A release that this server can verify."""

    name: str
    entry: int | None


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
    """The budget of the ledger."""

    dataset: str
    adjacency: str
    budget: TargetAnswer
    spent: Spent
    releases: int
    warnings: list[str]
    counted: list[str]
    fits: Fits | None


class ReleasesAnswer(_Told):
    """History: what the ledger says, and the folders that can be verified."""

    entries: list[EntryAnswer]
    folders: list[ReleaseFolder]
    may_release: bool


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
    """The server answers."""

    status: Literal["ok"]
    version: str
