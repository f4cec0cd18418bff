"""A weight in the certificate is edited, so that the leaky model seems to have had less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks.victim import edit, forge, keys, release, stopped, verified


def less_of_the_leaky_one(certificate: dict[str, Any]) -> None:
    """From a quarter to a sixteenth."""
    certificate["rule"]["weights"] = {"leaky": (1 / 16).hex(), "safe": (15 / 16).hex()}


def attack(folder: Path) -> str:
    """Plainly; with a new hash; with the ε that follows from the new weights."""
    key = keys(folder)
    out = release(folder, "combination", "released", "leaky=0.25,safe=0.75", "--sign", key)
    untouched = {path: path.read_bytes() for path in out.iterdir()}
    trust, runs = ("--trust", folder / "key.pub"), ("--portfolio", folder / "runs")
    edit(out, less_of_the_leaky_one)
    stopped(verified(out), "its content does not have the hash it states")
    for path, content in untouched.items():
        path.write_bytes(content)
    forge(out, less_of_the_leaky_one)
    stopped(verified(out), "the guarantee's epsilon is certified as")
    forge(out, less_of_the_leaky_one, guarantee=True)
    stopped(verified(out, *runs), "tensor 'bias': element 0 is")
    stopped(verified(out, *trust), "the certificate is not signed")

    # Of a drawn model the weights leave no trace in the tensors: only the signature or the ledger can tell.
    drawn = release(folder, "selection", "drawn", "leaky=0.25,safe=0.75", "--sign", key)
    forge(drawn, less_of_the_leaky_one, guarantee=True)
    stopped(verified(drawn, *runs, *trust), "the certificate is not signed")
    return "the certificate's hash, then the ε that follows, then the tensors do not fit; of a draw, the signature is missing"
