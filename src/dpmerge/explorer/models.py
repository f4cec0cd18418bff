"""HTTP requests, which reject unknown fields, and answers. A null ε means no finite ε."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpmerge.planning import Option
from dpmerge.records import Sampling
from dpmerge.rules import THEOREMS, By, Guarantee, Looked

Rule = Literal["selection", "combination", "joint"]  # tempered selection needs κ, which this API does not support
# In order: proved; proved under an assumption that may fail; covered by no theorem; no finite ε.
Standing = Literal["proved", "conditional", "refused", "none"]
SMALLEST_DELTA = 1e-100  # accounting is valid down to here (docs/architecture.md); a fraction of a smaller δ may underflow
Epsilon = Annotated[float, Field(ge=0, le=1e6, description="ε")]
Delta = Annotated[float, Field(ge=SMALLEST_DELTA, lt=1, description="δ")]
# The name of a release: a folder name, never a path.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME, description="a new name: letters, digits, - and _, at most 64")]
_NOTHING = "no finite ε at this δ: nothing is guaranteed"


# --- requests ---------------------------------------------------------------------------------------------------------------


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _RequestAtDelta(_Request):
    any_delta: Annotated[bool, Field(description="accept a δ above 0.01")] = False


class _Merge(_RequestAtDelta):
    rule: Rule
    weights: Annotated[dict[str, float], Field(min_length=1, max_length=1000, description="must sum to 1")]
    assume_smoothness: Annotated[float, Field(ge=0)] | None = None
    provenance: Looked | None = None


class AccountRequest(_Merge):
    """A merge, and either δ (the answer is ε) or ε (the answer is δ)."""

    delta: Annotated[float, Field(ge=SMALLEST_DELTA)] | None = None
    epsilon: Annotated[float, Field(le=1e6)] | None = None
    by: By = "best"


class PlanRequest(_RequestAtDelta):
    """A target. `full` starts a job that searches at this target; `quick` answers from precomputed plans."""

    epsilon: Epsilon
    delta: Delta = 1e-5
    effort: Literal["quick", "full"] = "quick"


class FrontierRequest(_RequestAtDelta):
    """Targets for a frontier at one δ, and how many combinations to try on each edge."""

    delta: Delta = 1e-5
    epsilons: Annotated[list[Epsilon], Field(min_length=1, max_length=200)]
    points: Annotated[int, Field(ge=1, le=100)] = 15


class ReleaseRequest(_Merge):
    """A release with exactly these weights. If ε is given and not met, the release is refused."""

    name: Name
    delta: Delta
    epsilon: Epsilon | None = None
    depends_on_releases: bool = False


class VerifyRequest(_Request):
    name: Name


# --- answers ----------------------------------------------------------------------------------------------------------------


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
    epsilon: Annotated[dict[Literal["pld", "rdp"], float | None], Field(description="by each accountant that applies")]
    standing: Standing
    warnings: list[str]


class PortfolioAnswer(_Answer):
    dataset: str
    adjacency: str
    delta: float
    provenance: str
    utilities_source: str
    models: list[ModelCard]
    may_release: bool
    has_ledger: bool


class _Guaranteed(_Answer):
    """`sentence` is `claim` with its assumptions. Without a finite ε, both give the reason."""

    claim: str
    sentence: str
    epsilon: float | None
    delta: float
    standing: Standing
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


class TargetAnswer(_Answer):
    epsilon: float
    delta: float


class Warming(_Answer):
    """Progress of the precomputed plans: better weights may be found until `done` equals `total`."""

    done: int
    total: int


class PlanAnswer(_Answer):
    """The options for a target, best first; `best` is the index of the first that meets the target."""

    target: TargetAnswer
    provenance: str
    utilities_source: str
    best: int | None
    options: list[OptionAnswer]
    warming: Warming


class GridAnswer(_Answer):
    """One rule at every point of the grid. ε is null if it is pending, refused or not finite; `standings` tells which."""

    epsilons: list[float | None]
    standings: list[Standing | Literal["pending"]]


class SimplexAnswer(_Answer):
    """ε over the weights of two or three models; later calls return more points; no interpolation."""

    delta: float
    models: list[str]
    step: float
    points: list[list[float]]
    rules: dict[Literal["selection", "combination"], GridAnswer]
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


class FigureAnswer(_Answer):
    """A plotly.js figure."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


class EntryAnswer(_Answer):
    """One ledger entry. An entry that completes, recovers or voids a release gives its number in `of`."""

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


class ReleaseFolder(_Answer):
    """A release that this server can verify, and its ledger entry."""

    name: str
    entry: int | None


class ReleasesAnswer(_Answer):
    entries: list[EntryAnswer]
    folders: list[ReleaseFolder]
    may_release: bool


class Spent(_Answer):
    """The guarantee of all releases together."""

    epsilon: float | None
    delta_at_budget_epsilon: float
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
    """What a release would write and spend. A draw also writes the drawn model's files; `fits` is null without a ledger."""

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


class Health(_Answer):
    status: Literal["ok"]
    version: str


# --- library objects as answers ---------------------------------------------------------------------------------------------


def standing_of(found: Guarantee | None) -> Standing:
    """The standing of a guarantee: "none" if ε is infinite, even if proved."""
    if found is None:
        return "refused"
    return found.standing if math.isfinite(found.epsilon) else "none"


def guarantee_answer(found: Guarantee) -> dict[str, Any]:
    because = found.details.get("joint_because")
    return {**found.as_dict(), **_words(found, f"{_NOTHING} ({because})" if because else _NOTHING)}


def option_answer(option: Option) -> dict[str, Any]:
    return {**option.as_dict(), **_words(option.guarantee, option.why or _NOTHING)}


def _words(found: Guarantee | None, otherwise: str) -> dict[str, Any]:
    theorem = None if found is None else THEOREMS[found.theorem]
    finite = found is not None and math.isfinite(found.epsilon)
    return {
        "standing": standing_of(found),
        "claim": found.claim if found is not None and finite else otherwise,
        "sentence": str(found) if finite else otherwise,
        "theorem_title": theorem and theorem.title,
        "theorem_source": theorem and theorem.source,
    }
