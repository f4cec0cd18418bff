"""Pictures of aggregation_cifar10.py, of WRN-16-4s beside the paper's numbers and of small networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, ON_TOP, TAILS, TRAINED
from dpmerge_lab.experiments.aggregation_mnist_pictures import learning_rates, tails
from dpmerge_lab.experiments.aggregation_scores import RATES
from dpmerge_lab.experiments.aggregation_tuning import TUNING
from dpmerge_lab.experiments.results import counted, error_bars

# Recycling Scraps, Table 3: test accuracy in percent, mean of five runs; WRN-16-4 with augmentation multiplicity 16, tuned.
PAPER = {
    "eps8": (77.18, 78.98, 79.96, 79.16, 79.41, 79.39, 79.40, 79.34),
    "eps1": (52.83, 56.24, 57.51, 56.00, 56.61, 56.62, 56.68, 56.40),
    "shifting-eps8": (60.74, 78.18, 79.19, 77.99, 78.24, 77.92, 78.27, 77.99),
    "shifting-eps1": (47.13, 54.11, 55.01, 54.04, 54.04, 54.35, 54.58, 54.03),
}
# Table 1 for decays 0.9, 0.95, 0.99, 0.999, and Table 7 for the last 3, 5, 10, 20, … 100 checkpoints.
PAPER_TUNING = {
    "eps8": {
        "ema": (79.41, 79.35, 79.41, 79.16),
        "uta": (78.07, 78.24, 78.37, 78.81, 79.39, 79.16, 79.31, 79.13, 79.01, 78.88, 78.79, 78.71),
        "opa": (78.05, 78.22, 78.45, 78.89, 79.18, 79.33, 79.40, 79.40, 79.36, 79.37, 79.26, 79.11),
        "omv": (76.77, 77.2, 77.7, 78.32, 78.65, 78.81, 78.70, 78.92, 79.21, 79.20, 79.34, 79.31),
    },
    "eps1": {
        "ema": (56.59, 56.61, 56.06, 56.05),
        "uta": (55.29, 55.72, 55.96, 56.12, 56.43, 56.62, 56.59, 56.48, 56.33, 56.38, 56.4, 56.26),
        "opa": (55.75, 56.11, 56.23, 56.49, 56.68, 56.11, 56.43, 56.11, 55.91, 55.94, 55.80, 55.81),
        "omv": (53.75, 54.51, 54.90, 55.10, 55.07, 55.78, 56.14, 56.33, 56.40, 56.19, 56.23, 56.00),
    },
}
_TITLES = {
    "eps8": "CIFAR-10, ε = 8",
    "eps1": "CIFAR-10, ε = 1",
    "shifting-eps8": "periodic shift, ε = 8",
    "shifting-eps1": "periodic shift, ε = 1",
    "eps8-long": "CIFAR-10, ε = 8, 3,068 steps",
    "shifting-eps8-long": "periodic shift, ε = 8, 2,480 steps",
}
_LOOKED_AT = (
    "; at ε = 8 runs of 800 steps were looked at every 25, at its two extremes only, and only these two series were followed"
)
PLAIN = "best inference aggregation of the plain runs"  # where the tuning of training on aggregates has it
INFERENCE = {"ema": "EMA inf", "uta": "UTA inf", "opa": "OPA", "omv": "OMV"}  # whose parameters are chosen
_SHOWN = (LAST, *(name for pair in zip(TRAINED, ON_TOP, strict=True) for name in pair), *AFTERWARDS)


def papers(name: str) -> tuple[float, ...]:
    """Its row of Table 3 for this setting, however long it is here."""
    return PAPER[name.removesuffix("-long")]


def pictures(numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By name."""
    return _about(_of_all(numbers, _LOOKED_AT, beside_paper=True), "WRN-16-4, clip 1, batches of 4096, δ = 1e-5")


