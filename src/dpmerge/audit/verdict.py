"""A measured lower bound beside a claim: exceeded, or how near the attack came."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmerge.audit.game import Claim, ClaimStanding
from dpmerge.errors import TargetError
from dpmerge.rules import round_down

_DELTAS = 25  # where a claim that is a curve is looked at
_LARGEST = 0.5


@dataclass(frozen=True)
class Comparison:
    delta: float
    claimed: float
    measured: float

    @property
    def share(self) -> float:
        """How much of the claim was reached; above 1 it is exceeded."""
        if self.claimed == 0:
            return math.inf if self.measured > 0 else 0.0
        return self.measured / self.claimed


@dataclass(frozen=True)
class Finding:
    """What the audit says about one claim: at its δ, along the curve if the claim is one, and in μ if it is about μ."""

    claim: str
    standing: ClaimStanding
    curve: tuple[Comparison, ...]  # from the audit's δ on; the limits of the rates hold for every δ at once
    mu_claimed: float | None
    mu_measured: float | None

    @property
    def at(self) -> Comparison:
        """At the audit's δ."""
        return self.curve[0]

    @property
    def nearest(self) -> Comparison:
        """Where the attack came closest, or exceeded most."""
        return max(self.curve, key=lambda one: one.share)

    @property
    def mu_share(self) -> float | None:
        if self.mu_claimed is None or self.mu_measured is None:
            return None
        return Comparison(0.0, self.mu_claimed, self.mu_measured).share

    @property
    def exceeded(self) -> bool:
        """Whether the claim is false, at the audit's confidence."""
        return self.nearest.share > 1 or (self.mu_share or 0.0) > 1

    @property
    def verdict(self) -> str:
        return self._held() if not self.exceeded else self._broken()

    def _broken(self) -> str:
        worst = self.at if self.at.share > 1 else self.nearest
        if worst.share > 1:
            return f"exceeded: ε ≥ {round_down(worst.measured)} at δ = {worst.delta:.4g}, claimed {worst.claimed:.4g}"
        return f"exceeded: not μ-GDP for any μ below {round_down(self.mu_measured or 0.0)}, claimed {self.mu_claimed:.4g}"

    def _held(self) -> str:
        shares = [f"{_percent(self.at.share)} of ε"]
        if _percent(self.nearest.share) != _percent(self.at.share):
            shares.append(f"{_percent(self.nearest.share)} at δ = {self.nearest.delta:.2g}")
        if self.mu_share is not None:
            shares.append(f"{_percent(self.mu_share)} of μ")
        return f"{'not exceeded' if self.standing == 'refuted' else 'holds'}: the attack comes to {', '.join(shares)}"


@dataclass(frozen=True)
class Stated:
    """A claim with its numbers, at the audit's δ and along its curve if it is one: what is to be attacked."""

    claim: Claim
    numbers: tuple[tuple[float, float], ...]  # δ and the claimed ε there; the audit's δ first

    @classmethod
    def of(cls, claim: Claim, delta: float, along: bool) -> Stated:
        """Ask the claim at this δ, or `along` larger ones too."""
        deltas = [delta]
        if along and callable(claim.epsilon) and delta < _LARGEST:
            deltas += [float(value) for value in np.geomspace(delta, _LARGEST, _DELTAS)[1:]]
        numbers = tuple((one, claim.at(one)) for one in deltas)
        for one, epsilon in numbers:
            if not epsilon >= 0:
                raise TargetError(
                    f"claim {claim.label!r}: ε is {epsilon} at δ = {one:.4g}; it must be a number and not negative"
                )
        return cls(claim, numbers)

    def against(self, measured: Callable[[float], float], mu: float | None) -> Finding:
        """Beside what was measured: ε as a function of δ, and μ."""
        curve = tuple(Comparison(delta, epsilon, measured(delta)) for delta, epsilon in self.numbers)
        return Finding(self.claim.label, self.claim.standing, curve, self.claim.mu, mu)


def _percent(share: float) -> str:
    """Rounded down: what is not exceeded is never said to be reached."""
    return f"{math.floor(100 * share)} %"
