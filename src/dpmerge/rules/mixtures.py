"""Bounds on a draw among profiles whose index is published, and on the worst of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpmerge.profiles import Conversion, Profile, mixture_delta_by_renyi, mixture_epsilon, mixture_epsilon_by_renyi
from dpmerge.rules.guarantee import MIXTURE_ACCOUNTANTS, Accountant, Bound, ProfileBound


@dataclass(frozen=True)
class SelectionBound(Bound):
    """Telling which model was drawn is covered too: for fixed neighbours these are equalities for the pair (I, θ_I)."""

    parts: Sequence[tuple[float, Profile]]

    def accountants(self) -> tuple[Accountant, ...]:
        """GDP if every model is exactly GDP (then the loss distribution is in closed form)."""
        if all(part.mu is not None for _, part in self.parts):
            return ("gdp", *MIXTURE_ACCOUNTANTS)
        return MIXTURE_ACCOUNTANTS

    def epsilon(self, delta: float, by: Accountant, conversion: Conversion) -> float:
        if by == "rdp":
            return mixture_epsilon_by_renyi(self.parts, delta, conversion)
        return mixture_epsilon(self.parts, delta)

    def delta(self, epsilon: float, by: Accountant, conversion: Conversion) -> float:
        """δ at ε: sums per direction, then the larger."""
        if by == "rdp":
            return mixture_delta_by_renyi(self.parts, epsilon, conversion)
        values = [(weight, part.delta(epsilon)) for weight, part in self.parts]
        return min(1.0, max(sum(weight * pair[k] for weight, pair in values) for k in (0, 1)))


@dataclass(frozen=True)
class WorstBound(Bound):
    """The largest of several draws."""

    draws: Sequence[SelectionBound]

    def accountants(self) -> tuple[Accountant, ...]:
        """Those that apply to every profile."""
        known = [ProfileBound(profile).accountants() for draw in self.draws for _, profile in draw.parts]
        order: tuple[Accountant, ...] = ("gdp", *MIXTURE_ACCOUNTANTS)
        return tuple(name for name in order if all(name in one for one in known))

    def epsilon(self, delta: float, by: Accountant, conversion: Conversion) -> float:
        return max(draw.epsilon(delta, by, conversion) for draw in self.draws)

    def delta(self, epsilon: float, by: Accountant, conversion: Conversion) -> float:
        return max(draw.delta(epsilon, by, conversion) for draw in self.draws)
