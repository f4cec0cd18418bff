"""What the experiments on portfolios of linear models show: frontiers with their spread, ε along weights, ε along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpmerge.jobs import run_all
from dpmerge.planning import Heatmap, Surface, frontier, heatmap
from dpmerge.records import Portfolio
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Joint, assumed_by
from dpmerge_lab.experiments.portfolios import CHOSEN_BY_TEST, DELTA, Measured, Setting, grid_step
from dpmerge_lab.experiments.results import Options, band, mean_and_deviation

PROVED, FORMULA = "linear combination, proved", "linear combination, papers' formula"
MERELY_SMOOTH = "linear combination, proved from smoothness alone"
LAST_ONLY = "linear combination, proved if nothing else is published"
SELECTION, JOINT = "random selection", "joint release"
AVERAGE, DRAW = "test accuracy of the average", "expected test accuracy of a draw"
_CURVES: dict[str, dict[str, Any]] = {
    PROVED: {"rule": "combination", "by": "pld"},
    FORMULA: {"rule": "combination", "by": "pld", "standing": "conditional"},
    SELECTION: {"rule": "selection", "by": "pld"},
    JOINT: {"rule": "joint", "by": "pld"},
}
_SCORES = {PROVED: AVERAGE, SELECTION: DRAW}
RDP = "the tight conversion"  # of Canonne et al. 2020, which is below the papers'
_AXIS = f"ε at δ = {DELTA:g}".replace("e-0", "e-")
_EPSILON = {"y_label": _AXIS, "y_scale": "log"}
_FRONTIER_AXES = {"x_label": _AXIS, "x_scale": "log", "y_label": "test accuracy (of a draw: expected)"}
Row = Mapping[str, Any]


def whole_heatmap(portfolio: Portfolio, options: Options, what: str) -> Heatmap:
    """What is proved and the papers' formula in one picture: what is compared has one scale of colours."""
    surfaces: list[Surface] = []
    assumptions: dict[str, list[str]] = {}
    for label, assumed in (("proved", None), ("formula", 0.0)):
        run = partial(run_all, jobs=options.jobs, progress=options.bar(f"heatmap, {label}"))
        accounting = Accounting(assume_smoothness=assumed)
        found = heatmap(portfolio, delta=DELTA, step=grid_step(options) / 2, accounting=accounting, run=run)
        surfaces += [surface for surface in found.panels if surface not in surfaces]  # draws are the same in both
        assumptions |= found.assumptions
    title = f"{what}: ε of every merge (RDP by {RDP})"
    return replace(found, panels=tuple(surfaces), assumptions=assumptions, title=title)


def frontier_panel(
    measured: Measured, options: Options, title: str = "", accounting: Accounting = DEFAULT_ACCOUNTING
) -> dict[str, Any]:
    """Test accuracy against ε, with bands.

    Random selection is optimal at every target, and what is drawn is its expected accuracy; combinations are those of a grid
    that no other beats. Both by the mean accuracies, so their weights are chosen by looking at the models.
    """
    portfolio = measured.portfolio
    drawn = frontier(
        portfolio,
        delta=DELTA,
        epsilons=targets(portfolio, 12 if options.quick else 60),
        accounting=accounting,
        scorer=measured,
        step=grid_step(options),
        run=partial(run_all, jobs=options.jobs, progress=options.bar("frontier")),
    )
    lines = []
    for curve in drawn.curves:
        kept = [one for one in curve.points if one.weights is not None and (curve.exact or one.on_frontier)]
        weights = [tuple(one.weights[name] for name in portfolio.names) for one in kept if one.weights is not None]
        score = measured.of if curve.rule == "combination" else measured.drawn
        line = {"x": [one.epsilon for one in kept], **band([mean_and_deviation(score(point)) for point in weights])}
        look = {"rule": curve.rule, "by": curve.by, "standing": curve.standing}
        lines.append({"label": f"{curve.title}, {curve.by.upper()}", **look, **line, "weights": weights})
    marks = [{"name": one.name, "x": one.epsilon["pld"], "y": one.utility, "mark": "model"} for one in drawn.models]
    if drawn.joint is not None:
        marks.append({"name": JOINT, "x": drawn.joint.epsilon, "y": drawn.joint.utility, "mark": "joint"})
    return {"title": title, **_FRONTIER_AXES, "lines": lines, "points": marks}


