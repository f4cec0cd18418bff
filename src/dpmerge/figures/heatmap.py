"""ε over all weights: of three models a triangle for each rule and accountant, of two a line."""

from __future__ import annotations

import math

from dpmerge.figures import style
from dpmerge.figures.picture import Line, Panel, Picture, Table, Triangle
from dpmerge.planning import Edge, Heatmap, Surface
from dpmerge.rules import RECORD

HOW_TO_READ = (
    "Every point of a triangle is a choice of weights: a corner is that model alone, and the side opposite leaves it out. "
    "Colour is the ε of a release with these weights, on one scale for all triangles; darker is more private. White has no "
    "finite ε. What is conditional holds only under an assumption that fails in general."
    f" Every ε assumes that {RECORD}. It also needs the assumptions of the rule's theorem."
)


def picture(heatmap: Heatmap) -> Picture:
    """Random selection is above linear combination, what is proved before what is conditional, RDP left of PLD."""
    ordered = sorted(heatmap.panels, key=lambda one: (one.rule != "selection", one.standing != "proved", one.by != "rdp"))
    triangles = [_triangle(heatmap, surface) for surface in ordered]
    at = f"δ = {style.epsilon_text(heatmap.delta)}"
    columns = ["triangle", "standing", "smallest ε", "at", "largest finite ε", "at", "points without finite ε"]
    rows = [_extremes(triangle, surface.standing) for triangle, surface in zip(triangles, ordered, strict=True)]
    return Picture(
        title=heatmap.title or f"ε of every merge of three models at {at}",
        subtitle=f"{heatmap.adjacency} neighbours · weights in steps of {heatmap.step:g}",
        warning=heatmap.warning,
        triangles=triangles,
        colour_label=f"ε at {at}",
        colour_reach=list(heatmap.reach),
        step=heatmap.step,
        how_to_read=HOW_TO_READ,
        tables=[Table(heading="The extremes", caption="of each triangle", columns=columns, rows=rows)],
    )


def edge_picture(edge: Edge) -> Picture:
    at = f"δ = {style.epsilon_text(edge.delta)}"
    first, second = edge.models
    shares = [point[1] for point in edge.points]
    lines = [
        Line(label=one.title, rule=one.rule, by=one.by, standing=one.standing, x=shares, y=list(one.epsilons), markers=True)
        for one in edge.panels
    ]
    lines += [
        Line(label=f"target ε = {epsilon:g}", standing="reference", x=[0.0, 1.0], y=[epsilon, epsilon])
        for epsilon in edge.targets
    ]
    return Picture(
        title=f"ε of every merge of two models at {at}",
        subtitle=f"{edge.adjacency} neighbours, weights in steps of {edge.step:g}",
        caption="A guarantee is known at the markers; the lines between them only guide the eye.",
        panels=[Panel(x_label=f"weight of {second}, the rest on {first}", y_label=f"ε at {at}", lines=lines)],
    )


def _triangle(heatmap: Heatmap, surface: Surface) -> Triangle:
    """One rule by one accountant."""
    conditional = surface.standing == "conditional" and "conditional" not in surface.title
    values = [value for value in surface.epsilons if math.isfinite(value)]
    told = "no finite ε"
    if values:
        low, high = (style.epsilon_text(value) for value in (min(values), max(values)))
        told = f"ε = {low}" if low == high else f"ε from {low} to {high}"
        told += "" if len(values) == len(surface.epsilons) else ", white where it is not finite"
    return Triangle(
        title=surface.title + (" (conditional)" if conditional else ""),
        subtitle=told,
        models=list(heatmap.models),
        points=[(a, b, c) for a, b, c in heatmap.points],
        values=list(surface.epsilons),
    )


def _extremes(triangle: Triangle, standing: str) -> list[str]:
    """Where a triangle is most and least private, for readers who cannot see it."""
    known = [(value, triangle.points[k], k) for k, value in enumerate(triangle.values) if value is not None]
    cells = [triangle.title, standing]
    for found in (min(known, default=None), max(known, default=None)):
        cells += ["—", "—"] if found is None else [style.epsilon_text(found[0]), style.in_a_cell(triangle.weights(found[2]))]
    return [*cells, str(len(triangle.values) - len(known))]
