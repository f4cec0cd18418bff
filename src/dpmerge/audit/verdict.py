"""Compare measured lower bounds with claims: exceeded, or how close the attack came."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmerge.audit.game import Claim, ClaimStanding
from dpmerge.errors import TargetError
from dpmerge.rules import round_down

_DELTAS = 25  # points at which a claimed curve is compared
_LARGEST = 0.5


@dataclass(frozen=True)
class Comparison:
    delta: float
    claimed: float
    measured: float

    @property
    def share(self) -> float:
        """Measured divided by claimed; above 1, the claim is exceeded."""
        if self.claimed == 0:
            return math.inf if self.measured > 0 else 0.0
        return self.measured / self.claimed


@dataclass(frozen=True)
class Finding:
    """The comparison with one claim: at the audit's δ, along the curve if the claim is a curve, and in μ if it states μ."""

    claim: str
    standing: ClaimStanding
    curve: tuple[Comparison, ...]  # the audit's δ first; the rates' limits hold for all δ jointly
    mu_claimed: float | None
    mu_measured: float | None

    @property
    def at(self) -> Comparison:
        """At the audit's δ."""
        return self.curve[0]

    @property
    def nearest(self) -> Comparison:
        """Where the attack came closest to the claim, or exceeded it most."""
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
    """A claim as numbers: at the audit's δ, and along its curve if it is a curve."""

    claim: Claim
    numbers: tuple[tuple[float, float], ...]  # δ and the claimed ε there; the audit's δ first

    @classmethod
    def of(cls, claim: Claim, delta: float, along: bool) -> Stated:
        """Evaluate the claim at this δ and, with `along`, at larger ones."""
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
        """Compare with the measured ε, a function of δ, and with the measured μ."""
        curve = tuple(Comparison(delta, epsilon, measured(delta)) for delta, epsilon in self.numbers)
        return Finding(self.claim.label, self.claim.standing, curve, self.claim.mu, mu)


def _percent(share: float) -> str:
    """Rounded down, so 100 % appears only if reached."""
    return f"{math.floor(100 * share)} %"
