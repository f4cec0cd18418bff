"""The heatmap: ε over all weights of three models, one triangle for each rule and accountant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmerge.figures import style
from dpmerge.figures.picture import Picture, Table, Triangle
from dpmerge.rules import RECORD

Data = Mapping[str, Any]

HOW_TO_READ = (
    "Every point of a triangle is a choice of weights: a corner is that model alone, and the side opposite leaves it out. "
    "Colour is the ε of a release with these weights, on one scale for all triangles; darker is more private. White has no "
    "finite ε. What is conditional holds only under an assumption that fails in general."
    f" Every ε assumes that {RECORD}. It also needs the assumptions of the rule's theorem."
)


def picture(heatmap: Data) -> Picture:
    """The description of a heatmap's document.

    Random selection is above linear combination, what is proved before what is conditional, RDP left of PLD.
    """
    ranks = {"selection": 0, "proved": 0, "rdp": 0}
    ordered = sorted(heatmap["panels"], key=lambda one: [ranks.get(one[key], 1) for key in ("rule", "standing", "by")])
    triangles = [_triangle(heatmap, surface) for surface in ordered]
    at = f"δ = {style.epsilon_text(heatmap['delta'])}"
    columns = ["triangle", "standing", "smallest ε", "at", "largest finite ε", "at", "points without finite ε"]
    rows = [_extremes(triangle, surface["standing"]) for triangle, surface in zip(triangles, ordered, strict=True)]
    return Picture(
        title=f"ε of every merge of three models at {at}",
        subtitle=f"{heatmap['adjacency']} neighbours · weights in steps of {heatmap['step']:g}",
        warning=heatmap.get("warning"),
        triangles=triangles,
        colour_label=f"ε at {at}",
        step=heatmap["step"],
        how_to_read=HOW_TO_READ,
        tables=[Table(heading="The extremes", caption="of each triangle", columns=columns, rows=rows)],
    )


def _triangle(heatmap: Data, surface: Data) -> Triangle:
    """One rule by one accountant."""
    conditional = surface["standing"] == "conditional" and "conditional" not in surface["title"]
    values = [value for value in surface["epsilons"] if value is not None]
    told = "no finite ε"
    if values:
        low, high = (style.epsilon_text(value) for value in (min(values), max(values)))
        told = f"ε = {low}" if low == high else f"ε from {low} to {high}"
        told += "" if len(values) == len(surface["epsilons"]) else ", white where it is not finite"
    return Triangle(
        title=surface["title"] + (" (conditional)" if conditional else ""),
        subtitle=told,
        models=heatmap["models"],
        points=heatmap["points"],
        values=surface["epsilons"],
    )


def _extremes(triangle: Triangle, standing: str) -> list[str]:
    """Where a triangle is most and least private, for readers who cannot see it."""
    known = [(value, triangle.points[k], k) for k, value in enumerate(triangle.values) if value is not None]
    cells = [triangle.title, standing]
    for found in (min(known, default=None), max(known, default=None)):
        cells += ["—", "—"] if found is None else [style.epsilon_text(found[0]), style.in_a_cell(triangle.weights(found[2]))]
    return [*cells, str(len(triangle.values) - len(known))]
