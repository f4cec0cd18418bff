"""Differentially Private Model Merging §7: joint release (Rényi and loss distributions) against composition of (ε, δ) pairs.

The papers prove one comparison (Prop. 7.1: N equal Gaussian mechanisms, Rényi against advanced composition) and measure
none. Here N equal models, either Gaussian mechanisms or DP-SGD runs with the batches and steps of the MNIST experiment, are
released together. The pairs that are composed are exact: each model's ε by its loss distribution, at its share of δ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq

from dpmerge.jobs import run_all
from dpmerge.records import Model, Portfolio, Record, Weights
from dpmerge.rules import Combination, Joint, PairComposition, Selection
from dpmerge_lab.experiments.mean_estimation import gaussian_model
from dpmerge_lab.experiments.results import Options, Result, timed

DELTA = 1e-5
EACH = 1.0  # ε of a model alone, where the number of models varies
TOGETHER = 16  # models, where ε varies
_RATE, _STEPS = 256 / 60000, 705
_AXIS = f"ε at δ = {DELTA:g}".replace("e-0", "e-")

Kind = Literal["gaussian", "dp-sgd"]
_TITLES: dict[Kind, str] = {"gaussian": "Gaussian mechanisms", "dp-sgd": f"DP-SGD, rate 256/60000, {_STEPS} steps"}
# How each method looks: its label, and the rule and accountant that decide its colour.
_LINES: dict[str, dict[str, str]] = {
    "selection, PLD": {"label": "random selection, PLD", "rule": "selection", "by": "pld"},
    "joint, PLD": {"label": "joint release, PLD", "rule": "joint", "by": "pld"},
    "joint, RDP": {"label": "joint release, RDP, papers' conversion", "rule": "joint", "by": "rdp"},
    "optimal, PLD": {"label": "optimal composition of PLD's pairs"},
    "basic, PLD": {"label": "basic composition of PLD's pairs"},
    "advanced, PLD": {"label": "advanced composition of PLD's pairs"},
    "advanced, RDP": {"label": "advanced composition of RDP's pairs (Prop. 7.1)"},
}


@dataclass(frozen=True)
class Equal:
    """Several equal models."""

    kind: Kind
    noise: float  # in units of the sensitivity, of each step for DP-SGD
    models: int

    @property
    def weights(self) -> Weights:
        """All of them, equally."""
        models = tuple(_model(self.kind, f"model-{index}", self.noise) for index in range(self.models))
        return Portfolio(models).weights_in_order([1 / self.models] * self.models)


def composition(options: Options) -> Result:
    """ε of N models together, over N and over the ε of each."""
    counts = [1, 2, 4, 8] if options.quick else [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    noises: dict[Kind, list[float]] = {
        "gaussian": np.geomspace(1, 40, 5 if options.quick else 15).tolist(),
        "dp-sgd": np.geomspace(0.6, 3, 3 if options.quick else 11).tolist(),
    }
    together = 4 if options.quick else TOGETHER
    of_two: dict[Kind, list[float]] = {  # to smaller ε: few models that are very private are where pairs are at their best
        "gaussian": np.geomspace(1, 400, 4 if options.quick else 14).tolist(),
        "dp-sgd": np.geomspace(0.6, 12, 3 if options.quick else 14).tolist(),
    }
    configuration: dict[str, Any] = {
        "delta": DELTA,
        "adjacency": "add-remove",
        "numbers of models": counts,
        "epsilon of each": EACH,
        "noise multipliers": noises,
        "noise multipliers of two models": of_two,
        "models together": together,
        "dp-sgd": {"sampling": "poisson", "rate": _RATE, "steps": _STEPS},
    }
    with timed(Result("composition", configuration)) as result:
        over: dict[str, list[Equal]] = {}
        for kind, title in _TITLES.items():
            noise = _noise_for(kind, EACH)
            over[f"over N, {title}"] = [Equal(kind, noise, count) for count in counts]
            over[f"over ε, {title}"] = [Equal(kind, noise, together) for noise in noises[kind]]
            over[f"over ε of two, {title}"] = [Equal(kind, noise, 2) for noise in of_two[kind]]
        cases = [case for some in over.values() for case in some]
        accounted = dict(
            zip(cases, run_all(_account, cases, jobs=options.jobs, progress=options.bar("compositions")), strict=True)
        )
        result.numbers = {name: [accounted[case] for case in some] for name, some in over.items()}
        result.pictures = pictures(configuration, result.numbers)
        result.numbers["comparisons"] = _comparisons([row for rows in result.numbers.values() for row in rows])
    return result


def pictures(configuration: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Over N, over ε, and over ε of two."""
    each, together = configuration["epsilon of each"], configuration["models together"]

    def panels(over: str) -> dict[str, Any]:
        return {title: numbers[f"over {over}, {title}"] for title in _TITLES.values()}

    return {
        "models": _picture(
            f"ε of N models together, each with ε = {each:g}", "number of models N", panels("N"), lambda row: row["models"]
        ),
        "epsilon": _picture(
            f"ε of {together} models together", f"{_AXIS} of each model", panels("ε"), lambda row: row["alone"]
        ),
        "two": _picture("ε of two models together", f"{_AXIS} of each model", panels("ε of two"), lambda row: row["alone"]),
    }


