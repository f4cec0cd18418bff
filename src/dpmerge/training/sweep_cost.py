"""`SweepCost`: what the trials of an Optuna study cost together, told as it grows, and a study that stops in time.

What every trial may cost at most is stated beforehand, and so is how many there are: then settings may be chosen by what
earlier trials showed, as Optuna's samplers do (docs/theory.md §7, `sweep`). Only where they are not, and the number is drawn
at random, is there a better price for the best trial alone (`tuning`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from dpmerge.errors import BudgetExceeded, TargetError, TrainingError
from dpmerge.records import Model, Record, require_independent
from dpmerge.rules import Guarantee, Sweep, TuningCost, round_up, significant, trials as law_of_trials, tuning_cost
from dpmerge.training.randomness import fresh_generator

if TYPE_CHECKING:
    from dpmerge.training.recorder import Recorder

Drawn = Literal["geometric", "logarithmic", "poisson"]
_MARK = "dpmerge"  # in a trial's attributes: of which sweep it is. Its record stays out of the study's storage


class SweepCost:
    """A callback for `study.optimize(objective, n_trials=cost.most, callbacks=[cost])`.

    Every trial has at most `rate` and `steps`, and at least `noise_multiplier`. How many there are is said in one of three
    ways: `trials`; as many as fit into the budget `epsilon` at `delta`; or drawn here at random with the mean `mean_trials`.
    The objective calls `cost.add(trial, recorder)` before it returns, which refuses what is not within this.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        rate: float,
        steps: int,
        delta: float,
        trials: int | None = None,
        epsilon: float | None = None,
        mean_trials: float | None = None,
        distribution: Drawn = "geometric",
        tell: Callable[[str], None] = print,
    ) -> None:
        self.sweep, self.delta, self._tell = Sweep(noise_multiplier, rate, steps), delta, tell
        self._made: dict[int, Model] = {}
        self._best: TuningCost | None = None
        self._said = ""
        if sum(one is not None for one in (trials, epsilon, mean_trials)) != 1:
            raise TargetError("how many trials there are is said in one way: trials, epsilon (a budget), or mean_trials")
        if trials is not None and trials < 1:
            raise TargetError(f"trials is {trials}; a sweep has at least one")
        self.most: int = trials or 0
        if epsilon is not None:
            self.most = self.sweep.most(epsilon, delta)
        if mean_trials is not None:
            law = law_of_trials(distribution, mean_trials)
            self._best = tuning_cost(self.sweep.base, law, delta)
            self.most = _draw(distribution, mean_trials, getattr(law, "log_gamma", 0.0))
        # A number that is drawn again is no longer of the law whose price is told.
        draw = "" if mean_trials is None else f", drawn as {secrets.token_hex(8)}"
        self._mark = f"at most {self.most} trials{draw}; {self.sweep}"
        self._samplers: set[str] = set()

    def add(self, trial: Any, run: Recorder | Record) -> None:
        """Before the objective returns: what this trial was. A trial beyond the number or the bound is refused, unshown."""
        name = f"trial {trial.number}"
        if trial.number >= self.most:
            raise BudgetExceeded(f"{name}: the sweep has {self.most} trials, which was decided before the first")
        self._require_own(trial.study)
        model = Model(name, run if isinstance(run, Record) else run.record())
        self.sweep.require_within(model)
        others = [one for number, one in self._made.items() if number != trial.number]
        for other in others:
            if other.run == model.run:
                raise TrainingError(
                    f"{name} has the record of {other.name}, run {model.run!r}; every trial is a run of its own"
                )
        require_independent((*others, model))
        self._made[trial.number] = model
        self._samplers.add(type(trial.study.sampler).__name__)
        trial.set_user_attr(_MARK, self._mark)

    def __call__(self, study: Any, trial: Any) -> None:
        """After every trial: tell what all of them cost, and stop the study when no further one is allowed."""
        if trial.state.name in ("COMPLETE", "PRUNED") and _MARK not in trial.user_attrs:
            study.stop()
            raise TrainingError(
                f"trial {trial.number} has no record, so what it costs is not known: the objective must call "
                "add(trial, recorder) before it returns or is pruned"
            )
        self._require_own(study)
        begun = _begun(study)
        self._tell(self._line(study, begun))
        if begun >= self.most:
            study.stop()

    @property
    def guarantee(self) -> Guarantee:
        """Everything the study shows, whatever its sampler looked at and whenever it ended."""
        return self.sweep.guarantee(self.most, self.delta, self._made.values())

    def best_alone(self, study: Any) -> TuningCost:
        """What the best trial costs if nothing else of the study, not even its number of trials, is ever shown."""
        why = self._why_not_best(study)
        if why is not None:
            raise TrainingError(f"releasing the best trial alone costs no less than all trials: {why}")
        if (begun := _begun(study)) != self.most:
            raise TrainingError(f"{self.most} trials were drawn, and {begun} made: make all of them before one is the best")
        self._require_own(study)
        if any(one.state.name == "COMPLETE" and _MARK not in one.user_attrs for one in study.get_trials(deepcopy=False)):
            raise TrainingError("a trial has no record, so what it costs is not known")
        assert self._best is not None
        return self._best

    def _require_own(self, study: Any) -> None:
        """Refuse a study with trials of another sweep: what every trial may cost, and how many there are, is said once."""
        for one in study.get_trials(deepcopy=False):
            if (found := one.user_attrs.get(_MARK, self._mark)) != self._mark:
                raise TrainingError(
                    f"trial {one.number} of this study was made under another bound ({found}) than this one ({self._mark}); "
                    "both are decided before the first trial: begin a new study, and add what both cost"
                )

    def _why_not_best(self, study: Any) -> str | None:
        """Why the theorem on tuning is not about this study, as far as that can be seen."""
        if self._best is None:
            return "their number was not drawn at random (mean_trials)"
        for name in sorted({*self._samplers, type(study.sampler).__name__} - {"RandomSampler"}):
            return f"{name} may choose settings by what earlier trials showed; RandomSampler does not"
        trials = study.get_trials(deepcopy=False)
        if any(one.state.name == "PRUNED" for one in trials):
            return "a trial was pruned by comparison with others"
        if any("fixed_params" in one.system_attrs for one in trials):
            return "settings of a trial were given (enqueue_trial), not drawn"
        if len(study.directions) > 1:
            return "it has several objectives, so no trial is the best"
        return None

    def _line(self, study: Any, begun: int) -> str:
        each = f"{begun} of {self.most} trials"
        if begun > self.most:
            return f"{each}: more than was decided before the first; what lies beyond is covered by nothing"
        so_far = f"{each}: ε = {round_up(self.sweep.epsilon(begun, self.delta))} together"
        if begun < self.most:
            so_far += f", had {begun} been decided beforehand; all {self.most}: ε = {round_up(self.guarantee.epsilon)}"
        why = self._why_not_best(study)
        best = f"the best alone costs no less: {why}"
        if why is None and self._best is not None:
            best = f"the best alone, if nothing else is shown: ε = {round_up(self._best.epsilon)}"
        told = f"{so_far}, at δ = {significant(self.delta)}"
        if best != self._said:  # once is enough
            told, self._said = f"{told}; {best}", best
        return told


def _begun(study: Any) -> int:
    """Trials of this study that were begun, whatever became of them: also in other processes."""
    return sum(one.state.name != "WAITING" for one in study.get_trials(deepcopy=False))


def _draw(distribution: Drawn, mean: float, log_gamma: float) -> int:
    """The number of trials, from the law whose price is told."""
    generator = fresh_generator()
    if distribution == "poisson":
        return int(generator.poisson(mean))
    gamma = math.exp(log_gamma)
    if gamma == 1:
        return 1
    return int(generator.geometric(gamma) if distribution == "geometric" else generator.logseries(1 - gamma))
