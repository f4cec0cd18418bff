"""Fig. 1 of Recycling Scraps, corrected: ε of releasing the best of K runs of a Gaussian mechanism, over the mean of K.

The paper's caption says Poisson-distributed trials. Its four numbers lie below what Poisson trials cost, and are those of
geometric trials by Papernot and Steinke's theorem, the noise being calibrated by Rényi divergences too. Here every law of K
is computed for what it is: at most, by two theorems, and at least, by events (docs/theory.md §7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.jobs import run_all
from dpmerge.rules import (
    PROFILE,
    RENYI,
    Base,
    Calibration,
    DistributionName,
    round_down,
    trials,
    tuning_cost,
)
from dpmerge_lab.experiments.results import Options, Result, timed

DELTA = 1e-5
EPSILONS = (1.0, 8.0)
COUNTS = (72, 432)
SHAPE = -0.5  # of the truncated negative binomial that is neither geometric nor logarithmic
LAWS: dict[str, tuple[DistributionName, float | None]] = {
    "Poisson": ("poisson", None),
    "geometric": ("geometric", None),
    "logarithmic": ("logarithmic", None),
    f"negative binomial, η = {SHAPE:g}": ("tnb", SHAPE),
}
CALIBRATIONS: tuple[Calibration, ...] = ("rdp", "exact")


@dataclass(frozen=True)
class Reported:
    """A number of *Recycling Scraps*, Fig. 1, whose caption says that the trials are Poisson."""

    epsilon: float
    trials: int
    reported: float


FIGURE_1 = (Reported(1, 72, 2.62), Reported(1, 432, 2.98), Reported(8, 72, 16.08), Reported(8, 432, 18.34))
_UPPER, _RENYI, _LOWER, _OWN = "at most", "at most, by RDP", "at least", "at least, by its own outcome"
_PAPER = "Recycling Scraps, Fig. 1, which says Poisson"


@dataclass(frozen=True)
class Case:
    """One search: the law of K, its mean, and the (ε, δ) of one run with how that became noise."""

    law: str
    mean: float
    epsilon: float
    calibrate: Calibration


def tuning_cost_figure(options: Options) -> Result:
    """Over the number of trials with the paper's calibration, and at its 72 and 432 with both."""
    means = sorted({1.0, *COUNTS} if options.quick else {*np.geomspace(1, 1000, 25).round(2).tolist(), *COUNTS})
    configuration = {
        "delta": DELTA,
        "epsilon of one run": list(EPSILONS),
        "expected numbers of trials": means,
        "shape of the negative binomial": SHAPE,
        "base mechanism": "Gaussian",
        "noise": "calibrated by RDP and the tight conversion, as in the paper; at 72 and 432 trials also exactly",
    }
    with timed(Result("tuning-cost", configuration)) as result:
        lines = [Case(law, mean, epsilon, "rdp") for law in LAWS for epsilon in EPSILONS for mean in means]
        exact = [Case(law, mean, epsilon, "exact") for law in LAWS for epsilon in EPSILONS for mean in COUNTS]
        cases = lines + exact
        found = dict(zip(cases, run_all(_price, cases, jobs=options.jobs, progress=options.bar("prices")), strict=True))
        result.numbers = {
            "over the number of trials": {
                law: {
                    f"epsilon {epsilon:g}": [found[Case(law, mean, epsilon, "rdp")] for mean in means] for epsilon in EPSILONS
                }
                for law in LAWS
            },
            "at 72 and 432 trials, noise calibrated exactly": [
                {"law": case.law, "epsilon of one run": case.epsilon, **found[case]} for case in exact
            ],
            "the paper's numbers": [_compare(claim.epsilon, claim.trials, claim.reported, found) for claim in FIGURE_1],
        }
        result.pictures = pictures(result.numbers)
    return result


