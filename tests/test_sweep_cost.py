"""What a search over hyper-parameters costs: against brute force and dp-accounting, and with Optuna itself."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpmerge.errors import BudgetExceeded, DependentRuns, TargetError, TrainingError, UnsupportedMechanism
from dpmerge.profiles import Profile, gaussian_delta, step_law
from dpmerge.records import Record
from dpmerge.rules import Sweep, trials, tuning_cost
from dpmerge.training import SweepCost
from dpmerge.training.sweep_cost import _draw
from tests import builders
from tests.test_forks import fork

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
optuna.logging.set_verbosity(optuna.logging.WARNING)

DELTA = 1e-5
EVERY: dict[str, Any] = {"noise_multiplier": 2.0, "rate": 0.1, "steps": 30}


def trial_record(name: str, **changes: Any) -> Record:
    return builders.dp_sgd(name, **{"sigma": 2.0, "sampling": 0.1, "steps": 30, **changes}).record


def study_of(cost: SweepCost, record: Any = trial_record, sampler: Any = None, **options: Any) -> Any:
    """A study of trials that train nothing; `record` makes the record of each."""

    def objective(trial: Any) -> float:
        value = trial.suggest_float("learning_rate", 0.0, 1.0)
        cost.add(trial, record(str(trial.number)))
        return float(value)

    study = optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(n_startup_trials=2))
    study.optimize(objective, n_trials=options.pop("n_trials", 100), callbacks=[cost], **options)
    return study


def test_n_trials_cost_n_times_the_steps_by_dp_accounting() -> None:
    step = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))
    expected = PLDAccountant().compose(dp_event.SelfComposedDpEvent(step, 30 * 4)).get_epsilon(DELTA)
    assert Sweep(2.0, 0.1, 30).epsilon(4, DELTA) == pytest.approx(expected, rel=2e-3)
    full = Sweep(8.0, 1.0, 9).guarantee(4, DELTA)
    mu = math.sqrt(36) / 8
    assert float(gaussian_delta(mu, full.epsilon)) == pytest.approx(DELTA, rel=1e-6)


def test_the_number_of_trials_in_a_budget_is_the_largest() -> None:
    sweep = Sweep(2.0, 0.1, 30)
    most = sweep.most(4.0, DELTA)
    assert sweep.epsilon(most, DELTA) <= 4.0 < sweep.epsilon(most + 1, DELTA)
    with pytest.raises(TargetError, match="not even one trial fits"):
        sweep.most(0.1, DELTA)


@pytest.mark.parametrize("other", [(2.0, 0.06), (2.7, 0.1), (2.7, 0.06)])
@pytest.mark.parametrize("sign", [1, -1])
def test_less_rate_and_more_noise_never_cost_more(other: tuple[float, float], sign: int) -> None:
    """At every ε, of either sign, by integrating the densities."""
    x = np.linspace(-40, 40, 400_001)

    def stick(sigma: float, rate: float, epsilon: float) -> float:
        below, above = np.exp(-(x**2) / (2 * sigma**2)), np.exp(-((x - 1) ** 2) / (2 * sigma**2))
        mixed = (1 - rate) * below + rate * above
        pair = (mixed, below) if sign > 0 else (below, mixed)
        scale = (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
        return float(np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0).sum() * scale)

    for epsilon in (-1.0, -0.1, 0.0, 0.05, 0.5):
        assert stick(*other, epsilon) <= stick(2.0, 0.1, epsilon) + 1e-9
    # The same by what the theorem composes.
    laws = [Profile.of([(step_law(rate, sigma, "add-remove"), 30)]) for sigma, rate in (other, (2.0, 0.1))]
    assert laws[0].epsilon(DELTA) <= laws[1].epsilon(DELTA)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"steps": 31}, "31 steps"),
        ({"sigma": 1.999}, "noise multiplier is 1.99"),
        ({"sampling": 0.1001}, "rate is 0.10"),
        ({"sampling": None}, "rate is 1"),
        ({"clipping": "adaptive"}, "clip was adapted"),
        ({"adjacency": "zero-out"}, "no run of DP-SGD for add-remove"),
    ],
)
def test_a_trial_beyond_the_bound_is_refused_and_its_score_not_told(changes: Any, why: str) -> None:
    cost = SweepCost(**EVERY, delta=DELTA, trials=5, tell=lambda text: None)
    with pytest.raises(UnsupportedMechanism, match=why):
        study_of(cost, lambda name: trial_record(name, **changes))


def test_a_trial_that_starts_from_a_private_model_is_refused() -> None:
    with pytest.raises(UnsupportedMechanism, match="starts from a private checkpoint"):
        Sweep(1.0, 1.0, 10_000).require_within(fork("trial 0"))


def test_the_cost_is_told_as_it_grows_and_the_study_stops_at_its_budget() -> None:
    told: list[str] = []
    cost = SweepCost(**EVERY, delta=DELTA, epsilon=3.0, tell=told.append)
    study = study_of(cost)
    assert len(study.trials) == cost.most == len(told) > 2
    assert told[0].startswith(f"1 of {cost.most} trials: ε = ") and "had 1 been decided beforehand" in told[0]
    assert "together, at" in told[-1] and "the best alone costs no less" in told[0]
    assert cost.guarantee.epsilon <= 3.0 and cost.guarantee.theorem == "sweep"
    assert any(f"at most {cost.most} trials" in text for text in cost.guarantee.assumptions)
    assert "fingerprint" not in str([one.user_attrs for one in study.trials])


def test_trials_beyond_the_number_are_refused_also_by_several_workers() -> None:
    cost = SweepCost(**EVERY, delta=DELTA, trials=3, tell=lambda text: None)
    study = study_of(cost, n_trials=8, n_jobs=4, catch=(BudgetExceeded,))
    complete = [one for one in study.trials if one.state.name == "COMPLETE"]
    assert len(complete) <= 3 and cost.guarantee.details["recorded"] == len(complete)


def test_a_trial_without_a_record_is_refused() -> None:
    cost = SweepCost(**EVERY, delta=DELTA, trials=3, tell=lambda text: None)
    study = optuna.create_study()
    with pytest.raises(TrainingError, match="trial 0 has no record"):
        study.optimize(lambda trial: 1.0, n_trials=3, callbacks=[cost])


def test_trials_that_share_their_noise_or_their_run_are_refused() -> None:
    cost = SweepCost(**EVERY, delta=DELTA, trials=5, tell=lambda text: None)
    with pytest.raises(DependentRuns, match="noise"):
        study_of(cost, lambda name: trial_record(name, noise_fingerprint="one seed"))
    with pytest.raises(TrainingError, match="a run of its own"):
        study_of(SweepCost(**EVERY, delta=DELTA, trials=5, tell=lambda text: None), lambda name: trial_record("same"))


def test_the_best_alone_needs_a_random_search_of_random_length() -> None:
    told: list[str] = []
    cost = SweepCost(**EVERY, delta=DELTA, mean_trials=4.0, tell=told.append)
    expected = tuning_cost(Sweep(2.0, 0.1, 30).base, trials("geometric", 4.0), DELTA)
    study = study_of(cost, sampler=optuna.samplers.RandomSampler(), n_trials=cost.most)
    found = cost.best_alone(study)
    assert found.epsilon == expected.epsilon and "the best alone, if nothing else is shown" in told[0]
    assert any("at most 30 steps" in text for text in found.assumptions)
    with pytest.raises(TrainingError, match="TPESampler may choose"):
        cost.best_alone(optuna.create_study(sampler=optuna.samplers.TPESampler()))
    fresh = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    with pytest.raises(TrainingError, match="and 0 made"):
        cost.best_alone(fresh)
    fresh.enqueue_trial({"learning_rate": 0.5})
    with pytest.raises(TrainingError, match="given"):
        cost.best_alone(fresh)
    with pytest.raises(TrainingError, match="several objectives"):
        cost.best_alone(optuna.create_study(directions=["minimize"] * 2, sampler=optuna.samplers.RandomSampler()))
    fixed = SweepCost(**EVERY, delta=DELTA, trials=2, tell=lambda text: None)
    with pytest.raises(TrainingError, match="not drawn at random"):
        fixed.best_alone(study)


def test_a_study_that_is_resumed_keeps_its_bound() -> None:
    """Trials with less noise, or made before a number was drawn again, would pass for those of the new bound."""
    quiet: dict[str, Any] = {"delta": DELTA, "tell": lambda text: None}
    first = SweepCost(**{**EVERY, "noise_multiplier": 0.5}, trials=2, **quiet)
    study = study_of(first, lambda name: trial_record(name, sigma=0.5))

    def go_on(cost: SweepCost, study: Any) -> None:
        def objective(trial: Any) -> float:
            cost.add(trial, trial_record(f"later {trial.number}"))
            return float(trial.suggest_float("learning_rate", 0.0, 1.0))

        study.optimize(objective, n_trials=1, callbacks=[cost])

    for number in (10, 2):
        with pytest.raises((TrainingError, BudgetExceeded), match=r"another bound|decided before"):
            go_on(SweepCost(**EVERY, trials=number, **quiet), study)
    same = optuna.create_study()
    for _ in range(2):  # another process of the same sweep has the same bound
        go_on(SweepCost(**EVERY, trials=3, **quiet), same)
    with pytest.raises(TrainingError, match="another bound"):
        go_on(SweepCost(**EVERY, trials=4, **quiet), same)
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    go_on(SweepCost(**EVERY, mean_trials=1.0, **quiet), drawn)
    with pytest.raises(TrainingError, match="another bound"):
        SweepCost(**EVERY, mean_trials=1.0, **quiet).best_alone(drawn)


def test_the_best_alone_is_of_trials_that_were_all_recorded_and_drawn() -> None:
    cost = SweepCost(**EVERY, delta=DELTA, mean_trials=1.0, tell=lambda text: None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.tell(study.ask(), 1.0)
    with pytest.raises(TrainingError, match="has no record"):
        cost.best_alone(study)
    study = study_of(cost)
    study.sampler = optuna.samplers.RandomSampler()
    with pytest.raises(TrainingError, match="TPESampler may choose"):
        cost.best_alone(study)


def test_pruning_rules_the_price_of_the_best_out() -> None:
    cost = SweepCost(**EVERY, delta=DELTA, mean_trials=1.0, tell=lambda text: None)

    def objective(trial: Any) -> float:
        cost.add(trial, trial_record("pruned"))
        raise optuna.TrialPruned

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.optimize(objective, n_trials=1, callbacks=[cost])
    with pytest.raises(TrainingError, match="pruned"):
        cost.best_alone(study)


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson"])
def test_numbers_of_trials_have_the_mean_of_their_law(distribution: Any) -> None:
    log_gamma = getattr(trials(distribution, 4.0), "log_gamma", 0.0)
    drawn = [_draw(distribution, 4.0, log_gamma) for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx(4.0, abs=6 * float(np.std(drawn)) / math.sqrt(2000))


def test_what_is_said_of_the_number_of_trials_is_said_once() -> None:
    with pytest.raises(TargetError, match="in one way"):
        SweepCost(**EVERY, delta=DELTA)
    with pytest.raises(TargetError, match="in one way"):
        SweepCost(**EVERY, delta=DELTA, trials=3, epsilon=2.0)
    with pytest.raises(TargetError, match="at least one"):
        SweepCost(**EVERY, delta=DELTA, trials=0)
    for wrong in ({"noise_multiplier": 0.0}, {"rate": 0.0}, {"steps": 0}):
        with pytest.raises(TargetError):
            SweepCost(**{**EVERY, **wrong}, delta=DELTA, trials=1)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    path = Path(__file__).parent.parent / "examples" / "optuna_sweep.py"
    runpy.run_path(str(path))["main"](epsilon=2.5, mean_trials=1.0)
    said = capsys.readouterr().out
    assert "1 of 2 trials: ε = " in said and "2 of 2 trials: ε = " in said
    assert "by tuning-" in said and "assumes" in said
