"""Ledgers with thousands of entries: what showing, asking and releasing take, in processor time of whole commands."""

from __future__ import annotations

import copy
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.report import Claim
from dpmerge.files import canonical, sha256
from dpmerge.records import Portfolio, Record
from dpmerge.release import Ledger, choose, release
from dpmerge.rules import RuleName

ENTRIES, MODELS, LIMIT, REPEAT = 5000, 8, 1.5, 3
DATASET, DELTA = "benchmark-data", 1e-5


def many_entries() -> Iterator[Claim]:
    """`merge`, `ledger show` and `ledger remaining` beside 5,000 entries of every kind."""
    with tempfile.TemporaryDirectory(prefix="dpmerge-benchmark-") as folder:
        root = Path(folder)
        portfolio, ledger = _portfolio(root / "runs"), str(root / "ledger.db")
        _fill(ledger, portfolio)
        merge = ["merge", str(root / "runs"), "--rule", "selection", "--weights", "m0=0.5,m1=0.5", "--delta", str(DELTA)]
        commands = {
            "dpmerge merge": [*merge, "--ledger", ledger],
            "ledger show": ["ledger", "show", ledger],
            "ledger remaining": ["ledger", "remaining", ledger],
        }
        for name, command in commands.items():
            outs = [["--out", str(root / f"out-{number}")] if name == "dpmerge merge" else [] for number in range(REPEAT)]
            taken = min(_processor_seconds([*command, *out]) for out in outs)
            yield Claim(
                f"`{name}` beside {ENTRIES:,} mixed entries, processor time of the process",
                f"{taken:.2f} s",
                f"< {LIMIT} s",
                taken < LIMIT,
            )


def _portfolio(folder: Path) -> Portfolio:
    """Runs of DP-SGD with facts about gradients, so that averages and ladders count as such."""
    for number in range(MODELS):
        mechanism: dict[str, Any] = {
            "kind": "dp-sgd",
            "run": f"run {number}",
            "noise_fingerprint": f"noise {number}",
            "sampler_fingerprint": f"sampler {number}",
            "optimizer": "sgd",
            "sampling": {"scheme": "poisson", "rate": 0.01},
            "expected_batch": 600.0,
            "noise_multiplier": 4.0 + number,
            "clip": 1.0,
            "clipping": "flat",
            "phases": [{"steps": 200, "learning_rate": 0.1}],
            "smoothness": 0.2,
            "convex": "glm",
        }
        record = Record.model_validate({"schema": 1, "dataset": DATASET, "adjacency": "add-remove", "mechanism": mechanism})
        place = folder / f"m{number}"
        place.mkdir(parents=True)
        (place / "record.json").write_text(record.model_dump_json(by_alias=True))
        save_file({"weight": np.full((10, 10), float(number), dtype=np.float32)}, place / "model.safetensors")
    return Portfolio(folder)


def _fill(where: str, portfolio: Portfolio) -> None:
    """Real releases of every kind, and copies of their entries with other weights and ladders, a tenth of them voided."""
    ledger, generator = (
        Ledger.create(where, dataset=DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA),
        random.Random(0),
    )
    for number in range(24):
        names = generator.sample(portfolio.names, generator.randint(2, 4))
        rule: RuleName = ("selection", "selection", "joint", "combination")[number % 4]
        noise = 0.05 if number % 8 == 7 else None
        weights = portfolio.weights(dict.fromkeys(names, 1 / len(names)))
        choice = choose(portfolio, rule, delta=DELTA, weights=weights, noise=noise)
        release(portfolio, choice, Path(where).parent / f"first-{number}", ledger=ledger)
    entries = ledger.history()
    made = [entry for entry in entries if entry.kind == "release"]
    number, head = len(entries), entries[-1].hash
    with sqlite3.connect(where) as connection:
        while number < ENTRIES:
            one = copy.deepcopy(generator.choice(made).content)
            form = one["forms"][0]
            if form["rule"] == "combination":
                shares = [generator.random() for _ in form["weights"]]
                form["weights"] = {name: (x / sum(shares)).hex() for name, x in zip(form["weights"], shares, strict=True)}
            if "ladder" in form:
                form["ladder"] = f"{generator.getrandbits(128):032x}"
            one |= {"nonce": f"{generator.getrandbits(256):064x}", "out": f"/nowhere/out-{number}"}
            end = {
                "at": one["at"],
                "of": number + 1,
                "kind": "completed",
                "certificates": [f"{generator.getrandbits(256):064x}"],
            }
            if generator.random() < 0.1:
                end = {"at": one["at"], "of": number + 1, "kind": "voided", "reason": "it failed", "by": "proof"}
            for content in (one, end):
                number, previous = number + 1, head
                head = sha256(canonical({"number": number, "content": content, "previous": previous}))
                row = (number, canonical(content).decode(), previous, head)
                connection.execute("INSERT INTO dpmerge_entries (number, content, previous, hash) VALUES (?, ?, ?, ?)", row)
        connection.execute("UPDATE dpmerge_ledger SET entries = ?, head = ?", (number, head))


def _processor_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dpmerge", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


ALL = (many_entries,)
