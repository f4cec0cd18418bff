"""An index of shards leads out of the model's folder; so does a certificate that names files elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attacks.victim import DELTA, WEIGHTS, dpmerge, forge, portfolio, release, stopped, verified

INDEX = "model.safetensors.index.json"


def attack(folder: Path) -> str:
    """By `..`, by an absolute path, by a link; then `..` in a certificate."""
    secret = portfolio(folder / "elsewhere") / "leaky" / "model.safetensors"
    runs, out = portfolio(folder), folder / "out"
    model = runs / "leaky"
    (model / "model.safetensors").rename(model / "shard.safetensors")
    (model / "linked.safetensors").symlink_to(secret)
    for shard, complaint in (
        (f"../../elsewhere/runs/leaky/{secret.name}", "it may not lead elsewhere"),
        (str(secret), "it may not lead elsewhere"),
        ("linked.safetensors", "is a link out of the model's folder"),
    ):
        (model / INDEX).write_text(json.dumps({"weight_map": {"weight": shard, "bias": shard}}))
        for rule in ("selection", "combination", "joint"):
            made = dpmerge("merge", runs, "--rule", rule, "--weights", WEIGHTS, "--delta", DELTA, "--out", out)
            stopped(made, complaint, code=2)
            assert not out.exists()
    for name in (INDEX, "linked.safetensors"):
        (model / name).unlink()
    (model / "shard.safetensors").rename(model / "model.safetensors")

    released = release(folder, "joint")

    def elsewhere(certificate: dict[str, Any]) -> None:
        for files in (certificate["outputs"], certificate["inputs"]["leaky"]):
            files["../runs/leaky/record.json"] = "0" * 64

    forge(released, elsewhere)
    found = verified(released, "--portfolio", runs)
    stopped(found, "'../runs/leaky/record.json' is not the name of a file in the model's folder")
    assert "the tensors are" not in found.text, "nothing is read of a folder that leads elsewhere"
    return "files are looked for by plain names in the model's own folder, and nowhere else"
