"""The frontier: what can be released at each ε, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dpmerge.figures import style
from dpmerge.figures.picture import (
    Epsilon,
    Finite,
    Form,
    Line,
    NamedPoint,
    Number,
    Panel,
    Picture,
    Positive,
    Standing,
    Table,
    Text,
    read,
    thinned,
)
from dpmerge.rules import RECORD

NOTHING = "no target here can be met by any merge"
HOW_TO_READ = (
    "Further left is more private, further up is more useful; a release within a budget ε is on or to the left of that ε. "
    "Random selection is solved exactly at every target, so its line is the best that the rule can do. Linear combinations "
    "are weight vectors whose ε was computed, one marker each; the steps say what the best of them reaches from that ε on. "
    "Solid lines are accounted by privacy loss distributions (PLD), dashed ones by Rényi divergences (RDP). What is dotted, "
    "hollow and pale is conditional: it holds only under an assumption that fails in general."
    f" Every ε assumes that {RECORD}; and what the theorems of its rule assume besides (dpmerge account)."
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


class Model(Form):
    """An input model: what it is worth, and its own ε by each accountant (None: no finite one, or does not apply)."""

    name: Text
    utility: Finite
    epsilon: dict[str, Epsilon]

    @property
    def own_epsilon(self) -> float | None:
        """Where the model is drawn: its ε by loss distributions, or else the smallest another accountant gives."""
        known = [value for value in self.epsilon.values() if value is not None]
        exact = self.epsilon.get("pld")
        return exact if exact is not None else min(known, default=None)


class Joint(Form):
    """Joint release: any function of all models."""

    epsilon: Epsilon
    utility: Number
    standing: Standing


class Point(Form):
    """One release: weights, their ε, and what they are worth (None: infeasible)."""

    epsilon: Epsilon
    utility: Number = None
    weights: dict[Text, Finite] | None = None
    utility_kind: str | None = None
    on_frontier: bool = True


class Curve(Form):
    """The releases of one rule by one accountant: an optimum for every target if exact, else the weights that were tried."""

    rule: str
    by: str
    standing: Standing
    title: Text
    exact: bool = False
    points: list[Point]

    def drawable(self) -> list[Point]:
        """The points that have a place in the picture, from left to right."""
        kept = [point for point in self.points if point.epsilon is not None and point.utility is not None]
        return sorted(kept, key=lambda point: point.epsilon or 0.0)


class Frontier(Form):
    """Utility against ε at a fixed δ, perhaps with some targets ε to be marked."""

    kind: Literal["frontier"]
    delta: Finite
    adjacency: Text
    provenance: Text
    utilities_source: Text
    utility_label: Text = "utility"
    warning: Text | None = None
    models: list[Model]
    joint: Joint | None = None
    curves: list[Curve]
    targets: tuple[Positive, ...] = ()

    def epsilons(self) -> list[float]:
        """Every ε in the picture."""
        found = [point.epsilon for curve in self.curves for point in curve.drawable()]
        found += [model.own_epsilon for model in self.models]
        found += [self.joint.epsilon] if self.joint else []
        return [epsilon for epsilon in found if epsilon is not None]


def picture(document: Mapping[str, Any]) -> Picture:
    """The description of a frontier's document."""
    frontier = read(Frontier, document)
    what, at = style.short(frontier.utility_label, 60), f"δ = {style.epsilon_text(frontier.delta)}"
    provenance = f"Provenance: {frontier.provenance}; utilities: {frontier.utilities_source}."
    return Picture(
        title=f"{what[:1].upper()}{what[1:]} against privacy at {at}",
        subtitle=f"{frontier.adjacency} neighbours · weights {frontier.provenance} · utilities {frontier.utilities_source}",
        caption=" ".join(_notes(frontier)),
        warning=frontier.warning,
        panels=[_panel(frontier, f"ε at {at}")],
        how_to_read=HOW_TO_READ,
        more={"Who chose the weights": [provenance, _PROVENANCE.get(frontier.provenance, "")]},
        tables=[_best_releases(frontier), _models(frontier)],
    )


