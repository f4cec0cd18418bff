"""Confidence intervals from checkpoints of one run against independent runs: what Fig. 6 of Recycling Scraps compares.

Independent runs are drawn from a pool, each at the full budget, and no two draws of a size share any (in what is kept of
CIFAR-10 they do); checkpoints are those of the last N steps, as in the paper, or keep to what its theorem asks for: N as far
apart as the second half of the run allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints import CONFIDENCE, Abstention, Uncertainty, abstention_curve, chosen_steps, uncertainty
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import Joint
from dpmerge.training import Recipe, fresh_generator
from dpmerge_lab.experiments.aggregation_scores import gain
from dpmerge_lab.experiments.portfolios import DELTA
from dpmerge_lab.experiments.results import around, band, counted, mean_and_deviation

RUNS, LAST, APART = "independent runs", "last N checkpoints", "N checkpoints over the second half"
TOP = {way: f"top score, {way}" for way in (RUNS, LAST, APART)}  # of the mean of their scores
ANSWERED, ABOVE = "accuracy where answered", "accuracy where answered, by widths less by top scores"
# Each way's widths beside the top score of the same mean; and widths of runs beside the score of one run's checkpoints.
_COMPARED = (*TOP.items(), (RUNS, TOP[LAST]))
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
Probabilities = npt.NDArray[np.floating]
Widths = Mapping[str, Mapping[int, Sequence[float]]]  # by way and N, one for each repeat
Curves = Mapping[str, Sequence[Abstention]]  # by way, one for each repeat
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # of the examples, answered


@dataclass(frozen=True)
class Design:
    """Sizes: of the pool of runs, of the samples N, and the N for which abstention is shown."""

    recipe: Recipe
    pool: int
    counts: tuple[int, ...]
    shown: int

    def steps(self, way: str, count: int) -> list[int]:
        """Of the checkpoints to use."""
        total, half = self.recipe.steps, self.recipe.steps // 2
        every = range(half, total + 1)
        return chosen_steps(every, last=count, separation=1 if way == LAST else (total - half) // (count - 1))


def _disjoint(pool: Sequence[Probabilities], count: int, most: int) -> Sequence[Iterable[Probabilities]]:
    """Draws of so many, as many as there are without sharing any."""
    order = fresh_generator().permutation(len(pool))
    return [map(pool.__getitem__, order[start : start + count]) for start in range(0, len(pool) - count + 1, count)][:most]


def _epsilon(records: Sequence[Record]) -> float:
    """Of these runs together."""
    portfolio = Portfolio(tuple(Model(f"run-{index}", record) for index, record in enumerate(records)))
    weights = portfolio.weights_in_order([1 / len(records)] * len(records))
    return Joint(weights).guarantee(delta=DELTA, by="pld").epsilon


def looked_at(design: Design, probabilities: Callable[[int], Probabilities]) -> Mapping[tuple[str, int], Uncertainty]:
    """What checkpoints of one run say, by way and N; `probabilities` are those after a step."""
    return {
        (way, count): uncertainty(probabilities(step) for step in design.steps(way, count))
        for way in (LAST, APART)
        for count in design.counts
    }


def compared(
    design: Design,
    pool: Sequence[Probabilities],
    watched: Sequence[Mapping[tuple[str, int], Uncertainty]],
    repeats: int,
    answers: npt.NDArray[np.int64],
) -> tuple[Widths, Curves]:
    """Mean widths of each way; accuracy against coverage by them, and by scores of the mean of checkpoints and of runs."""
    drawn = {n: list(map(uncertainty, _disjoint(pool, n, repeats))) for n in design.counts}
    widths = {RUNS: {n: [one.mean_width for one in found] for n, found in drawn.items()}}
    widths |= {way: {n: [found[way, n].mean_width for found in watched] for n in design.counts} for way in (LAST, APART)}
    shown = {RUNS: drawn[design.shown], **{way: [found[way, design.shown] for found in watched] for way in (LAST, APART)}}
    curves = {}
    for way, found in shown.items():
        curves[way] = [abstention_curve(one.widths, one.labels == answers) for one in found]
        curves[TOP[way]] = [abstention_curve(-one.scores, one.labels == answers) for one in found]
    return widths, curves


def numbers(
    design: Design,
    noise: float,
    accuracies: Sequence[float],
    records: Sequence[Record],
    widths: Widths,
    curves: Curves,
) -> dict[str, Any]:
    """Of one ε."""
    answered = {way: {share: [one.at(share) for one in found] for share in SHARES} for way, found in curves.items()}
    return {
        "noise multiplier": noise,
        "test accuracy": mean_and_deviation(accuracies),
        "rows": [_row(n, {way: of[n] for way, of in widths.items()}, records) for n in design.counts],
        ANSWERED: {way: {f"{share:g}": mean_and_deviation(of[share]) for share in SHARES} for way, of in answered.items()},
        ABOVE: {
            f"{way} − {score}": {
                f"{share:g}": gain(answered[way][share], answered[score][share], paired=score == TOP[way]) for share in SHARES
            }
            for way, score in _COMPARED
            if score in answered  # not every score was kept of CIFAR-10
        },
    }


def _row(count: int, widths: Mapping[str, Sequence[float]], records: Sequence[Record]) -> dict[str, Any]:
    reference = float(np.mean(widths[RUNS]))
    return {
        "N": count,
        "mean width": {way: mean_and_deviation(values) for way, values in widths.items()},
        "independent runs' width / checkpoints'": {way: reference / float(np.mean(widths[way])) for way in (LAST, APART)},
        "epsilon of one run": _epsilon(records[:1]),
        "epsilon of N runs together": _epsilon(records[:count]),
    }


def pictures(numbers: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Widths and ratios with their standard errors; one panel for each ε, or for each way."""
    what = f"{subtitle(configuration)}, mean ± standard error over at most {configuration['repeats']} repeats"
    common = {"kind": "lines", "subtitle": what}
    x = {"x_label": "N", "x_scale": "log"}
    counts = configuration["N"]

    def line(label: str, found: Sequence[tuple[float, float]], of_logarithms: bool = False) -> dict[str, Any]:
        def end(mean: float, error: float) -> float:
            return mean * math.exp(error / mean) if of_logarithms else mean + error

        low, high = ([end(mean, sign * error) for mean, error in found] for sign in (-1, 1))
        about = {"label": label, "x": counts, "standing": "measured", "markers": True}
        return {**about, "y": [mean for mean, _ in found], "low": low, "high": high}

    def reference(value: float) -> dict[str, Any]:
        return {"label": f"factor {value:g}", "x": counts, "y": [value] * len(counts), "standing": "reference"}

    widths = [
        {"title": name, **x, "y_label": "mean width", "y_scale": "log"}
        | {"lines": [line(way, [_width(row, way) for row in of["rows"]]) for way in (RUNS, LAST, APART)]}
        for name, of in numbers.items()
    ]
    ratios: list[dict[str, Any]] = [
        {"title": way, **x, "y_label": "independent runs' width / checkpoints'", "y_scale": "log"}
        | {"lines": [line(name, [ratio(row, way) for row in of["rows"]], of_logarithms=True) for name, of in numbers.items()]}
        for way in (LAST, APART)
    ]
    for panel in ratios:
        panel["lines"] += [reference(value) for value in (1.0, 2.0, 4.0)]
    caption = (
        f"Mean over the test examples of the width of the {100 * CONFIDENCE:g} % interval of the top score (Recycling Scraps, "
        "Fig. 6). Independent runs cost N times the computation and the ε of all together; checkpoints cost nothing more than "
        "their run. Bands of ratios are those of their logarithms: a ratio is positive, however uncertain. Where there is one "
        "draw of N runs, its error is not in them."
    )
    return {
        "widths": {**common, "title": "Uncertainty from checkpoints and from runs", "caption": caption, "panels": widths},
        "ratios": {**common, "title": "How much too small checkpoints' widths are", "caption": caption, "panels": ratios},
        **_abstention(numbers, configuration),
    }


