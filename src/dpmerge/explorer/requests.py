"""Requests of the HTTP API. Unknown fields are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpmerge.rules import Accounting, By, Looked, PlainRule

SMALLEST_DELTA = 1e-100  # accounting is valid down to here (docs/architecture.md); a fraction of a smaller δ may underflow
Epsilon = Annotated[float, Field(ge=0, le=1e6, description="ε")]
Delta = Annotated[float, Field(ge=SMALLEST_DELTA, lt=1, description="δ")]
# A release's name is the name of its folder, never a path.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME, description="name of a release: at most 64 letters, digits, - and _")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _RequestAtDelta(_Request):
    any_delta: Annotated[bool, Field(description="accept a δ above 0.01")] = False


class _Merge(_RequestAtDelta):
    rule: PlainRule  # tempered selection needs κ, which this API does not support
    weights: Annotated[dict[str, float], Field(min_length=1, max_length=1000, description="must sum to 1")]
    assume_smoothness: Annotated[float, Field(ge=0)] | None = None
    provenance: Looked | None = None

    def accounting(self, granted: Accounting) -> Accounting:
        """What the server grants, and what this request assumes."""
        return replace(granted, assume_smoothness=self.assume_smoothness, any_delta=self.any_delta)


class AccountRequest(_Merge):
    """A merge, and either δ (the answer is ε) or ε (the answer is δ)."""

    delta: Annotated[float, Field(ge=SMALLEST_DELTA)] | None = None
    epsilon: Annotated[float, Field(le=1e6)] | None = None
    by: By = "best"

    def accounting(self, granted: Accounting) -> Accounting:
        return replace(super().accounting(granted), by=self.by)


class PlanRequest(_RequestAtDelta):
    """A target. `quick` answers from precomputed plans; `exact` finds the noise and the draw for this very target, in a second
    or two; `full` starts a job that searches every rule."""

    epsilon: Epsilon
    delta: Delta = 1e-5
    effort: Literal["quick", "exact", "full"] = "quick"


class FrontierRequest(_RequestAtDelta):
    """Targets for a frontier at one δ, and how many combinations to try on each edge."""

    delta: Delta = 1e-5
    epsilons: Annotated[list[Epsilon], Field(min_length=1, max_length=200)]
    points: Annotated[int, Field(ge=1, le=100)] | None = None


class ReleaseRequest(_Merge):
    """A release with exactly these weights, and this noise on an average. If ε is given and not met, the release is refused."""

    name: Name
    delta: Delta
    epsilon: Epsilon | None = None
    noise: Annotated[float, Field(ge=0, le=1e300, description="standard deviation, for each parameter")] = 0.0
    recipient: Annotated[str, Field(min_length=1, max_length=200, description="noted in certificate and ledger")] | None = None
    depends_on_releases: bool = False


class VerifyRequest(_Request):
    name: Name
