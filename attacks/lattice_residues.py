"""An average of stored numbers: its last bits lie on the lattice of the models' own, and tell them apart.

One step of two runs, averaged with (0.9, 0.1): `private` with noise 20, `bare` with none, or with hardly any in bfloat16.
For real numbers the average is 1/18-GDP, (0.1796, 1e-5); in files the record in question is seen at a glance. With noise at
release nothing is left of the lattices: the same attacks see nothing, and what is promised is proved.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from attacks.victim import DELTA, certificate, dpmerge, record, stopped
from dpmerge.tensors import DTYPES, Noise, NoisePath, Scratch, merge_models, weighted_sum

D, N, TRIALS = 20_000, 1024, 10
PRIVATE, BARE = 0.9, 0.1
Array = np.ndarray[Any, np.dtype[Any]]


def attack(folder: Path) -> str:
    """Both worlds ten times each from the files alone; then what is promised of such files."""
    rng = np.random.default_rng(1)
    start = rng.normal(size=D).astype(np.float32)
    direction = rng.normal(size=D)
    assert _seen_in_float32(rng, start, direction / np.linalg.norm(direction) / N) == 2 * TRIALS
    assert _separation_in_bfloat16(rng) > 4  # standard deviations; real numbers allow 1/18
    assert _separation_near_one(rng) > 4  # where real numbers allow 1/4, and the noise is 2000 spacings
    merge = ("--rule", "combination", "--weights", f"private={PRIVATE},bare={BARE}", "--delta", DELTA)
    runs, out = _portfolio(folder / "none", 0.0, start), folder / "out"
    stopped(dpmerge("merge", runs, *merge, "--out", out), "the last update of 'bare' has no noise", code=2)
    assert not out.exists()
    coarse = np.full(D, 540 / N).astype(ml_dtypes.bfloat16)
    runs = _portfolio(folder / "hardly any", 0.05, coarse)
    made = dpmerge("merge", runs, *merge, "--out", out)
    assert made.code == 0, made.text
    found = certificate(out)["guarantee"]
    assert found["theorem"] == "joint-release", f"promised: {found}"
    assert found["epsilon"] > 100, f"promised: {found}"
    assert "less than 1024 spacings of the stored numbers" in (out / "README.md").read_text()
    stopped(dpmerge("merge", runs, *merge, "--epsilon", "1", "--out", folder / "more"), "cannot be released as asked", code=2)
    runs, out = _portfolio(folder / "gains", 0.5, np.ones(D, np.float32), private=8.0), folder / "fine"
    halves = ("--rule", "combination", "--weights", "private=0.5,bare=0.5", "--delta", DELTA)
    made = dpmerge("merge", runs, *halves, "--out", out)
    assert made.code == 0, made.text
    found = certificate(out)["guarantee"]
    assert found["standing"] == "conditional", f"promised: {found}"
    assert any("the rounding of the stored average tells nothing" in text for text in found["assumptions"])
    _with_noise_at_release(folder / "noised", rng, start, direction / np.linalg.norm(direction) / N)
    return "of stored numbers nothing below joint release is proved, unless noise at release hides them: then nothing is seen"


def _with_noise_at_release(folder: Path, rng: np.random.Generator, start: Array, effect: Array) -> None:
    """The model without noise in an average with noise, attacked as before."""
    folder.mkdir()
    runs, out = _portfolio(folder / "runs", 0.0, start), folder / "out"
    halves = ("--rule", "combination", "--weights", f"private={PRIVATE},bare={BARE}", "--delta", DELTA)
    made = dpmerge("merge", runs, *halves, "--noise", str(20 / N), "--out", out)
    assert made.code == 0, made.text
    found = certificate(out)["guarantee"]
    assert (found["theorem"], found["standing"]) == ("hidden-run", "proved"), f"promised: {found}"
    numbers = iter(range(1000))

    def merged(weights: tuple[float, float], noise: float, *models: Array) -> Array:
        number = next(numbers)
        folders = {name: folder / f"{number}{name}" for name in ("a", "b")}
        for place, values in zip(folders.values(), models, strict=True):
            place.mkdir()
            save_file({"weight": values}, place / "model.safetensors", {"format": "pt"})
        added = Noise(NoisePath(rng.bytes(32), noise), noise)
        merge_models(folders, dict(zip(folders, weights, strict=True)), folder / f"{number}", noise=added)
        return load_file(folder / f"{number}" / "model.safetensors")["weight"]

    right = _seen_in_float32(rng, start, effect, partial(merged, (PRIVATE, BARE), 20 / N))
    assert abs(right - TRIALS) < 7, f"{right} of {2 * TRIALS} guesses are right"
    assert abs(_separation_near_one(rng, partial(merged, (0.5, 0.5), 0.1))) < 1


def _merged(private: Array, bare: Array, dtype: str, weights: tuple[float, float] = (PRIVATE, BARE)) -> Array:
    """As `dpmerge merge` computes it."""
    form = DTYPES[dtype]
    terms = [(weight, values.view(form.storage)) for weight, values in zip(weights, (private, bare), strict=True)]
    return weighted_sum(terms, form, Scratch(D)).copy().view(private.dtype)


def _average(private: Array, bare: Array) -> Array:
    return _merged(private, bare, "F32")


def _half_and_half(one: Array, other: Array) -> Array:
    return _merged(one, other, "F32", (0.5, 0.5))


def _seen_in_float32(
    rng: np.random.Generator, start: Array, effect: Array, release: Callable[[Array, Array], Array] = _average
) -> int:
    """How often the world is guessed: the one in which more numbers are the average of `bare` and of some float32."""
    right = 0
    for world in [0, 1] * TRIALS:
        private = (start - world * effect + 20 / N * rng.normal(size=D)).astype(np.float32)
        released = release(private, (start - world * effect).astype(np.float32))
        possible = []
        for guess in (0, 1):
            bare = (start - guess * effect).astype(np.float32)
            nearest = ((released.astype(np.float64) - BARE * bare) / PRIVATE).astype(np.float32)
            near = [nearest, np.nextafter(nearest, np.float32(9)), np.nextafter(nearest, np.float32(-9))]
            possible.append(int(np.any([_merged(one, bare, "F32") == released for one in near], axis=0).sum()))
        right += possible[world] > possible[1 - world]
    return right


def _separation_in_bfloat16(rng: np.random.Generator) -> float:
    """How many standard deviations apart both worlds are, by one number computed from a file.

    In units of what the record does, `private` begins at 540, where bfloat16 has the multiples of 4 and the average the even
    numbers; `bare` begins at 2. Of the multiples of 4, every fifth then lies on the edge between two even numbers, and what
    `bare` adds decides: 10 or 12 modulo 18.
    """
    counts = []
    for world in (0, 1):
        seen = []
        for _ in range(4 * TRIALS):
            moved = world / np.sqrt(D)
            private = ((540 + moved + 20 * rng.normal(size=D)) / N).astype(ml_dtypes.bfloat16)
            bare = ((2 + moved + 0.05 * rng.normal(size=D)) / N).astype(ml_dtypes.bfloat16)
            places = np.round(_merged(private, bare, "BF16").astype(np.float64) * N) % 18
            seen.append(float(np.sum(places == 12) - np.sum(places == 10)))
        counts.append(np.array(seen))
    return float((counts[1].mean() - counts[0].mean()) / np.sqrt((counts[0].var() + counts[1].var()) / 2))


def _separation_near_one(rng: np.random.Generator, release: Callable[[Array, Array], Array] = _half_and_half) -> float:
    """Gains that begin at 1, weights ½ and ½, float32: below 1 numbers lie half as far apart as above.

    The sum of two numbers above 1 is a tie between two halves of it every other time, which goes to the even one; with one
    below 1 it is so less often. So the share of even averages tells on which side of 1 the model with hardly any noise lies.
    """
    shares = []
    for world in (0, 1):
        seen = []
        for _ in range(4 * TRIALS):
            models = [(1 + (world / np.sqrt(D) + sigma * rng.normal(size=D)) / 40).astype(np.float32) for sigma in (8.0, 0.01)]
            average = release(*models)
            above = average[(average > 1.001) & (average < 2)]
            seen.append(float(np.mean(above.view(np.uint32) % 2 == 0)))
        shares.append(np.array(seen))
    return float((shares[1].mean() - shares[0].mean()) / np.sqrt((shares[0].var() + shares[1].var()) / 2))


def _portfolio(folder: Path, noise: float, start: Array, private: float = 20.0) -> Path:
    """The two models as the training left them."""
    for name, sigma in {"private": private, "bare": noise}.items():
        (folder / name).mkdir(parents=True)
        changes = {"phases": [{"steps": 1, "learning_rate": 1.0}], "expected_batch": N}
        (folder / name / "record.json").write_text(json.dumps(record(name, sigma, **changes)))
        values = start.astype(np.float64) + sigma / N * np.random.default_rng(len(name)).normal(size=D)
        save_file({"weight": values.astype(start.dtype)}, folder / name / "model.safetensors", {"format": "pt"})
    return folder
