"""The frontier: what can be released at each ε, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dpmerge.figures import style
from dpmerge.figures.picture import Line, NamedPoint, Panel, Picture, Table, thinned
from dpmerge.planning import Curve, Frontier, FrontierPoint, ModelAlone
from dpmerge.rules import MIXTURE_ACCOUNTANTS, RECORD, significant

NOTHING = "no target here can be met by any merge"
HOW_TO_READ = (
    "Further left is more private, further up is more useful; a release within a budget ε is on or to the left of that ε. "
    "The line of averages with noise at release is one set of trained models at every ε: each marker is a noise whose ε was "
    "computed, and any between them can be released. Random selection is solved exactly at every target, so its line is the "
    "best that the rule can do. Linear combinations without noise are weight vectors whose ε was computed, one marker each; "
    "the steps say what the best of them reaches from that ε on. "
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


def picture(frontier: Frontier) -> Picture:
    what, at = style.short(frontier.utility_label, 60), f"δ = {style.epsilon_text(frontier.delta)}"
    provenance, source = frontier.provenance, frontier.utilities_source
    return Picture(
        title=f"{what[:1].upper()}{what[1:]} against privacy at {at}",
        subtitle=f"{frontier.adjacency} neighbours · weights {provenance} · utilities {source}",
        caption=" ".join(_notes(frontier)),
        warning=frontier.warning,
        panels=[_panel(frontier, f"ε at {at}")],
        how_to_read=HOW_TO_READ,
        more={
            "Who chose the weights": [f"Provenance: {provenance}; utilities: {source}.", _PROVENANCE.get(provenance, "")],
        },
        tables=[_best_releases(frontier), _models(frontier)],
    )


def _drawable(curve: Curve) -> list[FrontierPoint]:
    """The points that have a place in the picture, from left to right; infeasible ones have no utility."""
    kept = [point for point in curve.points if math.isfinite(point.epsilon) and point.utility is not None]
    return sorted(kept, key=lambda point: point.epsilon)


def _on_frontier(curve: Curve, point: FrontierPoint) -> bool:
    """Exact curves are optima; of weights that were tried, some are below others."""
    return curve.exact or bool(point.on_frontier)


def _own_epsilon(model: ModelAlone) -> float:
    """Where a model is drawn: its ε by loss distributions, or else the smallest another accountant gives."""
    by_pld = model.epsilon.get("pld", math.inf)
    return by_pld if math.isfinite(by_pld) else model.smallest


def _epsilons(frontier: Frontier) -> list[float]:
    """Every ε in the picture."""
    alone = [_own_epsilon(model) for model in frontier.models] + ([frontier.joint.epsilon] if frontier.joint else [])
    found = [point.epsilon for curve in frontier.curves for point in _drawable(curve)]
    return found + [epsilon for epsilon in alone if math.isfinite(epsilon)]


def _panel(frontier: Frontier, x_label: str) -> Panel:
    """The axis is logarithmic, so an ε of 0 is moved to its left edge."""
    zero = min((epsilon for epsilon in _epsilons(frontier) if epsilon > 0), default=0.1) / 2
    what = frontier.utility_label

    def told(name: str, epsilon: float, utility: float | None, sign: str = "=", weights: Sequence[str] = ()) -> list[str]:
        return [name, f"ε = {style.epsilon_text(epsilon)}", f"{what} {sign} {style.utility_text(utility)}", *weights]

    def of_point(name: str, point: FrontierPoint) -> list[str]:
        sign = "≈" if point.utility_kind == "interpolated" else "="
        noise = [f"noise {significant(point.noise, 4)}"] if point.noise else []
        drawn = [] if point.low is None else [f"draws from {point.low:.4g} to {point.high:.4g}"]
        return told(name, point.epsilon, point.utility, sign, [*drawn, *noise, *style.weights_text(point.weights)])

    def line(curve: Curve, points: list[FrontierPoint], *, faint: bool) -> Line:
        label = curve.title if curve.continuous else f"{curve.title}, {curve.by.upper()}"
        measured = curve.continuous and any(point.low is not None for point in points)
        name = label + (", conditional" if curve.standing == "conditional" else "")
        return Line(
            label=label,
            x=[max(point.epsilon, zero) for point in points],
            y=[point.utility for point in points],
            standing=curve.standing,
            rule=curve.rule,
            by=curve.by,
            markers=not curve.exact,
            joined=not faint,
            steps=not curve.exact and not faint and not curve.continuous,
            low=[point.low for point in points] if measured else None,
            high=[point.high for point in points] if measured else None,
            faint=faint,
            hover=[of_point(name, point) for point in points],
        )

    lines, points = [], []
    for curve in frontier.curves:
        for faint in (False, True):
            shown = [point for point in _drawable(curve) if _on_frontier(curve, point) is not faint]
            lines += [line(curve, shown, faint=faint)] if shown else []
    for model in frontier.models:
        if math.isfinite(x := _own_epsilon(model)):
            hover = told(f"{model.name}, alone", x, model.utility)
            points.append(NamedPoint(name=model.name, x=max(x, zero), y=model.utility, hover=hover))
    joint = frontier.joint
    if joint is not None and math.isfinite(joint.epsilon):  # the legend names it
        hover = told(f"joint release, {joint.standing}", joint.epsilon, joint.utility)
        points.append(NamedPoint(x=max(joint.epsilon, zero), y=joint.utility, mark="joint", hover=hover))
    return Panel(
        x_label=x_label,
        y_label=what,
        x_scale="log",
        lines=lines,
        points=points,
        targets=list(frontier.targets or ()),
        nothing="" if lines else NOTHING,
    )


def _notes(frontier: Frontier) -> Iterator[str]:
    """What the picture cannot show by itself."""
    hidden = [model.name for model in frontier.models if not math.isfinite(_own_epsilon(model))]
    if hidden:
        yield f"Not drawn, for lack of a finite ε: {', '.join(hidden)}."
    if any(point.utility_kind == "interpolated" for curve in frontier.curves for point in _drawable(curve)):
        yield "Utilities of linear combinations are interpolated unless measured: evaluate before you rely on them."
    if any(point.utility_kind == "predicted" for curve in frontier.curves for point in _drawable(curve)):
        yield (
            "Utility is 1/(1 + √(V/V₀)): V the variance that records predict of the noise in a parameter, V₀ that of the "
            "noisiest model; it says nothing of how well a model was trained."
        )
    if any(point.low is not None for curve in frontier.curves for point in _drawable(curve)):
        yield "The band spans the scores of several draws of the noise, the line is their mean."
    if 0 in _epsilons(frontier):
        yield "An ε of 0 is drawn at the left edge."
    if frontier.targets:
        yield "Dashed vertical lines are targets."


def _models(frontier: Frontier) -> Table:
    """Each input model alone, and all of them together; a dash where an accountant gives no finite ε."""
    rows = []
    for model in frontier.models:
        own = [model.epsilon.get(by, math.inf) for by in MIXTURE_ACCOUNTANTS]
        told = [style.epsilon_text(epsilon) if math.isfinite(epsilon) else "—" for epsilon in own]
        rows.append([model.name, style.utility_text(model.utility), *told])
    if joint := frontier.joint:
        name = f"joint release, {joint.standing}"
        rows.append([name, style.utility_text(joint.utility), style.epsilon_text(joint.epsilon), "—"])
    columns = ["model", frontier.utility_label, *(f"ε by {by.upper()}" for by in MIXTURE_ACCOUNTANTS)]
    return Table(heading="The models", caption="each alone", columns=columns, rows=rows)


def _best_releases(frontier: Frontier, most: int = 12) -> Table:
    """For some targets, the best release of each rule and standing, by the better accountant."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in frontier.curves:
        groups.setdefault((curve.rule, curve.standing), []).append(curve)
    columns = ["target ε"]
    for curves in groups.values():
        columns += [f"{curves[0].title}, {curves[0].standing}", "weights"]
    # The targets that were solved exactly, or else where the frontier steps up.
    exact = {point.epsilon for curve in frontier.curves if curve.exact for point in curve.points}
    steps = {one.epsilon for curve in frontier.curves for one in _drawable(curve) if _on_frontier(curve, one)}
    rows = [
        [style.epsilon_text(target), *(cell for curves in groups.values() for cell in _best(curves, target))]
        for target in thinned(sorted(exact or steps), most)
    ]
    caption = f"{frontier.utility_label} within a target ε, ≈ where it is interpolated"
    return Table(heading="The best releases", caption=caption, columns=columns, rows=rows)


def _best(curves: list[Curve], target: float) -> tuple[str, str]:
    """The utility and the weights of the most useful point within the target; what fits a smaller ε fits a larger one too."""
    fitting = [point for curve in curves for point in _drawable(curve) if point.epsilon <= target]
    if not fitting:
        return "—", "does not fit"
    best = max(fitting, key=lambda point: -math.inf if point.utility is None else point.utility)
    noise = [f"noise {significant(best.noise, 4)}"] if best.noise else []
    return style.utility_text(best.utility, best.utility_kind), style.in_a_cell([*style.weights_text(best.weights), *noise])
