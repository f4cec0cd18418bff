"""A true guarantee is put beside another release than the one it is about, with every hash fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import Change, forge, release, stopped, verified
from dpmerge.release.canonical import sha256


def attack(folder: Path) -> str:
    """An average under the guarantee of a draw; a model drawn that had no chance; other neighbours; looking, denied."""
    runs = ("--portfolio", folder / "runs")
    average, drawn, joint = release(folder), release(folder, "selection", "drawn", "safe=1"), release(folder, "joint", "joint")
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

    claims: list[tuple[Path, Change, str]] = [
        (average, as_a_draw, "a rule that draws without a model drawn"),
        (average, other_neighbours, "other neighbours than its records"),
        (average, another_method, "a merge that only joint release covers"),
        (joint, did_not_look, "weights chosen by looking"),
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
