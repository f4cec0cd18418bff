"""The frontier: what can be released at each ε, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpmerge.figures import style
from dpmerge.figures.picture import Line, NamedPoint, Panel, Picture, Table, thinned
from dpmerge.rules import RECORD

Data = Mapping[str, Any]

NOTHING = "no target here can be met by any merge"
HOW_TO_READ = (
    "Further left is more private, further up is more useful; a release within a budget ε is on or to the left of that ε. "
    "Random selection is solved exactly at every target, so its line is the best that the rule can do. Linear combinations "
    "are weight vectors whose ε was computed, one marker each; the steps say what the best of them reaches from that ε on. "
    "Solid lines are accounted by privacy loss distributions (PLD), dashed ones by Rényi divergences (RDP). What is dotted, "
    "hollow and pale is conditional: it holds only under an assumption that fails in general."
    f" Every ε assumes that {RECORD}. It also needs the assumptions of the rule's theorem."
)
_PROVENANCE = {
    "a-priori": "Weights found here were chosen without looking at the models or the data.",
    "after-looking": (
        "The utilities were measured on the private models, so weights picked from this picture are a function of those "
        "models: only joint release or tempered selection of them keeps its guarantee."
    ),
    "private-validation": (
        "The utilities were measured on private validation data; what a choice by them reveals about those data must be "
        "accounted as well."
    ),
}


def picture(frontier: Data) -> Picture:
    """The description of a frontier's document."""
    what, at = style.short(frontier["utility_label"], 60), f"δ = {style.epsilon_text(frontier['delta'])}"
    provenance, source = frontier["provenance"], frontier["utilities_source"]
    return Picture(
        title=f"{what[:1].upper()}{what[1:]} against privacy at {at}",
        subtitle=f"{frontier['adjacency']} neighbours · weights {provenance} · utilities {source}",
        caption=" ".join(_notes(frontier)),
        warning=frontier["warning"],
        panels=[_panel(frontier, f"ε at {at}")],
        how_to_read=HOW_TO_READ,
        more={
            "Who chose the weights": [f"Provenance: {provenance}; utilities: {source}.", _PROVENANCE.get(provenance, "")],
        },
        tables=[_best_releases(frontier), _models(frontier)],
    )


def _drawable(curve: Data) -> list[Data]:
    """The points that have a place in the picture, from left to right; infeasible ones have no utility."""
    kept = [point for point in curve["points"] if point["epsilon"] is not None and point["utility"] is not None]
    return sorted(kept, key=lambda point: float(point["epsilon"]))


def _on_frontier(curve: Data, point: Data) -> bool:
    """Exact curves are optima; of weights that were tried, some are below others."""
    return bool(curve["exact"] or point["on_frontier"])


def _own_epsilon(model: Data) -> float | None:
    """Where a model is drawn: its ε by loss distributions, or else the smallest another accountant gives."""
    known = {by: value for by, value in model["epsilon"].items() if value is not None}
    return known.get("pld", min(known.values(), default=None))


def _joint(frontier: Data) -> Data | None:
    joint: Data | None = frontier["joint"]
    return joint if joint is not None and joint["epsilon"] is not None and joint["utility"] is not None else None


def _epsilons(frontier: Data) -> list[float]:
    """Every ε in the picture."""
    found = [point["epsilon"] for curve in frontier["curves"] for point in _drawable(curve)]
    found += [epsilon for model in frontier["models"] if (epsilon := _own_epsilon(model)) is not None]
    return found + [joint["epsilon"] for joint in [_joint(frontier)] if joint]


