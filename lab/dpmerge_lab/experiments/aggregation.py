"""Aggregates of the iterates of one run, measured: what Tables 1, 3 and 7 of Recycling Scraps compare.

A watcher sees every iterate of a run as it is made and keeps what the aggregations need: a moving average for each decay, and
the last iterates. Parameters are tuned as in Alg. 4, on one half of the public test images, and scored on the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge_lab.training.averaging import MovingAverage

DECAYS = (0.85, 0.9, 0.95, 0.99, 0.999, 0.9999)
TAILS = (3, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
BASELINE_DECAY = 0.9999  # what De et al. 2022 took over from training without privacy
METHODS = ("No Agg", "EMA tr", "UTA tr", "EMA baseline", "EMA inf", "UTA inf", "OPA", "OMV")
LAST, TRAINED, AFTERWARDS = METHODS[0], METHODS[1:3], METHODS[3:]
ON_TOP = tuple(f"{method} + inf" for method in TRAINED)  # what the paper's columns EMA_tr and UTA_tr show (§4.2.1)
Probabilities = npt.NDArray[np.floating[Any]]
Predict = Callable[[Any], Probabilities]
Accuracies = dict[str, float]
LOOKED_AT_DECAY, LOOKED_AT_LAST = 0.95, 20  # of what is followed as training goes on


class Watcher:
    """Of one run, whose iterates are vectors (of numpy, or of torch wherever they lie)."""

    def __init__(self) -> None:
        self._averages = {decay: MovingAverage(decay=decay, warm_up=True).begin() for decay in DECAYS}
        self._last: deque[Any] = deque(maxlen=max(TAILS))
        self._said: deque[Probabilities | None] = deque(maxlen=max(TAILS))  # by each of them, once it was asked

    def see(self, iterate: Any) -> None:
        """The next iterate."""
        for update in self._averages.values():
            update(iterate)
        self._last.append(iterate)
        self._said.append(None)

    @property
    def state(self) -> dict[str, Any]:
        """Plain data with iterates in it, by which another goes on."""
        return {"averages": {decay: update.state for decay, update in self._averages.items()}, "last": [*self._last]}

    @state.setter
    def state(self, reached: dict[str, Any]) -> None:
        for decay, update in self._averages.items():
            update.state = reached["averages"][decay]
        for held, new in ((self._last, reached["last"]), (self._said, [None] * len(reached["last"]))):
            held.clear()
            held.extend(new)

    def _average(self, decay: float) -> Any:
        return self._averages[decay].state["average"]

    def look(self, predict: Predict, labels: npt.NDArray[np.int64]) -> dict[str, Accuracies]:
        """The last iterate and every aggregation as they stand now, with parameters that nobody chose."""
        count = min(LOOKED_AT_LAST, len(self._last))
        said = [self._by(index, predict) for index in range(-count, 0)]
        votes = sum(_votes(one) for one in said)
        return {
            "last iterate": accuracies(said[-1], labels),
            f"EMA, decay {LOOKED_AT_DECAY}": accuracies(predict(self._average(LOOKED_AT_DECAY)), labels),
            f"UTA, last {LOOKED_AT_LAST}": accuracies(predict(sum(list(self._last)[-count:]) / count), labels),
            f"OPA, last {LOOKED_AT_LAST}": accuracies(np.sum(said, axis=0), labels),
            f"OMV, last {LOOKED_AT_LAST}": accuracies(np.asarray(votes), labels),
        }

    def _by(self, index: int, predict: Predict) -> Probabilities:
        said = self._said[index]
        if said is None:
            said = self._said[index] = predict(self._last[index])
        return said

    def measure(self, predict: Predict, labels: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Every aggregation with every parameter, and the one that its validation half chooses.

        `predict` gives the probabilities of every class for every image, one row each.
        """
        tails = [tail for tail in TAILS if tail <= len(self._last)] or [len(self._last)]
        found = {
            "last": {"": accuracies(self._by(-1, predict), labels)},
            "ema": {f"{decay:g}": accuracies(predict(self._average(decay)), labels) for decay in self._averages},
            "uta": {},
            "opa": {},
            "omv": {},
        }
        mean: Any = 0
        summed, votes = np.zeros(0), np.zeros(0)
        for count, iterate in enumerate(reversed(self._last), start=1):
            mean = mean + (iterate - mean) / count
            said = self._by(-count, predict)
            chosen = _votes(said)
            summed, votes = (said.astype(np.float64), chosen) if count == 1 else (summed + said, votes + chosen)
            if count in tails:
                found["uta"][str(count)] = accuracies(predict(mean), labels)
                found["opa"][str(count)] = accuracies(summed, labels)
                found["omv"][str(count)] = accuracies(votes, labels)  # ties go to the smallest label
        return {
            "No Agg": found["last"][""],
            "EMA baseline": found["ema"][f"{BASELINE_DECAY:g}"],
            **{f"{name} inf": tuned(found[key]) for name, key in (("EMA", "ema"), ("UTA", "uta"))},
            **{name: tuned(found[key]) for name, key in (("OPA", "opa"), ("OMV", "omv"))},
            "every parameter": found,
        }


def _votes(said: Probabilities) -> npt.NDArray[np.float64]:
    return np.asarray(np.eye(said.shape[1])[said.argmax(axis=1)])


def accuracies(scores: Probabilities, labels: npt.NDArray[np.int64]) -> Accuracies:
    """On the first half of the images, which chooses parameters, and on the second, which is reported."""
    right = scores.argmax(axis=1) == labels
    half = len(right) // 2
    return {"validation": float(right[:half].mean()), "test": float(right[half:].mean())}


def tuned(found: Mapping[str, Accuracies]) -> dict[str, Any]:
    """Alg. 4: the first parameter with the best accuracy on the validation half."""
    best = max(found, key=lambda parameter: found[parameter]["validation"])
    return {"parameter": float(best), **found[best]}
