"""Hashes in the certificate are edited: of a record, an input, an output, the certificate itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import edit, forge, release, stopped, verified


def attack(folder: Path) -> str:
    """Each plainly, then with the certificate's own hash fitted to it."""
    out = release(folder, "joint")
    runs = ("--portfolio", folder / "runs")
    places = [
        (("records", "safe", "sha256"), "the record of model 'safe' was edited"),
        (("inputs", "safe", "model.safetensors"), "model 'safe': model.safetensors is not the file that was released from"),
        (("outputs", "model.safetensors"), "model.safetensors was changed"),
    ]
    original = (out / "certificate.json").read_bytes()
    for path, complaint in places:

        def change(content: dict[str, Any], path: tuple[str, ...] = path) -> None:
            for key in path[:-1]:
                content = content[key]
            content[path[-1]] = "0" * 64

        edit(out, change)
        stopped(verified(out), "does not have the hash")
        (out / "certificate.json").write_bytes(original)
        if path[0] != "records":  # the forger's tools would put the record's true hash in place again
            forge(out, change)
            stopped(verified(out, *runs), complaint)
            (out / "certificate.json").write_bytes(original)
    edit(out, lambda content: content.update(sha256="0" * 64))
    stopped(verified(out), "its content does not have the hash it states")
    return "every hash is computed again, from the files and from the portfolio"
