"""Releases of one ladder that are killed at random moments: `python -m tests.ladder_kills 200` says what was seen.

A child process, forked with everything loaded, makes one release after the other; it is killed with SIGKILL after a random
time, and the next one goes on with what it left. Afterwards everything that exists must fit together.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dpmerge.records import Portfolio
from dpmerge.release import Chosen, Ledger, choose, release, verify
from dpmerge.release.entries import standing
from tests import builders
from tests.release_builders import DELTA, on_disk

NOISES = (0.3, 0.2, 0.6, 0.45, 1.7)


def portfolio_on(folder: Path) -> Portfolio:
    facts: dict[str, Any] = {"steps": 10, "batch": 20.0, "smoothness": 0.2, "convex": "glm"}
    return on_disk(folder, builders.dp_sgd("a", sigma=4.0, **facts), builders.dp_sgd("b", sigma=40.0, **facts))


def killed(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill that many makers of releases of one ladder, check all that is left, and count what became of the entries."""
    portfolio, generator = portfolio_on(folder / "runs"), random.Random(seed)
    where, out = folder / "ledger.db", folder / "out"
    out.mkdir()
    Ledger.create(where, dataset=builders.DATASET, adjacency="add-remove", epsilon=2.0, delta=DELTA)
    weights = portfolio.weights({"a": 1.0})
    choices = [choose(portfolio, "combination", weights=weights, delta=DELTA, noise=noise) for noise in NOISES]
    started = time.monotonic()
    _release(portfolio, choices[0], folder / "first", where)
    usual = time.monotonic() - started
    for path in (folder / "runs/.dpmerge/ladders").iterdir():  # begin again: the first kills meet no ladder and no entry
        path.unlink()
    where.unlink()
    Ledger.create(where, dataset=builders.DATASET, adjacency="add-remove", epsilon=2.0, delta=DELTA)
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                for turn in range(100):
                    _release(portfolio, generator.choice(choices), out / f"{number}-{turn}", where)
            finally:
                os._exit(1)
        time.sleep(generator.uniform(0, 2 * usual))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "a release failed before it was killed"
        generator.random()
    _release(portfolio, choices[0], out / "last", where)
    return _checked(portfolio, out, Ledger(where)) + Counter(kills=kills)


def _release(portfolio: Portfolio, choice: Chosen, out: Path, where: Path) -> None:
    release(portfolio, choice, out, ledger=Ledger(where))


def _checked(portfolio: Portfolio, out: Path, ledger: Ledger) -> Counter[str]:
    entries = ledger.history()
    counted, seen = {entry.number: entry for entry in standing(entries)}, Counter[str]()
    by_noise: dict[str, bytes] = {}
    folders = [path for path in out.iterdir() if not path.name.startswith(".")]
    for path in folders:
        verdict = verify(path, portfolio=portfolio, ledger=ledger)
        assert verdict.code == 0, (path.name, verdict)
        certificate = json.loads((path / "certificate.json").read_text())
        assert certificate["ledger"]["number"] in counted, f"{path.name} is out, and nothing counts it"
        held = (path / "model.safetensors").read_bytes()
        assert by_noise.setdefault(certificate["rule"]["noise"], held) == held, f"{path.name}: another noise at the same point"
    assert len({entry.content["forms"][0]["ladder"] for entry in entries if entry.kind == "release"}) == 1
    names = {path.name for path in folders}
    for entry in entries:
        if entry.kind == "release":
            present = Path(entry.content["out"]).name in names
            assert present == (entry.number in counted), f"entry {entry.number}: counted and gone, or out and not counted"
            seen["out" if present else "voided"] += 1
        elif entry.content.get("adopted"):
            seen["killed between name and completion"] += 1
    least = min(float.fromhex(entry.content["forms"][0]["noise"]) for entry in counted.values())
    own = choose(portfolio, "combination", weights=portfolio.weights({"a": 1.0}), delta=DELTA, noise=least)
    total = ledger.cumulative()
    assert total is not None and total.epsilon == own.guarantee.epsilon, "something was spent twice, or not at all"
    left = [path.name for path in out.iterdir() if path.name.startswith(".") and any(path.iterdir())]
    assert left == [], f"tensors of unnamed releases were left behind: {left}"
    return seen + Counter(points=len(by_noise))


def main(kills: int) -> None:
    """Ten ladders, each with a tenth of the kills."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        with tempfile.TemporaryDirectory() as folder:
            seen += killed(Path(folder), kills // 10, seed)
    print(json.dumps(dict(seen), indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]))
