"""Random selection: draw one model with probabilities π and release it (M1 Thm 5.1 and 5.2; docs/theory.md §2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpmerge.profiles.arrays import DIRECTIONS, FloatArray
from dpmerge.profiles.profile import Profile, mixture_epsilon
from dpmerge.profiles.renyi import Conversion, best_order, epsilon_from_renyi, log_delta_from_renyi
from dpmerge.profiles.runs import ShuffleAsPoisson, gathered, run_profile
from dpmerge.records import Gaussian, Weights
from dpmerge.rules.guarantee import Accountant, Bound, By, Guarantee, Rule, Target, answer, ask
from dpmerge.rules.mean_estimation import GaussianSelection


@dataclass(frozen=True)
class SelectionBound(Bound):
    """Telling which model was drawn is covered too: for fixed neighbours these are equalities for the pair (I, θ_I)."""

    parts: Sequence[tuple[float, Profile]]

    def accountants(self) -> tuple[Accountant, ...]:
        """GDP if every model is exactly GDP (then the loss distribution is in closed form)."""
        if all(part.mu is not None for _, part in self.parts):
            return ("gdp", "pld", "rdp")
        return ("pld", "rdp")

    def renyi(self, orders: FloatArray) -> FloatArray:
        """log Σ π_i e^{(α−1)ε_α,i} / (α−1), per direction, then the larger."""
        directions = []
        for direction in DIRECTIONS:
            moments = np.stack([part.log_moment(orders, direction) for _, part in self.parts])
            directions.append(logsumexp(moments, axis=0, b=np.array([[weight] for weight, _ in self.parts])))
        return np.asarray(np.maximum(*directions) / (orders - 1))

    @property
    def _stated(self) -> FloatArray | None:
        stated = [part.stated_orders for _, part in self.parts]
        known = [orders for orders in stated if orders is not None]
        return np.unique(np.concatenate(known)) if known else None

    def epsilon(self, delta: float, by: Accountant, conversion: Conversion) -> float:
        """ε at δ."""
        if by != "rdp":
            return mixture_epsilon(self.parts, delta)
        delta -= sum(weight * part.failure for weight, part in self.parts)
        if delta <= 0 or not all(part.is_private for _, part in self.parts):
            return math.inf
        return max(0.0, best_order(lambda a: epsilon_from_renyi(a, self.renyi(a), delta, conversion), self._stated)[1])

    def delta(self, epsilon: float, by: Accountant, conversion: Conversion) -> float:
        """δ at ε: sums per direction, then the larger."""
        if by != "rdp":
            values = [(weight, part.delta(epsilon)) for weight, part in self.parts]
            return min(1.0, max(sum(weight * pair[k] for weight, pair in values) for k in (0, 1)))
        if not all(part.is_private for _, part in self.parts):
            return 1.0
        failure = sum(weight * part.failure for weight, part in self.parts)
        log_delta = best_order(lambda a: log_delta_from_renyi(a, self.renyi(a), epsilon, conversion), self._stated)[1]
        return min(1.0, math.exp(min(log_delta, 0.0)) + failure)


class Selection(Rule):
    """I ~ Cat(π), release θ_I. Works for any mechanisms, correlated checkpoints included."""

    name = "selection"

    def __init__(self, weights: Weights, shuffle: ShuffleAsPoisson | None = None) -> None:
        self.weights = weights
        runs = [(weight, run_profile(model, shuffle)) for model, weight in weights.used]
        self.bound = SelectionBound([(weight, run.profile) for weight, run in runs])
        self._assumptions, self._conditional = gathered(run for _, run in runs)
        mechanisms = [(weight, model.mechanism) for model, weight in weights.used]
        gaussians = [(weight, m) for weight, m in mechanisms if isinstance(m, Gaussian)]
        self._means = GaussianSelection.of(gaussians) if len(gaussians) == len(mechanisms) else None

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        found = ask(self.bound, target, by, conversion)
        theorem = "selection-rdp" if found.by == "rdp" else "selection-pld"
        if self._means is not None and by in ("best", "pld"):
            exact = answer(target, "pld", self._means.epsilon, self._means.delta)
            if exact.size < found.size:
                found, theorem = exact, "mean-estimation-selection"
        return self._build(found, theorem, self._assumptions, self._conditional, conversion)