def small_pictures(numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By name."""
    found = _of_all(numbers, beside_paper=False)
    if rates := {name: of for name, of in numbers.items() if RATES in of}:
        titles = {name: f"{_TITLES[name]} ({_runs_of_rates(of)})" for name, of in rates.items()}
        found["learning-rates"] = learning_rates(rates, titles)
    if tried := {name: of for name, of in numbers.items() if TUNING in of}:
        plain = {name: of[TUNING][TRAINED[1]][PLAIN]["mean"] for name, of in tried.items()}
        found["tails"] = tails(tried, _TITLES, plain, "the runs from which these went on")
    return _about(found, "a network of 25,578 parameters, clip 1, batches of 1024, δ = 1e-5")


def _about(found: Mapping[str, Mapping[str, Any]], subtitle: str) -> dict[str, Mapping[str, Any]]:
    return {name: {"kind": "lines", "subtitle": subtitle, **one} for name, one in found.items()}


def _of_all(numbers: Mapping[str, Any], where_looked: str = "", *, beside_paper: bool) -> dict[str, Mapping[str, Any]]:
    """Of networks of any size. Runs that are as long as the paper's have a picture of their own over the steps."""
    found: dict[str, Mapping[str, Any]] = {
        "steps": _over_steps({name: of for name, of in numbers.items() if name in PAPER}, where_looked)
    }
    if long := {name: of for name, of in numbers.items() if name not in PAPER}:
        found["steps-long"] = _over_steps(long)
    return found | {"table": _table(numbers, beside_paper=beside_paper), "tuning": _tuning(numbers), "decays": _decays(numbers)}


def _over_steps(numbers: Mapping[str, Any], where_looked: str = "") -> dict[str, Any]:
    panels = []
    for name, found in numbers.items():
        lines = []
        for label, series in found["test accuracy over the steps"].items():
            points = [{**series, "mean": mean, "std": std} for mean, std in zip(series["mean"], series["std"], strict=True)]
            bars = {**in_percent(error_bars(points)), "x": found["steps"], "joined": True}
            lines.append({"label": label, **bars} if series["runs"] > 1 else {"label": label, **_without_bars(bars)})
        axes = {"x_label": "steps", "y_label": "test accuracy, %"}
        panels.append({"title": f"{_TITLES[name]} ({_runs(found)})", **axes, "lines": lines})
    return {
        "title": "Private iterates, and their aggregates, as training goes on",
        "caption": "Bands: ± one standard error, where there are several runs. An aggregate of iterates costs nothing beyond "
        "the run itself. Parameters are the same everywhere: nobody chose them. Under shift the period is 50 steps"
        f"{where_looked}.",
        "panels": panels,
    }


def _without_bars(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("low", "high")}


def in_percent(line: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a line, which are shares."""
    return {key: [100 * one for one in value] if key in ("y", "low", "high") else value for key, value in line.items()}


def _runs(found: Mapping[str, Any]) -> str:
    return counted([found["test accuracy"][LAST]["runs"]], "run")


def _runs_of_rates(found: Mapping[str, Any]) -> str:
    return counted((rate["test accuracy"][LAST]["runs"] for rate in found[RATES].values()), "run")


def _table(numbers: Mapping[str, Any], *, beside_paper: bool) -> dict[str, Any]:
    panels = []
    for name, found in numbers.items():
        measured = found["test accuracy"]
        shown = [measured.get(method) for method in _SHOWN]
        bars = in_percent(error_bars([one or measured[LAST] for one in shown]))
        for key in ("y", "low", "high"):
            bars[key] = [value if one else None for value, one in zip(bars[key], shown, strict=True)]
        lines = [{"label": "measured here", **bars}]
        if beside_paper:
            paper = dict(zip((LAST, *ON_TOP, *AFTERWARDS), papers(name), strict=True))
            line = {"label": "the paper, mean of five runs", "standing": "reference", "joined": False}
            lines.append({**line, "x": list(range(len(_SHOWN))), "y": [paper.get(method) for method in _SHOWN]})
        names = [f"{method} ({one['runs'] if one else 0})" for method, one in zip(_SHOWN, shown, strict=True)]
        axes = {"x_label": "aggregation (runs here)", "y_label": "test accuracy, %", "categories": names}
        panels.append({"title": _TITLES[name], **axes, "lines": lines})
    return {
        "title": "What each aggregation scores",
        "caption": "Bars are ± one standard error, where there are several runs. Parameters of inference aggregations are "
        "chosen on one half of the public test images and scored on the other. + inf: an inference aggregation, chosen there "
        "too, of the checkpoints of training on aggregates.",
        "panels": panels,
    }


def _tuning(numbers: Mapping[str, Any]) -> dict[str, Any]:
    counts = dict.fromkeys(("uta", "opa", "omv"), TAILS)
    return {
        "title": "How many checkpoints to aggregate (Table 7)",
        "caption": "Points above the last checkpoint, on the half of the public test images that chooses nothing. Bands: ± one "
        "standard error of the aggregate's accuracy, where there are several runs.",
        "panels": [
            {**_gains(numbers, name, counts), "x_label": "checkpoints aggregated", "y_label": "gain, points"}
            for name in reversed(PAPER_TUNING)
        ],
    }


def _decays(numbers: Mapping[str, Any]) -> dict[str, Any]:
    decays = (0.9, 0.95, 0.99, 0.999)
    return {
        "title": "Which decay of the moving average (Table 1)",
        "caption": "Points above the last checkpoint, on the half of the public test images that chooses nothing. Bars: ± one "
        "standard error, where there are several runs. The averages here are warmed up, so decays from 0.99 on are one.",
        "panels": [
            {
                **_gains(numbers, name, {"ema": decays}, named=True),
                "x_label": "decay",
                "y_label": "gain, points",
                "categories": [f"{decay:g}" for decay in decays],
            }
            for name in reversed(PAPER_TUNING)
        ],
    }


def _gains(
    numbers: Mapping[str, Any], name: str, tried: Mapping[str, Sequence[float]], *, named: bool = False
) -> dict[str, Any]:
    """A panel of one setting: for each kind of aggregate and every parameter tried, here and in the paper."""
    last, lines = 100 * numbers[name]["test accuracy"][LAST]["mean"], []
    for kind, given in tried.items():
        label, table = INFERENCE[kind], numbers[name]["test accuracy by parameter"][INFERENCE[kind]]
        shown = [one for one in given if f"{one:g}" in table]  # quick runs have few checkpoints
        bars = in_percent(error_bars([table[f"{one:g}"] for one in shown]))
        if not named:
            bars |= {"x": list(map(float, shown)), "joined": True}
        for key in ("y", "low", "high"):
            bars[key] = [value - last for value in bars[key]]
        lines.append({"label": f"{label}, here", **bars})
        there = [value - PAPER[name][0] for value in PAPER_TUNING[name][kind]]
        x = list(range(len(there))) if named else list(map(float, given))
        line = {**_without_bars(bars), "x": x, "y": there, "standing": "reference"}
        lines.append({**line, "label": f"{label}, the paper"})
    return {"title": f"{_TITLES[name]} ({_runs(numbers[name])})", "lines": lines}
