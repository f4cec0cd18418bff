"""What repeated runs with their inference aggregations scored, and what each gains: for the tables of the experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST

CHOSEN = "best on the validation half"
RATES = "learning rates"  # where results have plain runs at several


def scores(runs: Sequence[Any]) -> dict[str, list[float]]:
    """Test accuracies of the last checkpoint and of inference aggregations, run by run."""
    found = {method: [run["measured"][method]["test"] for run in runs] for method in (LAST, *AFTERWARDS)}
    return {**found, CHOSEN: [chosen(run["measured"])["test"] for run in runs]}


def parameters(runs: Sequence[Any]) -> dict[str, list[float]]:
    """What Alg. 4 chose, run by run."""
    return {method: [run["measured"][method]["parameter"] for run in runs] for method in AFTERWARDS[1:]}


def chosen(measured: Mapping[str, Any]) -> Any:
    """Of the inference aggregations the first that is best on the validation half: the paper does not say which it took."""
    return max((measured[method] for method in AFTERWARDS), key=lambda one: one["validation"])


def gain(values: Sequence[float], last: Sequence[float], *, paired: bool = True) -> dict[str, float | None]:
    """Mean difference, its standard error, and their ratio: run by run, or of two samples of runs.

    Runs on aggregates that are taken run by run are paired by number only.
    """
    mean, error = float(np.mean(values) - np.mean(last)), None
    samples = [np.subtract(values, last)] if paired else [np.asarray(values), np.asarray(last)]
    if all(len(sample) > 1 for sample in samples):
        error = math.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in samples))
    return {"mean": mean, "standard error": error, "ratio": mean / error if error else None}


def clear(found: Mapping[str, Any]) -> bool:
    """A gain of more than two standard errors."""
    return found["ratio"] is not None and found["ratio"] > 2
