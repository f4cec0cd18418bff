"""A model is a pickle that executes code when it is read."""

from __future__ import annotations

import pickle
from pathlib import Path

from attacks.victim import DELTA, WEIGHTS, dpmerge, portfolio, release, stopped, verified


class Payload:
    """What is unpickled calls a function of the attacker's choice."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def attack(folder: Path) -> str:
    """As the model itself; as a leftover of training beside it; in the released folder."""
    ran = folder / "ran"
    payload = pickle.dumps(Payload(ran))
    pickle.loads(payload)
    assert ran.exists(), "the payload is harmless, so this attack says nothing"
    ran.unlink()

    runs, out = portfolio(folder / "model"), folder / "model" / "out"
    (runs / "leaky" / "model.safetensors").unlink()
    (runs / "leaky" / "model.pt").write_bytes(payload)
    for rule in ("selection", "combination", "joint"):
        made = dpmerge("merge", runs, "--rule", rule, "--weights", WEIGHTS, "--delta", DELTA, "--out", out)
        assert made.code == 2, made.text
        assert not out.exists()

    runs = portfolio(folder / "leftover")
    (runs / "leaky" / "optimizer.pt").write_bytes(payload)
    released = release(folder / "leftover")
    assert not (released / "optimizer.pt").exists()

    (released / "pytorch_model.bin").write_bytes(payload)
    stopped(verified(released, "--portfolio", runs), "pytorch_model.bin is not part of what was certified")
    assert not ran.exists(), "the attacker's code ran"
    return "pickles are read without running them or not at all, and never beside a model"
