"""Pictures of aggregation_mnist.py: accuracy over the steps, the table, and what the learning rate has to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.aggregation import METHODS
from dpmerge_lab.experiments.aggregation_cifar10 import PAPER
from dpmerge_lab.experiments.results import error_bars

_LABELS = {
    "No Agg": "last iterate",
    "EMA inf": "EMA of the iterates",
    "UTA inf": "UTA of the iterates",
    "EMA tr": "training on the EMA",
    "UTA tr": "training on the UTA",
}
_TRAINED = {"No Agg": "plain training", "EMA tr": "training on the EMA", "UTA tr": "training on the UTA"}
_FREE = "An aggregate of iterates costs nothing beyond the run itself."


def pictures(
    numbers: Mapping[str, Any], cases: Sequence[str], data: str, runs: int, learning_rate: float
) -> dict[str, Mapping[str, Any]]:
    """By name."""
    found = {name: numbers[name] for name in cases}
    titles = {name: f"{'even and odd in turns' if 'shifting' in name else data}, ε = {name[-1]}" for name in cases}
    what, how = f"softmax regression on {data}, δ = 1e-5", f"mean of {runs} runs each"
    one = {"kind": "lines", "subtitle": f"{what}, learning rate {learning_rate:g}, {how}"}
    return {
        "steps": {**one, **_over_steps(found, titles)},
        "table": {**one, **_table(found, titles)},
        "on-top": {**one, **_on_top(found, titles)},
        "learning-rates": {**one, **_learning_rates(found, titles), "subtitle": f"{what}, {how}"},
    }


def _line(
    label: str, x: Sequence[float], y: Sequence[float], around: Sequence[float] = (), markers: bool = True
) -> dict[str, Any]:
    line = {"label": label, "x": list(x), "y": list(y), "standing": "measured", "markers": markers}
    if not around:
        return line
    low, high = ([one + sign * width for one, width in zip(y, around, strict=True)] for sign in (-1, 1))
    return {**line, "low": low, "high": high}


def _over_steps(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    panels = []
    for name, numbers in found.items():
        lines = []
        for method, label in _LABELS.items():
            history = numbers["test accuracy over the steps"][method]
            around = history["std"] if method == "No Agg" else ()
            lines.append(_line(label, numbers["steps"], history["mean"], around, markers=False))
        panels.append({"title": titles[name], "x_label": "steps", "y_label": "test accuracy", "lines": lines})
    return {
        "title": "Private iterates and their aggregates as training goes on",
        "caption": f"{_FREE} The band is ± one standard deviation of a single run. Averages have the parameters that each "
        "run's validation half chose at its end; runs on aggregates go on from them at their τ. Where batches shift, runs end "
        "on even digits.",
        "panels": panels,
    }


def _table(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """As shares of the last checkpoint's errors: the paper's network and data make several times as many."""
    panels = []
    places = list(range(len(METHODS)))
    for name, numbers in found.items():
        errors = 1 - numbers["test accuracy"]["No Agg"]["mean"]
        gains = [numbers["gain over no aggregation"].get(method, {"mean": 0.0, "standard error": 0.0}) for method in METHODS]
        share = [gain["mean"] / errors for gain in gains]
        spread = [2 * (gain["standard error"] or 0.0) / errors for gain in gains]
        rate = numbers["best learning rate for the last iterate"]
        smaller = numbers["learning rates"][rate]["test accuracy"]["No Agg"]["mean"]
        tuned = [(smaller - (1 - errors)) / errors] * len(places)
        first, *others = PAPER[name]
        paper = [0.0, *((other - first) / (100 - first) for other in others)]
        lines = [
            {**_line("measured here, ± two standard errors", places, share, spread), "joined": False},
            {"label": "the last checkpoint at its best learning rate", "x": places, "y": tuned, "standing": "reference"},
            {"label": "the paper, on CIFAR-10", "x": places, "y": paper, "standing": "reference", "joined": False},
        ]
        axes = {"x_label": "aggregation", "y_label": "share of errors avoided", "categories": list(METHODS)}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "How many of the last checkpoint's errors each aggregation avoids",
        "caption": _FREE,
        "panels": panels,
    }


def _on_top(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """As the paper combines them: training on aggregates, and an inference aggregation of its checkpoints."""
    panels = []
    for name, numbers in found.items():
        measured = {method: of["test accuracy"] for method, of in numbers["inference aggregation on top"].items()}
        lines = [{"label": _TRAINED[method], **error_bars(list(of.values()))} for method, of in measured.items()]
        shown = ["alone", *list(measured["No Agg"])[1:-1], "best by validation"]
        axes = {"x_label": "inference aggregation on top", "y_label": "test accuracy", "categories": shown}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "Training on aggregates, alone and with an inference aggregation on top",
        "caption": f"{_FREE} Bars are ± one standard error. The last name takes, run by run, the inference aggregation that "
        "is best on the validation half.",
        "panels": panels,
    }


def _learning_rates(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    panels = []
    for name, numbers in found.items():
        rates = numbers["learning rates"]
        lines = []
        for method in ("No Agg", "EMA inf", "UTA inf"):
            measured = [rate["test accuracy"][method] for rate in rates.values()]
            mean, error = [one["mean"] for one in measured], [one["std"] / one["runs"] ** 0.5 for one in measured]
            lines.append(_line(_LABELS[method], list(map(float, rates)), mean, error))
        axes = {"x_label": "learning rate", "x_scale": "log", "y_label": "test accuracy"}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "What there is to gain depends on the learning rate",
        "caption": f"{_FREE} Bands are ± one standard error. Smaller steps average noise as well.",
        "panels": panels,
    }
