"""What a release is worth as far as it is known beforehand: stated utilities, or the noise that records predict.

Training leaves noise in the parameters, and so does the release. For weights λ and noise τ the variance of one parameter is
V = Σ_i λ_i² Σ_t (ν_{i,t} G_{i,t})² + τ², with ν the noise of one update and G what later steps make of it. G is what weight
decay leaves: an upper bound where steps do not drive copies apart (convex, theory.md §9.1), an estimate elsewhere. It is what
separates models of one recipe; nothing here looks at data or models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpmerge.planning.utility import Utilities
from dpmerge.records import DpSgd, Gaussian, Model, NonPrivate, Portfolio

PREDICTED = "less predicted noise is more useful"


def training_variance(model: Model) -> float | None:
    """The variance that training leaves in one parameter; nothing where the record does not say how parameters move."""
    shares = _variances(model)
    return None if shares is None else math.fsum(shares.values())


def _variances(model: Model) -> dict[str, float] | None:
    """By run: the variance that its noise leaves in one parameter. A fork holds noise of what it starts from."""
    mechanism = model.mechanism
    if isinstance(mechanism, NonPrivate):
        return {model.run: 0.0}
    if isinstance(mechanism, Gaussian):
        return {model.run: float(mechanism.noise_std**2)}
    if not isinstance(mechanism, DpSgd) or mechanism.optimizer != "sgd":
        return None
    before = {} if model.start is None else _variances(model.start)
    if before is None:
        return None
    total, left = 0.0, 1.0
    for phase in mechanism.settings():
        noise = (phase.learning_rate * phase.noise_multiplier * phase.clip / phase.expected_batch) ** 2
        kept = (1 - phase.learning_rate * phase.weight_decay) ** 2
        try:
            after = kept**phase.steps
        except OverflowError:
            return None
        steps = phase.steps if kept == 1 else (1 - after) / (1 - kept)
        total, left = total * after + noise * steps, left * after
    found = {**{run: own * left for run, own in before.items()}, model.run: total}
    return found if all(map(math.isfinite, found.values())) else None


@dataclass(frozen=True)
class Worth:
    """Utilities of the models and the variances that their records predict; `predicted`: the first are made of the second."""

    utilities: Utilities
    variances: tuple[float | None, ...]
    shares: tuple[Mapping[str, float] | None, ...]  # of the variances: those of the noise of each run
    runs: tuple[str, ...]
    predicted: bool = False

    @classmethod
    def of(cls, portfolio: Portfolio, utility: Utilities | None, alone: Mapping[str, float]) -> Worth:
        """By what is stated; else by predicted noise; or by privacy (`alone`: ε) where that is unknown for some model."""
        models = portfolio.models
        known = tuple(map(training_variance, models)), tuple(map(_variances, models)), tuple(model.run for model in models)
        if utility is not None:
            return cls(utility, *known)
        if None in known[0]:
            return cls(Utilities.less_private_is_more_useful(portfolio, alone), *known)
        made = cls(Utilities((), "a-priori", PREDICTED), *known, predicted=True)
        return replace(made, utilities=replace(made.utilities, values=tuple(map(made._utility, made.variances))))

    @property
    def linear(self) -> tuple[float, ...]:
        """A value for each model whose mean a draw should make large."""
        return tuple(-(one or 0.0) for one in self.variances) if self.predicted else self.utilities.values

    def drawn(self, weights: Sequence[float]) -> float:
        """The utility to expect of a draw with these probabilities."""
        if self.predicted:
            return self._utility(self.drawn_variance(weights))
        return _mean(weights, self.utilities.values)

    def averaged(self, weights: Sequence[float], noise: float = 0.0) -> float:
        """The utility of an average, interpolated; release noise costs what stated utilities of noisier models let expect."""
        if self.predicted:
            return self._utility(self.variance(weights, noise))
        return _mean(weights, self.utilities.values) - self.loss(weights) * noise**2

    def loss(self, weights: Sequence[float]) -> float:
        """How much utility a unit of variance costs: the most that models which are noisier and less useful let expect."""
        own, utility = self.variance(weights), _mean(weights, self.utilities.values)
        if own is None:
            return 0.0
        noisier = [(v, u) for v, u in zip(self.variances, self.utilities.values, strict=True) if v is not None and v > own]
        return max(((utility - u) / (v - own) for v, u in noisier if u < utility), default=0.0)

    def within(self, weights: Sequence[float], noise: float) -> bool:
        """Whether some model is as noisy as this average: else its utility is a line drawn beyond what was stated."""
        found = self.variance(weights, noise)
        return found is not None and found <= max((one for one in self.variances if one is not None), default=0.0)

    def variance(self, weights: Sequence[float], noise: float = 0.0) -> float | None:
        """Of an average with this release noise; nothing where a model's is unknown.

        Checkpoints of one run share noise, and so do forks of one checkpoint.
        """
        deviations: dict[str, float] = {}
        for weight, shares in zip(weights, self.shares, strict=True):
            if weight > 0 and shares is None:
                return None
            for run, own in (shares or {}).items():
                deviations[run] = deviations.get(run, 0.0) + weight * math.sqrt(own)
        return math.fsum([noise**2, *(one**2 for one in deviations.values())])

    def drawn_variance(self, weights: Sequence[float]) -> float | None:
        """To expect of a draw."""
        if any(weight > 0 and own is None for weight, own in zip(weights, self.variances, strict=True)):
            return None
        return _mean(weights, [own or 0.0 for own in self.variances])

    @property
    def best_merge(self) -> tuple[float, float | None]:
        """What the best merge is worth at least: the most useful model; or the average with the least predicted noise."""
        if not self.predicted:
            return max(self.utilities.values), None
        runs: dict[str, tuple[float, int]] = {}
        for index, (run, own) in enumerate(zip(self.runs, self.variances, strict=True)):
            runs[run] = min((own or 0.0, index), runs.get(run, (math.inf, 0)))
        if not all(own for own, _ in runs.values()):
            return self._utility(0.0), 0.0
        inverse = {index: 1 / own for own, index in runs.values()}
        total = math.fsum(inverse.values())
        least = self.variance([inverse.get(index, 0.0) / total for index in range(len(self.runs))])
        return self._utility(least), least

    def _utility(self, variance: float | None) -> float:
        """1 without noise, one half with as much as the noisiest model has."""
        most = max((one for one in self.variances if one is not None), default=0.0)
        if variance is None:
            return 0.0
        return 1 / (1 + math.sqrt(variance / most)) if most > 0 else 1 / (1 + variance)


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
