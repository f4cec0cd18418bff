"""Accuracy of linear heads over ε, by every way to a model for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmerge_lab.experiments.results import around, read

FORMULA, DRAWN = "papers' average of three (conditional)", "random selection of three"
DIFFPRIVLIB = "diffprivlib's logistic regression, pure ε, one fit"
IMAGES, WORDS = "public features of CIFAR-10", "hashed words of documentation"
DIGITS = "digits"  # instead of either, in quick runs
_LOOKS: dict[str, dict[str, str]] = {
    FORMULA: {"rule": "combination", "by": "pld", "standing": "conditional"},
    DRAWN: {"rule": "selection", "by": "pld"},
}


def pictures(
    numbers: Mapping[str, Any], what: str, beside: Mapping[float, float] | None, delta: float
) -> dict[str, Mapping[str, Any]]:
    """Accuracy over ε, and with another library's beside it, which is far below."""
    targets = numbers["targets"]
    lines = []
    for name, of in numbers["accuracy"].items():
        known = [place for place, value in enumerate(of["mean"]) if value is not None and not math.isnan(value)]
        errors = [of["std"][place] / of["runs"] ** 0.5 for place in known]
        heights = around([of["mean"][place] for place in known], errors)
        line = {"label": name, "x": [targets[place] for place in known], **heights, "markers": True}
        lines.append({**line, "standing": "proved", **_LOOKS.get(name, {})})
    axes = {"x_label": f"ε at δ = {delta:g}".replace("e-0", "e-"), "x_scale": "log", "y_label": "test accuracy"}
    panels: list[dict[str, Any]] = [{"title": "", **axes, "lines": lines}]
    if beside is not None:
        other = {"label": DIFFPRIVLIB, "standing": "reference", "x": list(beside), "y": list(beside.values())}
        panels[0]["title"] = "all but diffprivlib"
        panels.append({"title": "the same, with diffprivlib (pure ε)", **axes, "lines": [*lines, other]})
    document = {
        "kind": "lines",
        "title": f"Linear heads on {what}: one portfolio for every ε",
        "subtitle": f"mean ± standard error over {of['runs']} repetitions with fresh noise and batches",
        "panels": panels,
    }
    return {"frontier": document}


def kept_beside(folder: Path | None) -> dict[float, float] | None:
    """What `heads_diffprivlib` scored, by ε, if it is in the folder of results."""
    path = None if folder is None else folder / "diffprivlib.json"
    if path is None or not path.is_file():
        return None
    found = {float(name): score for name, score in read(path).items() if re.fullmatch(r"[\d.]+", name)}
    return dict(sorted(found.items()))
