"""A safetensors header with overlapping, overflowing, negative or gaping offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attacks.victim import DELTA, WEIGHTS, dpmerge, portfolio, release, stopped, verified


def header(**tensors: tuple[list[int], list[int]]) -> dict[str, Any]:
    """Tensors by name: shape and offsets."""
    return {name: {"dtype": "F32", "shape": shape, "data_offsets": offsets} for name, (shape, offsets) in tensors.items()}


HEADERS = {
    "overlaps the tensor before it": header(weight=([8], [0, 32]), bias=([8], [16, 48])),
    "leaves a gap before it": header(weight=([8], [0, 32]), bias=([8], [64, 96])),
    "is impossible; the file is damaged": header(weight=([8], [-32, 0]), bias=([8], [0, 2**70])),
    "bytes cannot hold": header(weight=([2**40, 2**40], [0, 32])),
    "the file at": header(weight=([8], [0, 32])),
}


def attack(folder: Path) -> str:
    """In the portfolio before a release, and in the released folder before a recheck."""
    runs, out = portfolio(folder), folder / "out"
    target = runs / "leaky" / "model.safetensors"
    good = target.read_bytes()
    released = release(folder)
    for complaint, entries in HEADERS.items():
        text = json.dumps(entries).encode()
        hostile = len(text).to_bytes(8, "little") + text + bytes(96)
        target.write_bytes(hostile)
        for rule in ("selection", "combination", "joint"):
            made = dpmerge("merge", runs, "--rule", rule, "--weights", WEIGHTS, "--delta", DELTA, "--out", out)
            stopped(made, complaint, code=2)
            assert not out.exists()
        target.write_bytes(good)
        (released / "model.safetensors").write_bytes(hostile)
        stopped(verified(released, "--portfolio", runs), complaint)
    target.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    stopped(
        dpmerge("merge", runs, "--rule", "selection", "--weights", WEIGHTS, "--delta", DELTA, "--out", out),
        "which is impossible",
        code=2,
    )
    return "tensors must lie one after another, fill the file, and be as large as their shape says"
