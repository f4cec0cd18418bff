"""Portfolios whose records are valid and extreme, and a command about each: numbers, or one line.

`python -m tests.extreme_records 2000` asks so many questions and says what became of them.
"""

from __future__ import annotations

import json
import math
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.cli.mistakes import UsageError, in_one_line
from dpmerge.errors import DpmergeError

SMALL, LARGE = 1e-30, 1e30  # what records may say (records/record.py)
SECONDS = 180  # for one question; grids of 2²³ points take a minute on a busy machine
MEMORY = 4 << 30  # of addresses, for all of a process
_RULES = ("selection", "combination", "joint")
_ADJACENCIES = ("add-remove", "replace-one", "zero-out")


def number(draw: random.Random, low: float, high: float) -> float:
    """Spread over the exponents; often an end, or an ordinary number."""
    if draw.random() < 0.25:
        return draw.choice([low, high])
    if draw.random() < 0.3 and low <= 1.0 <= high:
        return draw.choice([one for one in (0.01, 0.1, 0.5, 1.0, 4.0, 30.0) if low <= one <= high])
    found = 10 ** draw.uniform(math.log10(low), math.log10(high))
    return min(max(found, low), high)


def count(draw: random.Random, most: float = 1e12) -> int:
    return int(number(draw, 1, most))


def or_none(draw: random.Random, value: Any, chance: float = 0.5) -> Any:
    return value if draw.random() < chance else None


def _sampling(draw: random.Random) -> dict[str, Any]:
    scheme = draw.choice(["poisson", "poisson", "full-batch", "full-batch", "fixed-size", "shuffle"])
    return {"scheme": scheme, "rate": number(draw, SMALL, 1.0)} if scheme in ("poisson", "fixed-size") else {"scheme": scheme}


def _noise(draw: random.Random) -> float:
    return 0.0 if draw.random() < 0.05 else number(draw, *draw.choice([(SMALL, LARGE), (0.1, 100.0)]))


def _phase(draw: random.Random) -> dict[str, Any]:
    phase: dict[str, Any] = {"steps": count(draw), "learning_rate": draw.choice([0.0, number(draw, SMALL, LARGE), 0.1])}
    extra = {"noise_multiplier": _noise(draw), "clip": number(draw, SMALL, LARGE), "sampling": _sampling(draw)}
    extra |= {"expected_batch": number(draw, SMALL, LARGE), "weight_decay": draw.choice([0.0, number(draw, SMALL, LARGE), 0.1])}
    return phase | {name: value for name, value in extra.items() if draw.random() < 0.15}


def _dp_sgd(draw: random.Random, name: str) -> dict[str, Any]:
    return {
        "kind": "dp-sgd",
        "run": f"run-{name}",
        "noise_fingerprint": f"noise-{name}",
        "sampler_fingerprint": f"sampler-{name}",
        "optimizer": draw.choice(["sgd", "sgd", "sgd", "adam"]),
        "sampling": _sampling(draw),
        "expected_batch": draw.choice([1000.0, number(draw, SMALL, LARGE)]),
        "noise_multiplier": _noise(draw),
        "clip": draw.choice([1.0, number(draw, SMALL, LARGE)]),
        "clipping": draw.choice(["flat", "flat", "flat", "per-output", "per-layer", "adaptive"]),
        "phases": [_phase(draw) for _ in range(draw.choice([1, 1, 1, 2, 5, 40]))],
        "smoothness": or_none(draw, draw.choice([0.0, 0.2, number(draw, SMALL, LARGE)])),
        "convex": draw.choice([None, "glm", "unclipped"]),
    }