def _abstention(numbers: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Accuracy over the share that is answered, by every way; and what widths gain over scores."""
    look = {"x": SHARES, "standing": "measured", "markers": True}
    levels = _panels(numbers, ANSWERED, "accuracy", lambda found: {**look, **band(found)})
    gains = _panels(
        numbers,
        ABOVE,
        "difference of accuracies",
        lambda found: {**look, **around([one["mean"] for one in found], [one["standard error"] or 0.0 for one in found])},
    )
    runs = [one["runs"] for of in numbers.values() for by_share in of[ANSWERED].values() for one in by_share.values()]
    about = {
        "kind": "lines",
        "subtitle": f"{subtitle(configuration)}, N = {configuration['N for abstention']}, {counted(runs, 'repeat')}",
        "caption": "The model answers where the width is small, or its top score large, and abstains elsewhere. Labels and top "
        "scores are of the mean over the runs or checkpoints. Bands: ± one standard error, where there are several repeats.",
    }
    return {
        "abstention": {**about, "title": "Abstention: accuracy where the model answers", "panels": levels},
        "abstention-compared": {**about, "title": "Abstention: what widths gain over top scores", "panels": gains},
    }


def _panels(
    numbers: Mapping[str, Any], shown: str, height: str, line: Callable[[list[Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    axes = {"x_label": "share of the examples that is answered", "y_label": height}
    return [
        {"title": name, **axes}
        | {"lines": [{"label": label, **line(list(by_share.values()))} for label, by_share in of[shown].items()]}
        for name, of in numbers.items()
    ]


def _width(row: Mapping[str, Any], way: str) -> tuple[float, float]:
    """Mean and standard error."""
    found = row["mean width"][way]
    return found["mean"], found["std"] / math.sqrt(found["runs"])


def ratio(row: Mapping[str, Any], way: str) -> tuple[float, float]:
    """Of the width from runs to that from checkpoints; its standard error to first order, as if repeats were independent."""
    (runs, of_runs), (checkpoints, of_checkpoints) = _width(row, RUNS), _width(row, way)
    return runs / checkpoints, runs / checkpoints * math.hypot(of_runs / runs, of_checkpoints / checkpoints)


def subtitle(configuration: Mapping[str, Any]) -> str:
    data, model = configuration["data"], configuration.get("model", "softmax regression")
    return f"{model} on {NAMES.get(data, data)}, δ = {DELTA:g}"
