"""A NaN, or an infinity, hides in one element of one tensor: it would spread through an average unnoticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from attacks.victim import DELTA, WEIGHTS, dpmerge, portfolio, stopped


def attack(folder: Path) -> str:
    """In the model with the least weight, in the last element; also an infinity that another model's could cancel."""
    runs, out = portfolio(folder), folder / "out"
    path = runs / "leaky" / "model.safetensors"
    good = load_file(path)
    for value in (np.nan, np.inf, -np.inf):
        weight = good["weight"].copy()
        weight[-1, -1] = value
        save_file({**good, "weight": weight}, path, {"format": "pt"})
        for rule in ("combination", "joint"):
            made = dpmerge("merge", runs, "--rule", rule, "--weights", WEIGHTS, "--delta", DELTA, "--out", out)
            stopped(made, f"tensor 'weight': element 2047 is {value}", code=2)
            assert not out.exists()
            assert sorted(entry.name for entry in folder.iterdir()) == ["runs"], "something was left behind"
    return "model, tensor and element are named, and nothing is left behind"