def _ftrl(draw: random.Random, name: str) -> dict[str, Any]:
    steps = count(draw)
    tree = count(draw)
    restarts = draw.choice([0, steps // tree if tree > 1 else 0])
    return {
        "kind": "dp-ftrl",
        "run": f"run-{name}",
        "noise_fingerprint": f"noise-{name}",
        "noise_multiplier": _noise(draw),
        "steps": steps,
        "restarts": restarts,
        "separation": None if restarts else or_none(draw, count(draw), 0.3),
    }


def mechanism(draw: random.Random, name: str) -> dict[str, Any]:
    """One valid mechanism."""
    kind = draw.choice(["dp-sgd"] * 6 + ["gaussian", "dp-ftrl", "approx-dp", "rdp", "non-private"])
    if kind == "dp-sgd":
        return _dp_sgd(draw, name)
    if kind == "dp-ftrl":
        return _ftrl(draw, name)
    common = {"kind": kind, "run": f"run-{name}", "noise_fingerprint": f"noise-{name}"}
    if kind == "gaussian":
        size = {"sensitivity": number(draw, SMALL, LARGE), "noise_std": number(draw, SMALL, LARGE)}
        return {**common, **size, "dimension": or_none(draw, count(draw))}
    if kind == "approx-dp":
        epsilon = draw.choice([0.0, number(draw, 5e-324, LARGE), 1.0])
        return {**common, "epsilon": epsilon, "delta": draw.choice([0.0, number(draw, 5e-324, 1 - 2**-53), 1e-6])}
    if kind == "rdp":
        orders = sorted({1 + number(draw, 2**-52, 1e30) for _ in range(draw.choice([1, 2, 30]))})
        values = [draw.choice([0.0, number(draw, SMALL, LARGE)]) for _ in orders]
        return {**common, "orders": orders, "values": values}
    return common


def portfolio(draw: random.Random, folder: Path) -> list[str]:
    """One to three models of one dataset, as records alone; their names."""
    names = ["a", "b", "c"][: draw.choice([1, 2, 2, 3])]
    adjacency = draw.choice(_ADJACENCIES)
    for name in names:
        record = {"schema": 1, "dataset": "extreme", "adjacency": adjacency, "mechanism": mechanism(draw, name)}
        (folder / name).mkdir(parents=True)
        (folder / name / "record.json").write_text(json.dumps(record))
    return names


def question(draw: random.Random, folder: Path, names: list[str]) -> list[str]:
    """A command about the portfolio."""
    delta = repr(draw.choice([1e-5, number(draw, 5e-324, 0.01)]))
    epsilon = repr(draw.choice([1.0, number(draw, 5e-324, 1.7e308)]))
    small = draw.choice([0.5, 1 / 3, number(draw, 1e-300, 0.5)])
    rest = (1 - small) / max(len(names) - 1, 1)
    weights = ",".join(f"{name}={small if place == 0 else rest!r}" for place, name in enumerate(names))
    weights = weights if len(names) > 1 else f"{names[0]}=1"
    rule = ["--rule", draw.choice(_RULES), "--weights", weights]
    shuffle = ["--treat-shuffle-as-poisson"] if draw.random() < 0.5 else []
    noise = ["--noise", repr(number(draw, SMALL, LARGE))] if rule[1] == "combination" and draw.random() < 0.4 else []
    kind = draw.choice(["alone", "account", "account", "account", "delta", "solve", "compare", "plan", "plan"])
    if kind == "alone":
        return ["account", str(folder), "--alone", "--delta", delta, "--json", *shuffle]
    if kind == "account":
        return ["account", str(folder), *rule, "--delta", delta, "--json", *shuffle, *noise]
    if kind == "delta":
        return ["account", str(folder), *rule, "--epsilon", epsilon, "--json", *shuffle, *noise]
    if kind == "solve":
        solve = ["--rule", "combination", "--weights", weights, "--solve", "noise"]
        return ["account", str(folder), *solve, "--epsilon", epsilon, "--delta", delta, "--json", *shuffle]
    if kind == "compare":
        return ["compare", str(folder), "--weights", weights, "--delta", delta, "--json", *shuffle]
    return ["plan", str(folder), "--epsilon", epsilon, "--delta", delta, "--json", *shuffle]


class Slow(BaseException):
    """A question that took longer than it may."""


def _too_slow(*_: object) -> None:
    raise Slow


def _invalid(value: Any) -> str:
    """What in an answer is no number that may be said."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name in ("epsilon", "delta") and isinstance(one, float | int) and one < 0:
                return f"{name} = {one}"
            if found := _invalid(one):
                return found
    elif isinstance(value, list):
        return next((found for one in value if (found := _invalid(one))), "")
    elif isinstance(value, float) and math.isnan(value):
        return "NaN"
    return ""


def asked(seed: int, folder: Path) -> tuple[str, str]:
    """One question: "numbers", "refused", or a finding; and its words."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    words = question(draw, folder, portfolio(draw, folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        before = signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(SECONDS)
        try:
            result = CliRunner().invoke(app, words)
        except Slow:
            return "slow", " ".join(words)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    error = result.exception
    if error is None or isinstance(error, SystemExit):
        try:
            wrong = _invalid(json.loads(result.stdout))
        except ValueError:
            wrong = f"no JSON, exit code {result.exit_code}: {result.output[-200:]}"
        return ("numbers", "") if not wrong else (f"invalid: {wrong}", " ".join(words))
    if isinstance(error, DpmergeError | UsageError) and "\n" not in in_one_line(error):
        return "refused", in_one_line(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    ours = [one for one in traceback.extract_tb(error.__traceback__) if "/dpmerge/" in one.filename][-1]
    told = (
        f"{type(error).__name__}: {str(error)[:80]} at {Path(ours.filename).name}:{ours.lineno} ({Path(place.filename).name})"
    )
    return f"traceback: {told}", " ".join(words)


def main(questions: int, first: int = 0) -> int:
    """Ask so many; how many findings there are."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found: Counter[str] = Counter()
    slowest = (0.0, 0)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + questions):
            before = time.monotonic()
            outcome, words = asked(seed, Path(folder) / "runs")
            slowest = max(slowest, (time.monotonic() - before, seed))
            if outcome not in ("numbers", "refused"):
                print(f"seed {seed}: {outcome}\n    {words}", flush=True)
            found[outcome.split(":")[0]] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        json.dumps(
            {"questions": questions, **found, "slowest_s": round(slowest[0], 1), "slowest": slowest[1], "peak_MiB": peak}
        )
    )
    return questions - found["numbers"] - found["refused"]


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