def kept_frontier_panel(title: str, numbers: Row) -> dict[str, Any]:
    """The same from kept numbers: `frontier_numbers`, the models alone and the averages.

    Bands of earlier results were of single runs ("± deviation") and are made those of the mean; rule and accountant were in
    the label alone.
    """
    (runs,) = {known["test accuracy"]["runs"] for known in numbers["alone"].values()}
    narrower = runs**-0.5 if "± deviation" in numbers["frontier"]["y"] else 1.0
    lines = []
    for curve in numbers["frontier"]["curves"]:
        look = {"rule": "selection" if curve["label"].startswith(SELECTION) else "combination"}
        look["by"] = curve["label"].rpartition(", ")[2].lower()
        band = {
            side: [y + narrower * (end - y) for y, end in zip(curve["y"], curve[side], strict=True)] for side in ("low", "high")
        }
        lines.append({**look, **curve, **band})
    models = numbers["alone"].items()
    marks = [
        {"name": name, "x": one["epsilon by PLD"], "y": one["test accuracy"]["mean"], "mark": "model"} for name, one in models
    ]
    together = max(row[JOINT] for row in numbers["averages"])
    marks.append({"name": JOINT, "x": together, "y": max(mark["y"] for mark in marks), "mark": "joint"})
    return {"title": title, **_FRONTIER_AXES, "lines": lines, "points": marks}


def frontier_picture(title: str, panels: Sequence[Row], options: Options) -> dict[str, Any]:
    """Frontiers side by side, those of combinations as staircases."""
    drawn = [
        {**panel, "lines": [_steps(line) if line["rule"] == "combination" else line for line in panel["lines"]]}
        for panel in panels
    ]
    return {
        "kind": "lines",
        "title": title,
        "subtitle": f"mean ± standard error, {options.seeds} repetitions with randomness of their own; RDP by {RDP}",
        "warning": CHOSEN_BY_TEST,
        "panels": drawn,
    }


def frontier_numbers(panel: Row) -> dict[str, Any]:
    """What a panel of frontiers shows, for the results."""
    fields = ("label", "rule", "by", "standing", "x", "y", "low", "high", "weights")
    return {
        "x": "epsilon",
        "y": "mean test accuracy, low and high: mean ± standard error; of random selection: expected over the draw",
        "conversion of RDP": RDP,
        "how the weights were chosen": CHOSEN_BY_TEST,
        "curves": [{key: line[key] for key in fields} for line in panel["lines"]],
    }


def heatmaps_of_accounts(portfolios: Mapping[str, Portfolio], options: Options, what: str) -> dict[str, dict[str, Any]]:
    """Of each portfolio a picture with a triangle for each account; all have one scale of colours.

    An infinite ε is white, and 0 is on no logarithmic scale.
    """
    found = {}
    for name, portfolio in portfolios.items():
        title = f"{what}, {name}: ε of every merge by PLD"
        found[name] = replace(_heatmap_of_accounts(portfolio, options, name), title=title)
    every = [value for one in found.values() for panel in one.panels for value in panel.epsilons if 0 < value < np.inf]
    reach = (min(every), max(every)) if every else ()
    return {name: replace(one, reach=reach).as_dict() for name, one in found.items()}


def _heatmap_of_accounts(portfolio: Portfolio, options: Options, title: str) -> Heatmap:
    """ε of every merge of three models by loss distributions, a triangle for each account of it."""
    accounts = {
        PROVED: Accounting(only_release=False),
        "the same, nothing else published": Accounting(),
        "papers' formula": Accounting(assume_smoothness=0.0),
    }
    found = {}
    for label, accounting in accounts.items():
        run = partial(run_all, jobs=options.jobs, progress=options.bar(f"heatmap, {title}: {label}"))
        found[label] = heatmap(portfolio, delta=DELTA, step=grid_step(options) / 2, accounting=accounting, run=run)
    first = found[PROVED]
    together = [Joint(portfolio.weights_in_order(point)).guarantee(delta=DELTA) for point in first.points]
    selected = next(panel for panel in first.panels if (panel.rule, panel.by) == ("selection", "pld"))
    combined = [
        replace(panel, title=label)
        for label, one in found.items()
        for panel in one.panels
        if (panel.rule, panel.by) == ("combination", "pld")
    ]
    joint = Surface("joint", "pld", "proved", JOINT, [one.epsilon for one in together])
    assumed = [(JOINT, one.assumptions) for one in together]
    for label, one in found.items():
        assumed += [(SELECTION if SELECTION in rules else label, (text,)) for text, rules in one.assumptions.items()]
        assumed += [(label, (text,)) for text, rules in one.assumptions.items() if set(rules) != {SELECTION}]
    panels = (replace(selected, title=SELECTION), *combined, joint)
    return replace(first, panels=panels, assumptions=assumed_by(assumed))


