"""The models whose scores are compared: checkpoints of one run, or independent runs; and what the estimate assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from dpmerge.checkpoints.predict import asked
from dpmerge.checkpoints.predictor import Inputs, Predictor
from dpmerge.checkpoints.run import Run, steps
from dpmerge.checkpoints.uncertainty import Floats, chosen_steps
from dpmerge.errors import PortfolioError
from dpmerge.records import DpSgd, Model, Portfolio, Weights, latest_checkpoints
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Guarantee, build

EstimateStanding = Literal["heuristic", "estimate"]
PUBLIC = "the inputs, and the labels that predictions are compared with, are public"
_THEOREM = (
    "Thm A.1 of Recycling Scraps bounds the bias of this estimator if the loss is strongly convex and smooth, the run is "
    "Langevin dynamics on it, the first checkpoint comes after the burn-in κ₁ and neighbours are κ₂ apart; both contain a "
    "constant that the paper does not state, so this cannot be checked",
    "checkpoints close to each other are similar, which makes widths too small; checkpoints of a run that still improves also "
    "differ for that reason, which makes widths too large",
)
_RUNS = (
    "over independent runs of one recipe the sample variance is unbiased for every loss",
    "the interval contains the mean score over all such runs with the stated confidence if scores are normally distributed",
)


@dataclass(frozen=True)
class Spread:
    """The models to compare, in order, and the portfolio they belong to."""

    portfolio: Portfolio
    models: tuple[Model, ...]
    standing: EstimateStanding
    what: str
    notes: tuple[str, ...]

    @classmethod
    def over_checkpoints(
        cls,
        folder: str | Path,
        *,
        last: int | None = None,
        burn_in: int | None = None,
        separation: int | None = None,
        allow_gaps: bool = False,
    ) -> Spread:
        """Checkpoints of one run: all, or those of `chosen_steps`. Without a separation, gaps are refused unless allowed."""
        run = Run.load(folder)
        by_step = {steps(model): model for model in run.checkpoints}
        chosen = chosen_steps(list(by_step), last=last, burn_in=burn_in, separation=separation)
        if separation is None:
            run.last(len(chosen), allow_gaps=allow_gaps)
        models = tuple(by_step[step] for step in chosen)
        what = f"{len(models)} checkpoints of one run, steps {chosen[0]} to {chosen[-1]}"
        return cls(run.portfolio, models, "heuristic", what, (*_THEOREM, *departures(models[-1])))

    @classmethod
    def over_runs(cls, folder: str | Path) -> Spread:
        """The last models of several independent runs of one recipe."""
        portfolio = Portfolio(folder)
        models = latest_checkpoints(portfolio.models)
        _require_one_recipe(models)
        return cls(portfolio, models, "estimate", f"{len(models)} independent runs", _RUNS)

    def guarantee(self, delta: float, accounting: Accounting = DEFAULT_ACCOUNTING) -> Guarantee:
        """The guarantee of everything computed from these models: one run up to its latest checkpoint, or all runs jointly."""
        runs = latest_checkpoints(self.models)
        return public_guarantee(self.portfolio.weights({model.name: 1 / len(runs) for model in runs}), delta, accounting)

    def scores(
        self, predictor: Predictor, inputs: Inputs, probabilities: bool = False, on_model: Callable[[], None] | None = None
    ) -> Iterator[Floats]:
        """Each model's probabilities, one model at a time; the predictor returns scores or probabilities."""
        for model in self.models:
            yield asked(predictor, model, inputs.values, probabilities)
            if on_model is not None:
                on_model()


def public_guarantee(weights: Weights, delta: float, accounting: Accounting = DEFAULT_ACCOUNTING) -> Guarantee:
    """Cost of everything computed from the models with positive weight and from public examples."""
    found = accounting.guarantee(build("joint", weights, accounting, looked_at=()), delta=delta)
    return replace(found, assumptions=(*found.assumptions, PUBLIC))


def departures(model: Model) -> tuple[str, ...]:
    """Where the record contradicts the theorem's assumptions, or leaves them open."""
    mechanism = model.mechanism
    if not isinstance(mechanism, DpSgd):
        return (f"of this run: {mechanism.kind} is not Langevin dynamics",)
    phases = mechanism.settings()
    found = [
        (True, "no record states that its loss is strongly convex"),
        (mechanism.convex is None, "the loss may not be convex, or clipping may bind"),
        (mechanism.smoothness is None, "it is not known to be smooth"),
        (any(p.sampling.scheme != "full-batch" for p in phases), "gradients are those of sampled batches"),
        (len({p.learning_rate for p in phases}) > 1, "the learning rate changes"),
        (len({(p.noise_multiplier, p.clip) for p in phases}) > 1, "the noise changes"),
        (mechanism.optimizer != "sgd", f"the optimizer is {mechanism.optimizer}"),
    ]
    return (f"of this run: {'; '.join(text for applies, text in found if applies)}",)


def _require_one_recipe(models: Sequence[Model]) -> None:
    """Refuse runs of different recipes: their scores differ by more than the noise."""
    if len(models) < 2:
        raise PortfolioError(f"all models are checkpoints of run {models[0].run!r}; at least two independent runs are needed")
    for model in models:
        if model.start is not None:
            raise PortfolioError(
                f"model {model.name!r} starts from a private checkpoint, {model.start.name!r}: runs that share one are not "
                "independent, and the spread of their scores says nothing of their common part"
            )
    first, own = models[0], {"run", "noise_fingerprint", "sampler_fingerprint", "noise_generator"}
    for one, other in combinations(models, 2):
        if one.run == other.run:
            raise PortfolioError(
                f"models {one.name!r} and {other.name!r} are of the same run, {one.run!r}, but runs must be independent: keep "
                "one of them"
            )
    for other in models[1:]:
        if other.mechanism.model_dump(exclude=own) != first.mechanism.model_dump(exclude=own):
            raise PortfolioError(
                f"models {first.name!r} and {other.name!r} were not trained by the same recipe: their records differ in more "
                "than the run and its randomness, so the spread of their scores is not that of one recipe"
            )