def _panel(frontier: Frontier, x_label: str) -> Panel:
    """The axis is logarithmic, so an ε of 0 is moved to its left edge."""
    zero = min((epsilon for epsilon in frontier.epsilons() if epsilon > 0), default=0.1) / 2
    what = frontier.utility_label

    def told(name: str, epsilon: float, utility: float, kind: str | None = None, weights: Sequence[str] = ()) -> list[str]:
        sign = "≈" if kind == "interpolated" else "="
        return [name, f"ε = {style.epsilon_text(epsilon)}", f"{what} {sign} {utility:.4g}", *weights]

    def lines() -> Iterator[Line]:
        """Each curve, and the weights below it that were tried as well."""
        for curve in frontier.curves:
            label = f"{curve.title}, {curve.by.upper()}"
            name = label + (", conditional" if curve.standing == "conditional" else "")
            for faint in (False, True):
                points = [point for point in curve.drawable() if (curve.exact or point.on_frontier) is not faint]
                if not points:
                    continue
                spots = [(point.epsilon or 0.0, point.utility or 0.0, point) for point in points]
                yield Line(
                    label=label,
                    x=[max(x, zero) for x, _, _ in spots],
                    y=[y for _, y, _ in spots],
                    standing=curve.standing,
                    rule=curve.rule,
                    by=curve.by,
                    markers=not curve.exact,
                    joined=not faint,
                    steps=not curve.exact and not faint,
                    faint=faint,
                    hover=[told(name, x, y, p.utility_kind, style.weights_text(p.weights)) for x, y, p in spots],
                )

    def points() -> Iterator[NamedPoint]:
        for model in frontier.models:
            if (x := model.own_epsilon) is not None:
                hover = told(f"{model.name}, alone", x, model.utility)
                yield NamedPoint(name=model.name, x=max(x, zero), y=model.utility, hover=hover)
        joint = frontier.joint
        if joint is not None and joint.epsilon is not None and joint.utility is not None:
            hover = told(f"joint release, {joint.standing}", joint.epsilon, joint.utility)
            yield NamedPoint(x=max(joint.epsilon, zero), y=joint.utility, mark="joint", hover=hover)  # the legend names it

    drawn = list(lines())
    return Panel(
        x_label=x_label,
        y_label=what,
        x_scale="log",
        lines=drawn,
        points=list(points()),
        targets=list(frontier.targets),
        nothing="" if drawn else NOTHING,
    )


def _notes(frontier: Frontier) -> Iterator[str]:
    """What the picture cannot show by itself."""
    hidden = [model.name for model in frontier.models if model.own_epsilon is None]
    if hidden:
        yield f"Not drawn, for lack of a finite ε: {', '.join(hidden)}."
    if any(point.utility_kind == "interpolated" for curve in frontier.curves for point in curve.drawable()):
        yield "Utilities of linear combinations are interpolated unless measured: evaluate before you rely on them."
    if 0 in frontier.epsilons():
        yield "An ε of 0 is drawn at the left edge."
    if frontier.targets:
        yield "Dashed vertical lines are targets."


def _models(frontier: Frontier) -> Table:
    """Each input model alone, and all of them together; a dash where an accountant gives no finite ε."""
    rows = []
    for model in frontier.models:
        own = [model.epsilon.get(by) for by in ("pld", "rdp")]
        told = ["—" if epsilon is None else style.epsilon_text(epsilon) for epsilon in own]
        rows.append([model.name, style.utility_text(model.utility), *told])
    if joint := frontier.joint:
        rows.append(
            [f"joint release, {joint.standing}", style.utility_text(joint.utility), style.epsilon_text(joint.epsilon), "—"]
        )
    columns = ["model", frontier.utility_label, "ε by PLD", "ε by RDP"]
    return Table(heading="The models", caption="each alone", columns=columns, rows=rows)


def _best_releases(frontier: Frontier, most: int = 12) -> Table:
    """For some targets, the best release of each rule and standing, by whichever accountant."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in frontier.curves:
        groups.setdefault((curve.rule, curve.standing), []).append(curve)
    columns = ["target ε"]
    for curves in groups.values():
        columns += [f"{curves[0].title}, {curves[0].standing}", "weights"]
    # The targets that were solved exactly, or else where the frontier steps up.
    exact = [point.epsilon for curve in frontier.curves if curve.exact for point in curve.points]
    steps = [point.epsilon for curve in frontier.curves for point in curve.drawable() if point.on_frontier]
    rows = []
    for target in thinned(sorted({epsilon for epsilon in exact or steps if epsilon is not None}), most):
        rows.append([style.epsilon_text(target)])
        for curves in groups.values():
            # What fits a smaller ε fits a larger one too.
            fitting = [point for curve in curves for point in curve.drawable() if (point.epsilon or 0.0) <= target]
            best = max(fitting, key=lambda point: point.utility or 0.0, default=None)
            weights = "does not fit" if best is None else style.in_a_cell(style.weights_text(best.weights))
            rows[-1] += ["—" if best is None else style.utility_text(best.utility, best.utility_kind), weights]
    caption = f"{frontier.utility_label} within a target ε, ≈ where it is interpolated"
    return Table(heading="The best releases", caption=caption, columns=columns, rows=rows)
