"""Linear combinations of hidden runs: random trainings, known worst cases, and hill climbing (docs/theory.md §3.3)."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.violations.report import Report, compare
from tests.violations.trainings import NUMBERS, Numbers, Training, corners, decoded


def examine(training: Training) -> Report:
    """One training, released at its end: what is proved of every step, and of its last iterates alone."""
    laws = training.laws()
    truth = cache(lambda epsilon: max(laws.delta(epsilon)))  # both are asked at the same ε
    report = Report()
    for only_release in (False, True):
        report.add(compare([training.rule(only_release)], truth, training))
    return report


def check_transport(examples: int, seed: int, sampled: bool = False) -> Report:
    """Known worst cases and random trainings, full batch or with Poisson sampling."""
    rng = np.random.default_rng(seed)
    report = Report()
    for training in corners(sampled):
        report.add(examine(training))
    for _ in range(examples):
        report.add(examine(decoded(Numbers(rng.random(NUMBERS)), sampled)))
    return report


def climb(evaluations: int, seed: int, sampled: bool = False, account: str = "1 coupled") -> Report:
    """Hill climbing towards the largest true δ / proved δ of accounts of this name, from the best of a few random trainings."""
    rng = np.random.default_rng(seed)
    report = Report()
    best, reached = rng.random(NUMBERS), -1.0
    for evaluation in range(evaluations):
        moved = rng.random(NUMBERS) < (1.0 if evaluation < evaluations / 10 else rng.choice([0.01, 0.04, 0.1]))
        near = np.clip(best + 0.1 * rng.standard_normal(NUMBERS), 0, 1)
        tried = np.where(moved, np.where(rng.random(NUMBERS) < 0.5, rng.random(NUMBERS), near), best)
        found = examine(decoded(Numbers(tried), sampled))
        report.add(found)
        if found.of(account) >= reached:
            best, reached = tried, found.of(account)
    return report
