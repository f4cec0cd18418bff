"""How many runs a private search for hyper-parameters makes: a random number K with a known law.

A law enters the price of tuning through its generating function f(s) = E s^K alone: if a single run
is worse than some outcome with probability s, the best of K runs is with probability f(s) (docs/theory.md §7, "tuning").
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from dpmerge.errors import TargetError
from dpmerge.profiles import FloatArray

DistributionName = Literal["poisson", "geometric", "logarithmic", "tnb"]
_SHAPES: dict[str, float] = {"geometric": 1.0, "logarithmic": 0.0}
_SMALLEST_LOG_GAMMA = -700.0


class Trials(ABC):
    """The law of K. Shares are counted from the best outcome: x is how likely a single run is to be better."""

    mean: float

    @property
    @abstractmethod
    def nothing(self) -> float:
        """The probability of K = 0: no run, hence no model."""

    @abstractmethod
    def log_decay(self, share: FloatArray) -> FloatArray:
        """log f′(1−x) − log f′(1): how much less likely the best run is to be one that a share x of runs beats."""

    @abstractmethod
    def log_mass(self, better: FloatArray, share: FloatArray) -> FloatArray:
        """log (f(1−x) − f(1−x−p)): that the best run is in a set of probability p which only a share x of runs beats."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Poisson(Trials):
    """K ~ Poisson(m): f(s) = e^{m(s−1)}."""

    mean: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean > 0):
            raise TargetError(f"the mean is {self.mean:g}; a Poisson number of trials needs a finite mean above 0")

    @property
    def nothing(self) -> float:
        return math.exp(-self.mean)

    def log_decay(self, share: FloatArray) -> FloatArray:
        return -self.mean * share

    def log_mass(self, better: FloatArray, share: FloatArray) -> FloatArray:
        """−mx + log(1 − e^{−mp})."""
        return np.asarray(-self.mean * better + np.log(-np.expm1(-self.mean * share)))

    def as_dict(self) -> dict[str, Any]:
        return {"distribution": "poisson", "mean": self.mean, "nothing": self.nothing}

    def __str__(self) -> str:
        return f"Poisson with mean {self.mean:g}"


@dataclass(frozen=True)
class TruncatedNegativeBinomial(Trials):
    """K ≥ 1 with shape η > −1 (Papernot and Steinke 2022, Def. 1); geometric for η = 1, logarithmic for η = 0.

    f(s) = ((1−(1−γ)s)^{−η} − 1)/(γ^{−η} − 1), in the limit log(1−(1−γ)s)/log γ for η = 0. The mean is
    η(1−γ)/(γ(1−γ^η)), in the limit (1/γ−1)/log(1/γ), which falls from ∞ to 1 as γ rises to 1: it determines γ.
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > -1):
            raise TargetError(f"shape is {self.shape:g}; a truncated negative binomial needs a finite η above −1")
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise TargetError(
                f"the mean is {self.mean:g}; {self._name} trials are at least one, so their mean is finite and at least 1"
            )
        if self._mean(-_SMALLEST_LOG_GAMMA) < self.mean:
            raise TargetError(
                f"no γ above 1e-304 gives shape {self.shape:g} a mean of {self.mean:g} trials; ask for fewer trials, or a "
                "shape further above −1"
            )

    @property
    def _name(self) -> str:
        return {1.0: "geometric", 0.0: "logarithmic"}.get(self.shape, "truncated negative binomial")

    def _mean(self, u: float) -> float:
        """The mean at γ = e^{−u}."""
        if u == 0:
            return 1.0
        return math.expm1(u) / u if self.shape == 0 else self.shape * math.expm1(u) / -math.expm1(-self.shape * u)

    @cached_property
    def log_gamma(self) -> float:
        """log γ from the mean; 0, that is exactly one run, for the mean 1."""
        if self.mean == 1:
            return 0.0
        from scipy.optimize import brentq  # slow to import, and few need it

        return -float(brentq(lambda u: math.log(self._mean(u) / self.mean), 0.0, -_SMALLEST_LOG_GAMMA, xtol=1e-300, rtol=1e-14))

    @property
    def _odds(self) -> float:
        """(1−γ)/γ."""
        return math.expm1(-self.log_gamma)

    @property
    def nothing(self) -> float:
        """0: there is always a run."""
        return 0.0

    def log_decay(self, share: FloatArray) -> FloatArray:
        """−(η+1)·log(1 + x(1−γ)/γ)."""
        return np.asarray(-(self.shape + 1) * np.log1p(share * self._odds))

    def log_mass(self, better: FloatArray, share: FloatArray) -> FloatArray:
        """With z(x) = γ + (1−γ)x: (z(x)^{−η} − z(x+p)^{−η})/(γ^{−η} − 1), written without differences of like numbers."""
        if self.log_gamma == 0:
            return np.log(share)
        before = np.log1p(better * self._odds)
        within = np.log1p(share * self._odds / (1 + better * self._odds))
        if self.shape == 0:
            return np.asarray(np.log(within / -self.log_gamma))
        kept = np.expm1(-self.shape * within) / math.expm1(self.shape * self.log_gamma)
        return np.asarray(-self.shape * before + np.log(kept))

    def as_dict(self) -> dict[str, Any]:
        """Includes γ, which is needed to draw K."""
        gamma = math.exp(self.log_gamma)
        name = self._name if self.shape in _SHAPES.values() else "tnb"
        return {"distribution": name, "mean": self.mean, "shape": self.shape, "gamma": gamma, "nothing": 0.0}

    def __str__(self) -> str:
        shape = "" if self.shape in _SHAPES.values() else f" of shape {self.shape:g}"
        return f"{self._name}{shape} with mean {self.mean:g}, γ = {math.exp(self.log_gamma):.9g}"


def trials(distribution: DistributionName, mean: float, shape: float | None = None) -> Trials:
    if distribution not in get_args(DistributionName):
        raise TargetError(f"distribution is {distribution!r}; there are {', '.join(get_args(DistributionName))}")
    if distribution == "tnb":
        if shape is None:
            raise TargetError("distribution tnb needs a shape: η above −1 (0 is logarithmic, 1 geometric)")
        return TruncatedNegativeBinomial(float(mean), float(shape))
    if shape is not None:
        raise TargetError(f"shape belongs to distribution tnb, not to {distribution}")
    return Poisson(float(mean)) if distribution == "poisson" else TruncatedNegativeBinomial(float(mean), _SHAPES[distribution])
