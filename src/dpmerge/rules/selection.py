"""Random selection: draw one model with probabilities π and release it (docs/theory.md §2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpmerge.profiles import (
    DIRECTIONS,
    ORDERS,
    Conversion,
    FloatArray,
    Profile,
    ShuffleAsPoisson,
    epsilon_from_renyi,
    gathered,
    mixture_epsilon,
    run_profile,
)
from dpmerge.records import EVERYWHERE, Place, Weights
from dpmerge.rules.guarantee import Answer, Bound, By, Guarantee, MixtureAccountant, Rule, Target, ask
from dpmerge.rules.mixtures import SelectionBound
from dpmerge.rules.shards import PartsOfData
from dpmerge.rules.statements import about_delta


def selection_epsilons(
    profiles: Sequence[Profile],
    weights: FloatArray,
    delta: float,
    by: MixtureAccountant,
    conversion: Conversion = "tight",
) -> FloatArray:
    """ε at δ of many random selections of the same models, one for each row of `weights`: all at once."""
    if by == "rdp":
        return _epsilons_by_renyi(profiles, weights, delta, conversion)
    alone = [profile.epsilon(delta) for profile in profiles]
    finite = [epsilon for epsilon in alone if math.isfinite(epsilon)]
    lost = weights @ np.array([profile.lost for profile in profiles])
    low, high = min(finite, default=0.0), 1.5 * max(finite, default=0.0) + 1
    curves = [[profile.wide_curve(d, low, high, delta) for profile in profiles] for d in DIRECTIONS]

    def fits(epsilons: FloatArray) -> npt.NDArray[np.bool_]:
        spent = [sum((w * c.deltas(epsilons) for w, c in zip(weights.T, row, strict=True)), np.zeros(1)) for row in curves]
        return np.asarray(np.maximum(*spent) <= delta)

    lower, upper = np.full(len(weights), low), np.full(len(weights), high)
    beyond = ~fits(upper)
    at_low = fits(lower)
    for _ in range(50):
        middle = (lower + upper) / 2
        inside = fits(middle)
        lower, upper = np.where(inside, lower, middle), np.where(inside, middle, upper)
    result = np.where(at_low, low, upper)
    for row in np.flatnonzero(beyond).tolist():  # a model without privacy whose weight is near δ
        parts = [(weight, profile) for weight, profile in zip(weights[row].tolist(), profiles, strict=True) if weight > 0]
        result[row] = math.inf if lost[row] >= delta else mixture_epsilon(parts, delta)
    return np.asarray(result)


def selections(many: Sequence[Weights], delta: float, shuffle: ShuffleAsPoisson | None = None) -> list[Guarantee]:
    """What many random selections from the same models guarantee, by loss distributions: all at once."""
    rules = [Selection(weights, shuffle) for weights in many]
    if any(rule.places.there for rule in rules):  # places of a record have their own accounts
        return [rule.guarantee(delta=delta, by="pld") for rule in rules]
    odds = np.array([weights.values for weights in many]) / np.array([[weights.total] for weights in many])
    used = np.flatnonzero(odds.any(axis=0))
    profiles = [run_profile(many[0].portfolio.models[index], shuffle).profile for index in used.tolist()]
    epsilons = selection_epsilons(profiles, odds[:, used], delta, "pld")
    return [rule.at(Answer(epsilon, delta, "pld"), "tight") for rule, epsilon in zip(rules, epsilons.tolist(), strict=True)]


def _epsilons_by_renyi(profiles: Sequence[Profile], weights: FloatArray, delta: float, conversion: Conversion) -> FloatArray:
    lost = weights @ np.array([profile.lost for profile in profiles])
    stated = [orders for profile in profiles if (orders := profile.stated_orders) is not None]
    orders = np.unique(np.concatenate((ORDERS, *stated)))
    moments = [np.stack([profile.log_moment(orders, d) for profile in profiles]) for d in DIRECTIONS]
    result = np.full(len(weights), math.inf)
    for used in np.unique(weights > 0, axis=0):  # models without weight must not set the scale of the others
        rows = np.flatnonzero(((weights > 0) == used).all(axis=1))
        mixed = [_log_mixtures(weights[np.ix_(rows, used)], moment[used]) for moment in moments]
        renyi = np.maximum(*mixed) / (orders - 1)
        for row, curve in zip(rows.tolist(), renyi, strict=True):
            if lost[row] < delta:
                epsilons = epsilon_from_renyi(orders, curve, delta - lost[row], conversion)
                result[row] = max(0.0, float(np.min(np.nan_to_num(epsilons, nan=math.inf, posinf=math.inf))))
    return result


def _log_mixtures(weights: FloatArray, moments: FloatArray) -> FloatArray:
    """log Σ π_i e^{m_i} for every row of weights (all positive) and every order."""
    largest = moments.max(axis=0)
    finite = np.isfinite(largest)
    scaled = np.exp(np.where(finite, moments - np.where(finite, largest, 0.0), 0.0))
    return np.where(finite, np.log(weights @ scaled) + np.where(finite, largest, 0.0), math.inf)


class Selection(Rule):
    """I ~ Cat(π), release (I, θ_I). Works for any mechanisms, correlated checkpoints included."""

    name = "selection"

    def __init__(self, weights: Weights, shuffle: ShuffleAsPoisson | None = None) -> None:
        self.weights = weights
        # Weights may sum to 1 within 1e-9; what is drawn with is their share of the sum.
        self.shuffle = shuffle
        assumed, self._conditional = gathered(run_profile(model, shuffle) for model, _ in weights.used)
        self.places = PartsOfData(self.covered)
        self._assumptions = (*self.places.assumptions, *assumed)
        self.bound: Bound = self.places.bound(self.draw) if self.places.there else SelectionBound(self.draw())

    def draw(self, place: Place = EVERYWHERE) -> list[tuple[float, Profile]]:
        """The models' profiles with their probabilities, as far as a record at this place is concerned."""
        total = self.weights.total
        return [(weight / total, run_profile(model, self.shuffle, place).profile) for model, weight in self.weights.used]

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        return self.at(ask(self.bound, target, by, conversion), conversion)

    def at(self, found: Answer, conversion: Conversion) -> Guarantee:
        """The guarantee with this answer, which an accountant gave for these probabilities."""
        theorem = "selection-rdp" if found.by == "rdp" else "selection-pld"
        made = self._build(found, theorem, self._assumptions, self._conditional, conversion, self.places.details)
        return replace(made, warnings=about_delta(found.delta, self.covered, self.shuffle))
