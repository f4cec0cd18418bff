"""A search by Optuna over learning rate and clip, with what it costs printed as it grows.

    pip install "dpmerge[tracking,sklearn]"
    python examples/optuna_sweep.py

Optuna's default sampler chooses settings by the scores of earlier trials. That is covered: what every trial may cost at most,
and how many there are, is decided before the first. Then the other way: a random search of random length, whose best trial
alone costs less than all of them, if nothing else is ever shown.
"""

from __future__ import annotations

from typing import Any

import optuna
from sklearn.datasets import load_digits

from dpmerge.datasets import bounded_features
from dpmerge.rules import round_up
from dpmerge.training import Recipe, SweepCost, accuracy, train

DELTA = 1e-5
EVERY_TRIAL: dict[str, Any] = {"noise_multiplier": 2.0, "rate": 0.1, "steps": 40}


def search(cost: SweepCost, sampler: Any = None) -> Any:
    x, y = load_digits(return_X_y=True)
    features = bounded_features(x / 16, norm_bound=5.0)
    private, public = slice(0, 1400), slice(1400, None)  # scores are on public examples: on private ones nothing covers them

    def objective(trial: Any) -> float:
        recipe = Recipe(
            learning_rate=trial.suggest_float("learning_rate", 0.05, 5.0, log=True),
            clip=trial.suggest_float("clip", 0.5, 8.0, log=True),
            **EVERY_TRIAL,
        )
        (model,) = train(features[private], y[private], 10, recipe, norm_bound=5.0, dataset="digits-1400")
        cost.add(trial, model.record)  # before the score is shown
        return accuracy(model.tensors, features[public], y[public])

    study = optuna.create_study(direction="maximize", sampler=sampler)
    if cost.most:
        study.optimize(objective, n_trials=cost.most, callbacks=[cost])
    return study


def main(epsilon: float = 6.0, mean_trials: float = 5.0) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(f"-- chosen by what earlier trials showed, as many as fit into ε = {epsilon:g}")
    cost = SweepCost(**EVERY_TRIAL, delta=DELTA, epsilon=epsilon)
    study = search(cost)
    print(f"best accuracy {study.best_value:.3f} with {study.best_params}")
    print(cost.guarantee)

    print("-- drawn at random, a random number of times; only the best is ever shown")
    cost = SweepCost(**EVERY_TRIAL, delta=DELTA, mean_trials=mean_trials)
    study = search(cost, optuna.samplers.RandomSampler())
    best = cost.best_alone(study)
    print(f"({round_up(best.epsilon)}, {best.delta:g})-DP, {best.standing}, by {best.theorem}. It assumes:")
    for text in best.assumptions:
        print(f"- {text}")


if __name__ == "__main__":
    main()
