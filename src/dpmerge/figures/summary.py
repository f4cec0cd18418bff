"""A frontier in words and tables: headings and notes for every backend, and rows for who cannot see the plot."""

from __future__ import annotations

from collections.abc import Sequence

from dpmerge.figures import style
from dpmerge.figures.documents import Curve, Frontier, Point
from dpmerge.figures.scene import epsilons
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


def title(frontier: Frontier) -> str:
    """The heading."""
    name = style.short(frontier.utility_label, 60)
    return f"{name[:1].upper()}{name[1:]} against privacy at δ = {style.epsilon_text(frontier.delta)}"


def subtitle(frontier: Frontier) -> str:
    """One line about what the numbers rest on."""
    return f"{frontier.adjacency} neighbours · weights {frontier.provenance} · utilities {frontier.utilities_source}"


def notes(frontier: Frontier) -> list[str]:
    """What the picture cannot show by itself."""
    found = []
    hidden = [model.name for model in frontier.models if model.own_epsilon is None]
    if hidden:
        found.append(f"Not drawn, for lack of a finite ε: {', '.join(hidden)}.")
    if any(point.utility_kind == "interpolated" for curve in frontier.curves for point in curve.drawable()):
        found.append("Utilities of linear combinations are interpolated unless measured: evaluate before you rely on them.")
    if any(epsilon == 0 for epsilon in epsilons(frontier)):
        found.append("An ε of 0 is drawn at the left edge.")
    return found


def provenance(frontier: Frontier) -> list[str]:
    """How the weights came about, and what follows from that (docs/theory.md §4)."""
    return [
        f"Provenance: {frontier.provenance}; utilities: {frontier.utilities_source}.",
        _PROVENANCE.get(frontier.provenance, ""),
    ]


def model_rows(frontier: Frontier) -> list[list[str]]:
    """Each input model alone, and all of them together; a dash where an accountant gives no finite ε."""
    rows = []
    for model in frontier.models:
        own = [model.epsilon.get(by) for by in ("pld", "rdp")]
        rows.append(
            [model.name, style.utility_text(model.utility), *("—" if e is None else style.epsilon_text(e) for e in own)]
        )
    if joint := frontier.joint:
        name = f"{style.JOINT.label}, {joint.standing}"
        rows.append([name, style.utility_text(joint.utility), style.epsilon_text(joint.epsilon), "—"])
    return rows


def target_table(frontier: Frontier, most: int = 12) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: for some targets, the best release of each rule and standing, by whichever accountant."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in frontier.curves:
        groups.setdefault((curve.rule, curve.standing), []).append(curve)
    columns = ["target ε"]
    for curves in groups.values():
        columns += [f"{curves[0].title}, {curves[0].standing}", "weights"]
    rows = []
    for target in _targets(frontier, most):
        row = [style.epsilon_text(target)]
        for curves in groups.values():
            best = _best(curves, target)
            row += (
                ["—", "does not fit"]
                if best is None
                else [style.utility_text(best.utility, best.utility_kind), style.in_a_cell(style.weights_text(best.weights))]
            )
        rows.append(row)
    return columns, rows


def _targets(frontier: Frontier, most: int) -> list[float]:
    """The targets that were solved exactly, or else where the frontier steps up; evenly thinned."""
    exact = [point.epsilon for curve in frontier.curves if curve.exact for point in curve.points]
    steps = [point.epsilon for curve in frontier.curves for point in curve.drawable() if point.on_frontier]
    known = sorted({epsilon for epsilon in exact or steps if epsilon is not None})
    if len(known) <= most:
        return known
    return [known[round(index * (len(known) - 1) / (most - 1))] for index in range(most)]


def _best(curves: Sequence[Curve], target: float) -> Point | None:
    """The most useful point within the target; what fits a smaller ε fits a larger one too."""
    fitting = [point for curve in curves for point in curve.drawable() if (point.epsilon or 0.0) <= target]
    return max(fitting, key=lambda point: point.utility or 0.0, default=None)
