"""After the release, two models of the private portfolio change places, to make the release seem forged, or made of others."""

from __future__ import annotations

from pathlib import Path

from attacks.victim import release, stopped, verified


def swap(one: Path, other: Path) -> None:
    """Exchange two files."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def attack(folder: Path) -> str:
    """Tensors under a commitment; tensors under a digest; records."""
    runs = folder / "runs"
    average = release(folder, "combination")
    joint = release(folder, "joint", "joint")
    for file, complaint in (("model.safetensors", "is not the file that was released from"), ("record.json", "is not the one")):
        swap(runs / "leaky" / file, runs / "safe" / file)
        for out in (average, joint):
            stopped(verified(out, "--portfolio", runs), complaint)
            assert verified(out).code == 0, "the release itself was not touched"
        swap(runs / "leaky" / file, runs / "safe" / file)
    return "the certificate knows every input file, by digest or by a commitment that only the portfolio can open"