def _panel(frontier: Data, x_label: str) -> Panel:
    """The axis is logarithmic, so an ε of 0 is moved to its left edge."""
    zero = min((epsilon for epsilon in _epsilons(frontier) if epsilon > 0), default=0.1) / 2
    what = frontier["utility_label"]

    def told(name: str, epsilon: float, utility: float, kind: str = "", weights: Sequence[str] = ()) -> list[str]:
        sign = "≈" if kind == "interpolated" else "="
        return [name, f"ε = {style.epsilon_text(epsilon)}", f"{what} {sign} {utility:.4g}", *weights]

    def line(curve: Data, points: list[Data], *, faint: bool) -> Line:
        label = f"{curve['title']}, {curve['by'].upper()}"
        name = label + (", conditional" if curve["standing"] == "conditional" else "")
        return Line(
            label=label,
            x=[max(point["epsilon"], zero) for point in points],
            y=[point["utility"] for point in points],
            standing=curve["standing"],
            rule=curve["rule"],
            by=curve["by"],
            markers=not curve["exact"],
            joined=not faint,
            steps=not curve["exact"] and not faint,
            faint=faint,
            hover=[
                told(name, one["epsilon"], one["utility"], one.get("utility_kind", ""), style.weights_text(one["weights"]))
                for one in points
            ],
        )

    lines, points = [], []
    for curve in frontier["curves"]:
        for faint in (False, True):
            shown = [point for point in _drawable(curve) if _on_frontier(curve, point) is not faint]
            lines += [line(curve, shown, faint=faint)] if shown else []
    for model in frontier["models"]:
        if (x := _own_epsilon(model)) is not None:
            hover = told(f"{model['name']}, alone", x, model["utility"])
            points.append(NamedPoint(name=model["name"], x=max(x, zero), y=model["utility"], hover=hover))
    if joint := _joint(frontier):  # the legend names it
        hover = told(f"joint release, {joint['standing']}", joint["epsilon"], joint["utility"])
        points.append(NamedPoint(x=max(joint["epsilon"], zero), y=joint["utility"], mark="joint", hover=hover))
    marked, nothing = frontier.get("targets", []), "" if lines else NOTHING
    return Panel(x_label=x_label, y_label=what, x_scale="log", lines=lines, points=points, targets=marked, nothing=nothing)


def _notes(frontier: Data) -> Iterator[str]:
    """What the picture cannot show by itself."""
    hidden = [model["name"] for model in frontier["models"] if _own_epsilon(model) is None]
    if hidden:
        yield f"Not drawn, for lack of a finite ε: {', '.join(hidden)}."
    if any(point.get("utility_kind") == "interpolated" for curve in frontier["curves"] for point in _drawable(curve)):
        yield "Utilities of linear combinations are interpolated unless measured: evaluate before you rely on them."
    if 0 in _epsilons(frontier):
        yield "An ε of 0 is drawn at the left edge."
    if frontier.get("targets"):
        yield "Dashed vertical lines are targets."


def _models(frontier: Data) -> Table:
    """Each input model alone, and all of them together; a dash where an accountant gives no finite ε."""
    rows = []
    for model in frontier["models"]:
        own = [model["epsilon"].get(by) for by in ("pld", "rdp")]
        told = ["—" if epsilon is None else style.epsilon_text(epsilon) for epsilon in own]
        rows.append([model["name"], style.utility_text(model["utility"]), *told])
    if joint := frontier["joint"]:
        name = f"joint release, {joint['standing']}"
        rows.append([name, style.utility_text(joint["utility"]), style.epsilon_text(joint["epsilon"]), "—"])
    columns = ["model", frontier["utility_label"], "ε by PLD", "ε by RDP"]
    return Table(heading="The models", caption="each alone", columns=columns, rows=rows)


def _best_releases(frontier: Data, most: int = 12) -> Table:
    """For some targets, the best release of each rule and standing, by the better accountant."""
    groups: dict[tuple[str, str], list[Data]] = {}
    for curve in frontier["curves"]:
        groups.setdefault((curve["rule"], curve["standing"]), []).append(curve)
    columns = ["target ε"]
    for curves in groups.values():
        columns += [f"{curves[0]['title']}, {curves[0]['standing']}", "weights"]
    # The targets that were solved exactly, or else where the frontier steps up.
    exact = [point["epsilon"] for curve in frontier["curves"] if curve["exact"] for point in curve["points"]]
    steps = [one["epsilon"] for curve in frontier["curves"] for one in _drawable(curve) if _on_frontier(curve, one)]
    targets = thinned(sorted({epsilon for epsilon in exact or steps if epsilon is not None}), most)
    rows = []
    for target in targets:
        rows.append([style.epsilon_text(target), *(cell for curves in groups.values() for cell in _best(curves, target))])
    caption = f"{frontier['utility_label']} within a target ε, ≈ where it is interpolated"
    return Table(heading="The best releases", caption=caption, columns=columns, rows=rows)


def _best(curves: list[Data], target: float) -> tuple[str, str]:
    """The utility and the weights of the most useful point within the target; what fits a smaller ε fits a larger one too."""
    fitting = [point for curve in curves for point in _drawable(curve) if point["epsilon"] <= target]
    if not fitting:
        return "—", "does not fit"
    best = max(fitting, key=lambda point: float(point["utility"]))
    return style.utility_text(best["utility"], best.get("utility_kind")), style.in_a_cell(style.weights_text(best["weights"]))