def _price(case: Case) -> dict[str, float | None]:
    distribution, shape = LAWS[case.law]
    cost = tuning_cost(Base.calibrated(case.epsilon, DELTA, case.calibrate), trials(distribution, case.mean, shape), DELTA)
    return {
        "trials": case.mean,
        _UPPER: cost.epsilon,
        "by the curve of one run": cost.bounds[PROFILE],
        _RENYI: cost.bounds[RENYI],
        _LOWER: cost.lower,
        _OWN: cost.lower_own_score,
        "one run alone": cost.alone,
    }


def _compare(epsilon: float, mean: int, reported: float, found: dict[Case, dict[str, Any]]) -> dict[str, Any]:
    """Which law a number of the paper belongs to: not Poisson's, whatever the calibration, but geometric's."""
    poisson = {how: found[Case("Poisson", mean, epsilon, how)] for how in CALIBRATIONS}
    geometric = found[Case("geometric", mean, epsilon, "rdp")][_RENYI]
    return {
        "epsilon of one run": epsilon,
        "trials": mean,
        "paper": reported,
        "Poisson, at least": {how: poisson[how][_LOWER] for how in CALIBRATIONS},
        "Poisson, at least, by its own outcome": {how: poisson[how][_OWN] for how in CALIBRATIONS},
        "Poisson, at most": {how: poisson[how][_UPPER] for how in CALIBRATIONS},
        "impossible for Poisson trials": all(reported < poisson[how][_OWN] for how in CALIBRATIONS),
        "geometric, by RDP, noise calibrated by RDP": geometric,
        "difference to geometric": reported - geometric,
        "geometric, at most": {how: found[Case("geometric", mean, epsilon, how)][_UPPER] for how in CALIBRATIONS},
    }


def pictures(numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Every law of K over its mean."""
    return {"figure-1": _picture(numbers["over the number of trials"])}


def _picture(laws: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    poisson: dict[str, tuple[str, ...]] = {"Poisson": (_UPPER, _RENYI, _LOWER, _OWN)}
    others: dict[str, tuple[str, ...]] = {
        law: (_UPPER, _RENYI, _LOWER) if law == "geometric" else (_UPPER,) for law in LAWS if law != "Poisson"
    }
    panels = [
        _panel(f"{title}, one run with ε = {epsilon:g}", laws, epsilon, shown, scale)
        for title, shown, scale in (("Poisson trials", poisson, "log"), ("at least one trial", others, "linear"))
        for epsilon in EPSILONS
    ]
    caption = (
        "At most: the smaller of two theorems, or Papernot and Steinke's by RDP. At least: what a Gaussian mechanism has "
        "at this δ if the worst score ranks its runs, or their own outcomes do; no theorem can promise less."
    )
    return {
        "kind": "lines",
        "title": "The price of tuning: ε of the best of K runs (Recycling Scraps, Fig. 1, corrected)",
        "subtitle": f"Gaussian mechanism, (ε, {DELTA:g})-DP by RDP and the tight conversion".replace("e-0", "e-"),
        "caption": caption,
        "warning": "The paper's numbers are below what Poisson trials cost. They are geometric trials', by RDP.",
        "panels": panels,
    }


def _panel(
    title: str,
    laws: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    epsilon: float,
    shown: dict[str, tuple[str, ...]],
    scale: str,
) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    for law, kinds in shown.items():
        rows = laws[law][f"epsilon {epsilon:g}"]
        means = [row["trials"] for row in rows]
        for kind in kinds:
            values = [row[kind] for row in rows]
            lower = kind in (_LOWER, _OWN)
            line = {"label": f"{law}, {kind}", "x": means, "y": [round_down(value) for value in values] if lower else values}
            lines.append({**line, "standing": "reference"} if lower else line)
    claims = [claim for claim in FIGURE_1 if claim.epsilon == epsilon]
    told = {"label": _PAPER, "x": [claim.trials for claim in claims], "y": [claim.reported for claim in claims]}
    lines.append({**told, "standing": "measured", "markers": True})
    axes = {"x_label": "expected number of trials", "y_label": f"ε at δ = {DELTA:g}".replace("e-0", "e-"), "x_scale": "log"}
    return {"title": title, **axes, "y_scale": scale, "lines": lines}