def against_weights(title: str, setting: Setting, alone: Mapping[str, Row], averages: Sequence[Row]) -> dict[str, Any]:
    """ε and test accuracy against the weight of the first, less private model beside the other, and against each other."""
    first, last = setting.names
    shares = [row["weights"][first] for row in averages]
    guaranteed = [{**_through(shares, averages, label), **look} for label, look in _CURVES.items()]
    scored = [{**_measured(shares, _column(averages, key)), **_CURVES[label], "label": label} for label, key in _SCORES.items()]
    for model in (first, last):
        level = {"label": f"{model} alone", "standing": "reference", "x": shares}
        guaranteed.append({**level, "y": [alone[model]["epsilon by PLD"]] * len(shares)})
        scored.append({**level, "y": [alone[model]["test accuracy"]["mean"]] * len(shares)})
    traded = [
        {
            **_measured(_column(averages, label), _column(averages, _SCORES.get(label, AVERAGE))),
            **_CURVES[label],
            "label": label,
        }
        for label in (PROVED, FORMULA, SELECTION)
    ]
    marks = [{"name": name, "x": known["epsilon by PLD"], "y": known["test accuracy"]["mean"]} for name, known in alone.items()]
    across, up = {"x_label": f"weight of {first}, beside {last}", "x_scale": "log"}, {"y_label": "test accuracy"}
    privacy = {"x_label": _EPSILON["y_label"], "x_scale": "log"}
    return {
        "kind": "lines",
        "title": title,
        "subtitle": _in_words(setting),
        "caption": "The weights are a grid: none was chosen by looking at the models. Random selection: expected accuracy. "
        f"Bands: mean ± standard error, {averages[0][AVERAGE]['runs']} repetitions.",
        "panels": [
            {"title": "guarantee", **_EPSILON, **across, "lines": guaranteed},
            {"title": "test accuracy", **up, **across, "lines": scored},
            {"title": "both, along the weights", **up, **privacy, "lines": traded, "points": marks},
        ],
    }


def against_length(title: str, schedules: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """ε, and test accuracy, against Σηβ: a column of panels for each schedule."""
    looks = {label: look for label, look in _CURVES.items() if label != SELECTION} | {MERELY_SMOOTH: {}}
    guaranteed, scored = [], []
    for schedule, rows in schedules.items():
        totals, across = _column(rows, "Σηβ"), {"x_label": "Σηβ", "x_scale": "log"}
        lines = [{**_through(totals, rows, label), **look} for label, look in looks.items()]
        guaranteed.append({"title": f"{schedule}: weights (0.1, 0.9)", **_EPSILON, **across, "lines": lines})
        found = {"average": _column(rows, AVERAGE)}
        for name in rows[0]["alone"]:
            found[f"{name} alone"] = [row["alone"][name]["test accuracy"] for row in rows]
        lines = [{"label": label, **_measured(totals, scores)} for label, scores in found.items()]
        scored.append({"title": f"{schedule}: test accuracy", "y_label": "accuracy", **across, "lines": lines})
    return {
        "kind": "lines",
        "title": f"{title}: what longer training costs",
        "subtitle": "T = 40, β = 5, σ = 50 and 1000; clipping never binds, or that is not known (smoothness alone)",
        "caption": "Features scaled by c with η scaled by 1/c² change nothing but the bias: Σηβ is the length of training. "
        f"Bands: mean ± standard error, {rows[0][AVERAGE]['runs']} repetitions.",
        "panels": [*guaranteed, *scored],
    }


def targets(portfolio: Portfolio, count: int) -> list[float]:
    """Target ε from a little below the most private model's own to a little above joint release."""
    own = [Joint(portfolio.weights({name: 1.0})).guarantee(delta=DELTA).epsilon for name in portfolio.names]
    everyone = portfolio.weights_in_order((1 / len(own),) * len(own))
    together = Joint(everyone).guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon
    return [float(value) for value in np.geomspace(0.9 * min(own), 1.1 * together, count)]


def _column(rows: Sequence[Row], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _through(x: Sequence[float], rows: Sequence[Row], label: str) -> dict[str, Any]:
    return {"label": label, "x": list(x), "y": _column(rows, label), "markers": True}


def _measured(x: Sequence[float], scores: Sequence[Row]) -> dict[str, Any]:
    return {"standing": "measured", "markers": True, "x": list(x), **band(scores)}


def _steps(line: Row) -> dict[str, Any]:
    """The same as a staircase: between two combinations of a grid there is the cheaper one, nothing in the middle."""
    x = [value for value in line["x"] for _ in range(2)][1:]
    return {**line, "x": x} | {key: [value for value in line[key] for _ in range(2)][:-1] for key in ("y", "low", "high")}


def _in_words(setting: Setting) -> str:
    """T, η, β, σ and the rest of what the numbers depend on."""
    recipe = next(iter(setting.recipes.values()))
    sigmas = ", ".join(f"{one.noise_multiplier:g}" for one in setting.recipes.values())
    batch = "full batch" if recipe.rate is None else f"Poisson, q = {recipe.rate:.5f}"
    rate = f"η ≤ {recipe.learning_rate:.4g}, warm-up and decay" if recipe.decay else f"η = {recipe.learning_rate:.4g}"
    total = sum(recipe.learning_rates()) * setting.smoothness
    return (
        f"{batch}, T = {recipe.steps}, {rate}, β = {setting.smoothness:g}, Σηβ = {total:.3g}, C = {recipe.clip:g}, σ = {sigmas}"
    )
