"""Private softmax regression against Opacus, ten classes, per step on the CPU: one model, and eight heads at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from statistics import median

from benchmarks.report import Claim

REPEAT = 3
# Each side is a process of its own, which prints the milliseconds of a step, and the memory in MB that training took at its
# peak over what the data themselves take. Not getrusage: that also counts what the parent had before it became this process.
COMMON = """
import sys, time
import numpy as np
full, heads = "full" in sys.argv[1], "heads" in sys.argv[1]
COUNT, INPUTS, CLASSES, BATCH = (20_000, 1280, 10, 400) if heads else (60_000, 784, 10, 256)
warm_up, steps = (1, 4) if full else (5, 40) if heads else (20, 150)
rng = np.random.default_rng(0)
x, y = rng.random((COUNT, INPUTS), dtype=np.float32), rng.integers(0, CLASSES, COUNT)
def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))
def forget_the_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return memory("VmRSS")
def report(times, before):
    print((times[-1] - times[warm_up - 1]) / steps * 1e3, max(memory("VmHWM") - before, 0.1))
"""
OURS = """
from dpmerge.datasets import bounded_features
from dpmerge.training import Head, Recipe, train_heads
x = bounded_features(x, 2.0)
times = []
recipe = Recipe(steps=warm_up + steps, learning_rate=0.1, clip=1.0, noise_multiplier=1.0, rate=None if full else BATCH / COUNT)
before = forget_the_peak()
last = Head(recipe=recipe, on_step=lambda step: times.append(time.perf_counter()))
train_heads(x, y, CLASSES, [Head(recipe=recipe)] * (3 if heads else 0) + [last], norm_bound=2.0, dataset="synthetic")
report(times, before)
"""
# As its users run it, but where they wait for the loader that picks examples one by one, the batch may also be picked at once.
OPACUS = """
import warnings
warnings.simplefilter("ignore")
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset
mode, threads, picked_at_once = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "at-once"
torch.set_num_threads(threads)
x, y = torch.from_numpy(x), torch.from_numpy(y)
model, criterion = torch.nn.Linear(INPUTS, CLASSES), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=COUNT if full else BATCH)
made = PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, criterion=criterion,
    noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode=mode, poisson_sampling=not full)
model, optimizer, loader = made[0], made[1], made[-1]
criterion = made[2] if mode == "ghost" else criterion
def batches():
    while True:
        if picked_at_once:
            coins = torch.rand(COUNT) < BATCH / COUNT
            yield (x, y) if full else (x[coins], y[coins])
        else:
            yield from loader
before, times = forget_the_peak(), []
for inputs, labels in batches():
    optimizer.zero_grad()
    criterion(model(inputs), labels).backward()
    optimizer.step()
    times.append(time.perf_counter())
    if len(times) == warm_up + steps:
        break
report(times, before)
"""
Measured = tuple[float, float]


def _process(script: str, *arguments: str, threads: int = 1) -> Measured:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMON + script, *arguments]
    milliseconds, memory = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(milliseconds), float(memory)


def _two_processes(script: str, *arguments: str) -> float:
    """The milliseconds of a step while two such processes run, the slower one's."""
    with ThreadPoolExecutor(2) as pool:
        return max(time for time, _ in pool.map(lambda _: _process(script, *arguments), range(2)))


def _side_by_side(batch: str, mode: str) -> tuple[Measured, Measured, Measured]:
    """Ours, Opacus with its loader and without: medians of interleaved processes, Opacus with its best number of threads."""
    ours: list[Measured] = []
    theirs: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(REPEAT):
        ours.append(_process(OURS, batch))
        for how in ("loader", "at-once"):
            for threads in (1, 2):
                found = _process(OPACUS, batch, mode, str(threads), how, threads=threads)
                theirs.setdefault((how, threads), []).append(found)

    def middle(runs: list[Measured]) -> Measured:
        return median(time for time, _ in runs), median(memory for _, memory in runs)

    best = {how: min(middle(theirs[how, threads]) for threads in (1, 2)) for how in ("loader", "at-once")}
    return middle(ours), best["loader"], best["at-once"]


def softmax_regression() -> Iterator[Claim]:
    """Poisson batches against hooks, full batches against ghost clipping."""
    if find_spec("torch") is None or find_spec("opacus") is None:
        print("torch and Opacus are not installed: training is not compared with them", flush=True)
        return
    (ours, _), (theirs, _), (at_once, _) = _side_by_side("poisson", "hooks")
    yield Claim(
        "softmax regression, 60000×784, Poisson batches of 256, a step: against Opacus hooks with its loader",
        f"{ours:.2f} ms against {theirs:.1f} ms: {theirs / ours:.1f} times "
        f"(its batches picked at once instead: {at_once:.1f} ms, {at_once / ours:.1f} times)",
        "≥ 5 times",
        theirs >= 5 * ours,
    )
    (ours, memory), (theirs, their_memory), (at_once, memory_at_once) = _side_by_side("full", "ghost")
    yield Claim(
        "… full batches, a step and peak memory beside the data: against Opacus ghost clipping, the batch picked at once",
        f"{ours:.0f} ms, {memory:.1f} MB against {at_once:.0f} ms, {memory_at_once:.1f} MB: {at_once / ours:.1f} times in "
        f"time, {memory_at_once / memory:.1f} in memory (with its loader: {theirs:.0f} ms, {their_memory:.0f} MB)",
        "≥ 4 times in time or memory",
        at_once >= 4 * ours or memory_at_once >= 4 * memory,
    )


def heads() -> Iterator[Claim]:
    """Eight heads on two cores, four at once in each of two processes, against eight runs of Opacus, two at a time."""
    if find_spec("torch") is None or find_spec("opacus") is None:
        print("torch and Opacus are not installed: training is not compared with them", flush=True)
        return
    for batch, mode, words, promised in (
        ("heads-full", "ghost", "full batches, against ghost clipping", 10),
        ("heads-poisson", "hooks", "Poisson batches of 400, which they cannot share", 10),
    ):
        found: dict[str, list[float]] = {}
        for _ in range(REPEAT):
            found.setdefault("ours", []).append(_two_processes(OURS, batch))
            for how in ("loader", "at-once"):
                found.setdefault(how, []).append(_two_processes(OPACUS, batch, mode, "1", how))
        ours, loader, at_once = median(found["ours"]), 4 * median(found["loader"]), 4 * median(found["at-once"])
        yield Claim(
            f"eight heads of 20000×1280 at once, {words}, a step of all: against eight runs of Opacus with its loader",
            f"{ours:.1f} ms against {loader:.0f} ms: {loader / ours:.1f} times "
            f"(its batches picked at once instead: {at_once:.0f} ms, {at_once / ours:.1f} times)",
            f"≥ {promised} times",
            loader >= promised * ours,
        )


ALL = (softmax_regression, heads)
