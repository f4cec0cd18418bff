"""A true guarantee is put beside another release than the one it is about, with every hash fitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attacks.victim import WEIGHTS, Change, forge, release, stopped, verified
from dpmerge.files import sha256


def private_scores(folder: Path) -> Path:
    """Scores on 100 private records, some of which were trained on."""
    content = {"schema": 1, "measured_on": "held back", "models": "private", "utilities": {"leaky": 0.9, "safe": 0.8}}
    path = folder / "scores.json"
    path.write_text(json.dumps({**content, "validation": {"records": 100, "disjoint": False}}))
    return path


def attack(folder: Path) -> str:
    """An average under the guarantee of a draw; a model drawn that had no chance; other neighbours; looking, denied."""
    runs = ("--portfolio", folder / "runs")
    average, drawn, joint = release(folder), release(folder, "selection", "drawn", "safe=1"), release(folder, "joint", "joint")
    tempered = release(folder, "tempered", "tempered", WEIGHTS, "--kappa", "100", "--utility", private_scores(folder))
    leaky = sha256((folder / "runs" / "leaky" / "model.safetensors").read_bytes())

    def as_a_draw(content: dict[str, Any]) -> None:
        content["rule"]["rule"] = "selection"

    def the_leaky_one(content: dict[str, Any], weight: str = "0x0.0p+0") -> None:
        (drawn / "model.safetensors").write_bytes((folder / "runs" / "leaky" / "model.safetensors").read_bytes())
        content["outputs"]["model.safetensors"] = leaky
        content["inputs"] = {"leaky": {"model.safetensors": leaky}}
        content["drawn"] = "leaky"
        content["rule"]["weights"]["leaky"] = weight
        content["records"]["leaky"] = {**content["records"]["safe"]}

    def without_a_weight(content: dict[str, Any]) -> None:
        the_leaky_one(content)
        del content["rule"]["weights"]["leaky"], content["records"]["leaky"]

    def other_neighbours(content: dict[str, Any]) -> None:
        content["adjacency"] = "zero-out"

    def another_method(content: dict[str, Any]) -> None:
        content["merge"]["method"] = "ties"

    def did_not_look(content: dict[str, Any]) -> None:
        content["provenance"] = "a-priori"

    def chosen_by_a_private_set(content: dict[str, Any]) -> None:
        content["provenance"] = "private-validation"
        content["rule"]["validation"] = {"records": 100, "disjoint": True, "epsilon": (0.01).hex()}

    def at_half_the_price(content: dict[str, Any]) -> None:  # κ/n, as if n did not move with the records
        content["rule"]["validation"]["epsilon"] = (1.0).hex()
        content["guarantee"]["epsilon"] -= 1
        content["guarantee"]["details"]["validation_epsilon"] -= 1

    claims: list[tuple[Path, Change, str]] = [
        (average, as_a_draw, "a rule that draws without a model drawn"),
        (average, other_neighbours, "other neighbours than its records"),
        (average, another_method, "a merge that only joint release covers"),
        (joint, did_not_look, "weights chosen by looking"),
        (joint, chosen_by_a_private_set, "under a rule that does not draw by its scores"),
        (tempered, at_half_the_price, "the guarantee's epsilon is certified as"),
        (drawn, without_a_weight, "a drawn model that had no chance"),
        (drawn, the_leaky_one, "a model without weight takes no part"),
    ]
    for out, claim, complaint in claims:
        original = {path: path.read_bytes() for path in out.iterdir()}
        forge(out, claim)
        stopped(verified(out, *runs), complaint)
        for path, content in original.items():
            path.write_bytes(content)
        assert verified(out, *runs).code == 0
    return "fields that belong together are held against each other before anything else is looked at"
