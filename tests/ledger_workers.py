"""What other processes do to a ledger while a test looks on: `python -m tests.ledger_workers VERB …`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dpmerge.release.tables  # noqa: F401 (loaded before the forks, not by each of them)
from dpmerge.errors import DpmergeError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release

DELTA = 1e-5


def race(count: int, attempt: Callable[[int], str]) -> list[str]:
    """What came of `attempt(0)`, `attempt(1)`, …, each in a process of its own, all let go at the same moment."""
    gate, hand = os.pipe()
    reports: list[tuple[int, int]] = []
    for number in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(hand)
                os.read(gate, 1)  # until the parent closes its end
                try:
                    said = attempt(number)
                except DpmergeError as fault:
                    said = f"{type(fault).__name__}: {fault}"
                except BaseException:
                    said = traceback.format_exc()
                os.write(writing, said.encode())
            finally:
                os._exit(0)
        os.close(writing)
        reports.append((child, reading))
    os.close(hand)
    results = []
    for child, reading in reports:
        with os.fdopen(reading) as pipe:
            results.append(pipe.read())
        os.waitpid(child, 0)
    return results


def release_one(where: str, folder: str, out: str, number: int) -> str:
    """Release one model of a portfolio, its own."""
    portfolio = Portfolio(folder)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({portfolio.names[number]: 1.0}))
    release(portfolio, choice, Path(out) / f"released-{number}", ledger=Ledger(where))
    return "released"


def create(where: str, number: int) -> str:
    """Make a ledger."""
    Ledger.create(where, dataset=f"data {number}", adjacency="add-remove", epsilon=1.0, delta=DELTA)
    return "made"


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Until a file is there."""
    until = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.01)


def stall(*arguments: Any, **named: Any) -> Any:
    """Say that this point was reached, and go no further."""
    Path(os.environ["REACHED"]).touch()
    time.sleep(600)


def main() -> None:
    """One verb with its arguments."""
    verb, where, *rest = sys.argv[1:]
    if verb == "release":
        folder, out, count = rest
        print(json.dumps(race(int(count), lambda number: release_one(where, folder, out, number))))
    elif verb == "create":
        print(json.dumps(race(int(rest[0]), lambda number: create(where, number))))
    elif verb == "stall-before-rename":
        with patch("dpmerge.release.making.seal", stall):  # tensors are written, the folder has no name yet
            release_one(where, rest[0], rest[1], 0)
    elif verb == "stall-after-rename":
        with patch.object(Ledger, "complete", stall):
            release_one(where, rest[0], rest[1], 0)
    elif verb == "hold":
        with Ledger(where)._transaction(alone=True):
            Path(os.environ["REACHED"]).touch()
            wait_for(Path(rest[0]))


if __name__ == "__main__":
    main()
