"""Pictures of aggregation_mnist.py: accuracy over the steps, the table, and what k and the learning rate have to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, RATES
from dpmerge_lab.experiments.aggregation_tuning import ALONE, TUNING, WITH_INFERENCE
from dpmerge_lab.experiments.results import around, band, error_bars

COLUMNS = (LAST, TRAINED[0], ON_TOP[0], TRAINED[1], ON_TOP[1], *AFTERWARDS, CHOSEN)

LABELS = {
    "No Agg": "last iterate",
    "EMA inf": "EMA of the iterates",
    "UTA inf": "UTA of the iterates",
    "EMA tr": "training on the EMA",
    "UTA tr": "training on the UTA",
}
NAMES = {LAST: "none", "EMA baseline": "EMA 0.9999", CHOSEN: "best of these five"}
FREE = "An aggregate of iterates costs nothing beyond the run itself."


def tuned_for(method: str, way: str) -> str:
    """The name of runs on aggregates whose parameters were chosen this way."""
    return f"{method}, tuned {way}"


def pictures(
    numbers: Mapping[str, Any], cases: Sequence[str], data: str, runs: int, learning_rate: float
) -> dict[str, Mapping[str, Any]]:
    """By name."""
    found = {name: numbers[name] for name in cases}
    titles = {name: f"{'even and odd in turns' if 'shifting' in name else data}, ε = {name[-1]}" for name in cases}
    what, how = f"softmax regression on {data}, δ = 1e-5", f"mean of {runs} runs each"
    one = {"kind": "lines", "subtitle": f"{what}, learning rate {learning_rate:g}, {how}"}
    plain = {name: of["test accuracy"][CHOSEN]["mean"] for name, of in found.items()}
    return {
        "steps": {**one, **_over_steps(found, titles)},
        "table": {**one, **_table(found, titles)},
        "on-top": {**one, **_on_top(found, titles)},
        "tails": {**one, **tails(found, titles, plain), "subtitle": f"{what}, learning rate {learning_rate:g}"},
        "learning-rates": {**one, **learning_rates(found, titles), "subtitle": f"{what}, {how}"},
    }


def _line(
    label: str, x: Sequence[float], y: Sequence[float], widths: Sequence[float] = (), markers: bool = True
) -> dict[str, Any]:
    heights = around(y, widths) if widths else {"y": list(y)}
    return {"label": label, "x": list(x), **heights, "standing": "measured", "markers": markers}


def _over_steps(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    panels = []
    for name, numbers in found.items():
        lines = []
        for method, label in LABELS.items():
            history = numbers["test accuracy over the steps"][method]
            widths = history["std"] if method == "No Agg" else ()
            lines.append(_line(label, numbers["steps"], history["mean"], widths, markers=False))
        panels.append({"title": titles[name], "x_label": "steps", "y_label": "test accuracy", "lines": lines})
    return {
        "title": "Private iterates and their aggregates as training goes on",
        "caption": f"{FREE} The band is ± one standard deviation of a single run. Averages have the parameters that each "
        "run's validation half chose at its end; runs on aggregates go on from them at their τ. Where batches shift, runs end "
        "on even digits.",
        "panels": panels,
    }


def _table(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    panels = []
    names = [NAMES.get(column, column) for column in COLUMNS]
    for name, numbers in found.items():
        bars = error_bars([numbers["test accuracy"][column] for column in COLUMNS])
        axes = {"x_label": "aggregation", "y_label": "test accuracy", "categories": names}
        panels.append({"title": titles[name], **axes, "lines": [{"label": "mean ± one standard error", **bars}]})
    return {
        "title": "The last iterate and its aggregates",
        "caption": f"{FREE} Each of EMA tr and UTA tr has (p, τ) chosen for itself, alone or with an inference aggregation on "
        "top (+ inf); which one that is, the validation half chooses run by run, as among the five of plain runs.",
        "panels": panels,
    }


def _on_top(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """As the paper combines them: training on aggregates, and an inference aggregation of its checkpoints."""
    shown = {LAST: "plain training", **{tuned_for(method, WITH_INFERENCE): LABELS[method] for method in TRAINED}}
    panels = []
    for name, numbers in found.items():
        measured = {method: numbers["inference aggregation on top"][method]["test accuracy"] for method in shown}
        lines = [{"label": shown[method], **error_bars(list(of.values()))} for method, of in measured.items()]
        names = ["alone", *list(measured[LAST])[1:-1], "best by validation"]
        axes = {"x_label": "inference aggregation on top", "y_label": "test accuracy", "categories": names}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "Training on aggregates, with an inference aggregation on top",
        "caption": f"{FREE} Bars are ± one standard error. (p, τ) were chosen with an inference aggregation on top. The last "
        "name takes, run by run, the inference aggregation that is best on the validation half.",
        "panels": panels,
    }


def tails(
    found: Mapping[str, Any], titles: Mapping[str, str], plain: Mapping[str, float], which: str = "the table"
) -> dict[str, Any]:
    """By k, with the τ that is best for it on the validation half: these are the runs that chose k and τ.

    Beside them what `plain` runs have, and `which` those are.
    """
    panels = []
    for name, numbers in found.items():
        grid = numbers[TUNING]["UTA tr"]["grid"]
        trials = grid[0]["runs"]
        tried = sorted({row["parameter"] for row in grid})
        lines = []
        for way, label in ((ALONE, "training on the UTA"), (WITH_INFERENCE, "with the best inference aggregation on top")):
            best = (max((row for row in grid if row["parameter"] == k), key=lambda row: row[way]["validation"]) for k in tried)
            lines.append(_line(label, tried, [row[way]["test"] for row in best]))
        level = {"x": [tried[0], tried[-1]], "y": [plain[name]] * 2, "standing": "reference"}
        lines.append({"label": "the best inference aggregation of plain runs", **level})
        axes = {"x_label": "k, iterates in the mean", "x_scale": "log", "y_label": "test accuracy"}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "Training on the mean of the last k iterates",
        "caption": f"{FREE} Mean of {trials} runs for every (k, τ); every k with the τ that the validation half prefers. The "
        f"level of plain runs is that of {which}.",
        "panels": panels,
    }


def learning_rates(found: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """Of plain runs: the last iterate and two aggregates over the learning rate."""
    panels = []
    for name, numbers in found.items():
        rates = numbers[RATES]
        lines = []
        for method in ("No Agg", "EMA inf", "UTA inf"):
            measured = [rate["test accuracy"][method] for rate in rates.values()]
            about = {"label": LABELS[method], "x": list(map(float, rates)), "standing": "measured", "markers": True}
            lines.append({**about, **band(measured)})
        axes = {"x_label": "learning rate", "x_scale": "log", "y_label": "test accuracy"}
        panels.append({"title": titles[name], **axes, "lines": lines})
    return {
        "title": "What there is to gain depends on the learning rate",
        "caption": f"{FREE} Bands are ± one standard error. Smaller steps average noise as well.",
        "panels": panels,
    }