def _model(kind: Kind, name: str, noise: float) -> Model:
    if kind == "gaussian":
        return gaussian_model(name, 1.0, noise, "add-remove")
    mechanism = {
        "kind": "dp-sgd",
        "run": name,
        "noise_fingerprint": None,
        "sampler_fingerprint": None,
        "optimizer": "sgd",
        "sampling": {"scheme": "poisson", "rate": _RATE},
        "expected_batch": 256.0,
        "noise_multiplier": noise,
        "clip": 1.0,
        "clipping": "flat",
        "phases": [{"steps": _STEPS, "learning_rate": 0.1}],
        "smoothness": None,
        "convex": None,
    }
    record = {"schema": 1, "dataset": "synthetic", "adjacency": "add-remove", "mechanism": mechanism}
    return Model(name, Record.parse(json.dumps(record), source=name))


def _alone(kind: Kind, noise: float) -> float:
    return Joint(Equal(kind, noise, 1).weights).guarantee(delta=DELTA, by="pld").epsilon


def _noise_for(kind: Kind, epsilon: float) -> float:
    """The noise with which a model alone has this ε, to 1e-6 of it."""
    return float(brentq(lambda noise: _alone(kind, noise) - epsilon, 0.3, 100, rtol=1e-6))


def _account(case: Equal) -> dict[str, Any]:
    """ε by every method; "tight" is the conversion that dpmerge uses, everything else by Rényi divergences the papers'."""
    weights = case.weights
    joint = Joint(weights)
    pairs = {
        f"{way}, {by.upper()}": PairComposition(weights, way).guarantee(delta=DELTA, by=by, conversion="paper").epsilon
        for way in ("basic", "advanced", "optimal")
        for by in ("pld", "rdp")
    }
    row = {
        "models": case.models,
        "noise multiplier": case.noise,
        "alone": _alone(case.kind, case.noise),
        "joint, PLD": joint.guarantee(delta=DELTA, by="pld").epsilon,
        "joint, RDP": joint.guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
        "joint, RDP, tight": joint.guarantee(delta=DELTA, by="rdp").epsilon,
        "selection, PLD": Selection(weights).guarantee(delta=DELTA, by="pld").epsilon,
        **pairs,
    }
    if case.kind == "gaussian":
        row["combination, PLD"] = Combination(weights).guarantee(delta=DELTA, by="pld").epsilon
    return row


def _comparisons(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Prop. 7.1 and the claims of §7 as extremes over all rows."""

    def least(upper: str, lower: str, some: Sequence[dict[str, Any]] = rows) -> float:
        return min(float(row[upper] / row[lower]) for row in some)

    several = [row for row in rows if row["models"] > 1]
    gaussian = [row for row in rows if "combination, PLD" in row]
    beaten, still = ([row for row in several if row["optimal, PLD"] < row[by]] for by in ("joint, RDP", "joint, RDP, tight"))
    return {  # M1 is version 1 of Differentially Private Model Merging; kept results have this key
        "smallest advanced ε / joint ε, both by RDP (M1 Prop. 7.1)": least("advanced, RDP", "joint, RDP"),
        "smallest advanced ε / joint ε, both by PLD": least("advanced, PLD", "joint, PLD"),
        "smallest optimal ε / joint ε, both by PLD, several models": least("optimal, PLD", "joint, PLD", several),
        "smallest optimal ε by PLD / joint ε by RDP, several models": least("optimal, PLD", "joint, RDP", several),
        "cases of several models where optimal composition of PLD's pairs is below joint RDP": len(beaten),
        "the same with the tight conversion": len(still),
        "largest ε of each of them": max((float(row["alone"]) for row in beaten), default=0.0),
        "most models of them": max((int(row["models"]) for row in beaten), default=0),
        "cases of several models": len(several),
        "largest joint PLD ε / joint RDP ε": 1 / least("joint, RDP", "joint, PLD"),
        "largest selection ε / joint ε, both by PLD, several models": 1 / least("joint, PLD", "selection, PLD", several),
        "largest combination ε / joint ε, Gaussian mechanisms": 1 / least("joint, PLD", "combination, PLD", gaussian),
        "smallest combination ε / joint ε, Gaussian mechanisms": least("combination, PLD", "joint, PLD", gaussian),
    }


def _picture(title: str, x_label: str, rows: dict[str, Any], x: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    panels = [
        {
            "title": name,
            "x_label": x_label,
            "y_label": _AXIS,
            "x_scale": "log",
            "y_scale": "log",
            "lines": [
                {**look, "x": [x(row) for row in some], "y": [row[method] for row in some]} for method, look in _LINES.items()
            ],
        }
        for name, some in rows.items()
    ]
    caption = (
        "Joint release composes loss distributions or Rényi divergences. Pairs are each model's (ε, δ) at its share of δ, by "
        "either, and are composed knowing nothing else. Random selection releases one of the models."
    )
    subtitle = "equal and independent models, add-remove neighbours"
    return {
        "kind": "lines",
        "title": f"{title} (Differentially Private Model Merging, §7)",
        "subtitle": subtitle,
        "caption": caption,
        "panels": panels,
    }
