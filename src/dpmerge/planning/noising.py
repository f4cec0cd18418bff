"""The single model and the average with the least predicted variance, each with the least noise that meets a target.

Finding the least noise takes long, so it is found for one model and one average. Averages have weights inverse to the
variances, over the models in the order of their own variance. They are compared by one question each: how private are they
with the noise that makes them as good as the model alone?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpmerge.errors import AccountingError, TargetError
from dpmerge.planning.option import Option, Question
from dpmerge.planning.worth import Worth
from dpmerge.profiles import grids_of_accuracy
from dpmerge.records import DpSgd, Model, Portfolio, Weights
from dpmerge.rules import (
    Accounting,
    Combination,
    Guarantee,
    build,
    largest_learning_rate,
    least_noise,
    not_hidden,
    round_down,
)

_MOST = 6  # models that are tried alone, and sizes of averages
_CLOSE = 1.005  # how much larger than the least the deviation of an average may be
_DOUBLINGS = 40
_BETTER = 0.99  # of the noise that would make two options equal
PUBLISHED = (
    "something else of these runs is published, so every step counts and noise at release hides nothing; it would if this were "
    "the only release"
)


@dataclass(frozen=True)
class Noising:
    """The averages of a question at one ε, with noise."""

    question: Question
    epsilon: float

    @cached_property
    def why_not(self) -> dict[str, str]:
        return why_not_hidden(self.question.portfolio, self.question.accounting)

    def options(self) -> list[Option]:
        """Nothing where noise hides nothing, or not enough."""
        alone = self._alone()
        if alone is None:
            return []
        average = self._average(alone)
        return [alone] if average is None else [alone, average]

    def refusal(self) -> str:
        """Why noise at release does not pay, in one sentence."""
        reasons = list(dict.fromkeys(self.why_not.values()))
        if not reasons:
            nothing = f"no noise at release gives ε = {self.epsilon:g} at δ = {self.question.delta:g}"
            return "; ".join([nothing, *self._too_fast()])
        return f"noise at release buys nothing here: {reasons[0]}"

    def _too_fast(self) -> list[str]:
        """Where steps can drive two models apart, later noise hides nothing of earlier ones."""
        for model in self._members:
            mechanism = model.mechanism
            if not isinstance(mechanism, DpSgd) or mechanism.smoothness is None:
                continue
            for phase in mechanism.settings():
                most = largest_learning_rate(
                    mechanism.smoothness,
                    batch=phase.expected_batch,
                    rate=phase.sampling.rate,
                    weight_decay=phase.weight_decay,
                    draws=mechanism.steps,
                    delta=self.question.delta,
                )
                if phase.learning_rate > most:
                    return [
                        f"{model.name!r} was trained with learning rate {phase.learning_rate:g}, and above "
                        f"{round_down(most, 3):g} steps can drive two models apart: train again with at most that"
                    ]
        return []

    @cached_property
    def _members(self) -> list[Model]:
        return _members(self.question.portfolio, self.question.worth, self.question.accounting)

    def _alone(self) -> Option | None:
        """The best model with its noise. One of each recipe is tried: like models need the same noise."""
        best: Option | None = None
        recipes = {_recipe(model): model.name for model in reversed(self._members)}
        names = [model.name for model in self._members if model.name in recipes.values()]
        for weights in map(self.question.vertex, names[:_MOST]):
            if best is None or self._may_beat(weights, best):
                found = self._noised(weights)
                if found is not None and (best is None or (found.utility or 0.0) > (best.utility or 0.0)):
                    best = found
        return best

    def _may_beat(self, weights: Weights, best: Option) -> bool:
        """Whether a model meets the target with the most noise with which it is worth more than the best so far."""
        worth = self.question.worth
        if worth.predicted:
            room = (best.deviation or 0.0) ** 2 - (worth.variance(weights.values) or 0.0)
        else:
            loss, gain = worth.loss(weights.values), worth.averaged(weights.values) - (best.utility or 0.0)
            room = gain / loss if loss > 0 else math.inf if gain > 0 else 0.0
        if room <= 0 or math.isinf(room):
            return room > 0
        return self._hidden(weights, _BETTER * math.sqrt(room)) <= self.epsilon

    def _average(self, alone: Option) -> Option | None:
        """Its noise is the least to half a percent of the deviation that all noise leaves: more digits would take long."""
        worth, made = self.question.worth, _averages(self.question.portfolio, self.question.worth, self._members)
        tried = []
        for weights in made if alone.deviation is not None else []:
            own = worth.variance(weights.values) or 0.0
            room = math.sqrt(max((alone.deviation or 0.0) ** 2 - own, 1e-6 * own))
            epsilon = self._hidden(weights, room)
            tried.append((round(epsilon, 3), -len(weights.used), math.sqrt(own), room, epsilon, weights))
        if not tried:
            return self._noised(made[0]) if made else None
        *_, deviation, noise, epsilon, weights = min(tried, key=lambda one: one[:2])
        self.question.progress(f"noise for {', '.join(model.name for model, _ in weights.used)}")
        low, above = 0.0, math.inf
        for _ in range(_DOUBLINGS):
            if epsilon <= self.epsilon:
                break
            low, above, noise = noise, epsilon, 2 * noise
            epsilon = self._hidden(weights, noise)
        else:
            return None
        while math.hypot(deviation, noise) > _CLOSE * math.hypot(deviation, low):
            share = 0.5
            if low > 0 and 0 < epsilon < self.epsilon < above < math.inf:  # a power law, and a little more noise
                share = min(max(1.1 * math.log(above / self.epsilon) / math.log(above / epsilon), 0.1), 0.9)
            middle = low * (noise / low) ** share if low > 0 else noise / 4
            found = self._hidden(weights, middle)
            if found <= self.epsilon:
                noise, epsilon = middle, found
            else:
                low, above = middle, found
        return self._with(weights, noise, none_may_do=noise < 0.2 * deviation)

    def _with(self, weights: Weights, noise: float, *, none_may_do: bool) -> Option | None:
        """This average with this noise; without, if that will do."""
        asked = self.question
        for one in (0.0, noise) if none_may_do else (noise,):
            rule = build("combination", weights, asked.accounting, noise=one)
            found = asked.accounting.guarantee(rule, delta=asked.delta)
            if found.epsilon <= self.epsilon:
                return asked.option("combination", weights, found, noise=one)
        return self._noised(weights)

    def _noised(self, weights: Weights) -> Option | None:
        asked = self.question
        asked.progress(f"noise for {', '.join(model.name for model, _ in weights.used)}")
        known = asked.alone[weights.used[0][0].name] if len(weights.used) == 1 else None
        if isinstance(known, Guarantee) and known.epsilon <= self.epsilon:
            return asked.option("combination", weights, known)
        try:
            noise, found = least_noise(weights, epsilon=self.epsilon, delta=asked.delta, accounting=asked.accounting)
        except (AccountingError, TargetError):
            return None
        return asked.option("combination", weights, found, noise=noise)

    def _hidden(self, weights: Weights, noise: float) -> float:
        asked = self.question.accounting
        rule = build("combination", weights, asked, noise=noise)
        assert isinstance(rule, Combination)
        with grids_of_accuracy(asked.accuracy):
            return rule.hidden_epsilon(self.question.delta, asked.by, asked.conversion)


def with_least_noise(question: Question, weights: Weights, found: Guarantee, epsilon: float) -> tuple[float, Guarantee]:
    """These weights without noise if they meet the target so, else with the least noise that does; if none does, without."""
    if not question.with_noise or question.looked or found.epsilon <= epsilon:
        return 0.0, found
    try:
        return least_noise(weights, epsilon=epsilon, delta=question.delta, accounting=question.accounting)
    except TargetError:
        return 0.0, found


def why_not_hidden(portfolio: Portfolio, accounting: Accounting) -> dict[str, str]:
    """The models of which noise at release hides nothing, and why."""
    if not accounting.only_release:
        return dict.fromkeys(portfolio.names, PUBLISHED)
    reasons = {one.name: not_hidden(one, accounting.assume_smoothness) for one in portfolio.models}
    return {name: why for name, why in reasons.items() if why is not None}


def candidates(portfolio: Portfolio, worth: Worth, accounting: Accounting) -> list[Weights]:
    """The best model alone, and an average of those like the least noisy, or else of all; none where noise does not pay."""
    members = _members(portfolio, worth, accounting)
    averages = _averages(portfolio, worth, members)
    alike = [one for one in averages if len({weight for _, weight in one.used}) == 1]
    return [*(portfolio.weights({model.name: 1.0}) for model in members[:1]), *(alike or averages)[-1:]]


def _members(portfolio: Portfolio, worth: Worth, accounting: Accounting) -> list[Model]:
    """One model of each run that noise hides: the most useful first, of equal ones the least noisy."""
    hidden = why_not_hidden(portfolio, accounting)
    known = zip(portfolio.models, worth.variances, worth.utilities.values, strict=True)
    usable = [(-utility, math.inf if own is None else own, m) for m, own, utility in known if m.name not in hidden]
    ranked = sorted(usable, key=lambda one: one[:2])
    return list({model.run: model for _, _, model in reversed(ranked)}.values())[::-1]


def _averages(portfolio: Portfolio, worth: Worth, members: Sequence[Model]) -> list[Weights]:
    """Weights inverse to the variances, over the two, four, … models with the least, over those alike, and over all."""
    own = {model.name: worth.variances[portfolio.names.index(model.name)] for model in members}
    ranked = sorted((variance, name) for name, variance in own.items() if variance)
    if len(ranked) < 2:
        return []
    like = sum(variance <= 1.001 * ranked[0][0] for variance, _ in ranked)
    sizes = {2, max(like, 2), len(ranked), *(2**k for k in range(1, 20) if 2**k < len(ranked))}
    found = []
    for size in sorted(sizes)[-_MOST:]:
        shares = {name: ranked[0][0] / variance for variance, name in ranked[:size]}
        total = math.fsum(shares.values())
        found.append(portfolio.weights({name: share / total for name, share in shares.items()}))
    return found


def _recipe(model: Model) -> str:
    """What models of one recipe share: everything but their randomness."""
    return model.mechanism.model_dump_json(exclude={"run", "noise_fingerprint", "sampler_fingerprint", "shard"})
