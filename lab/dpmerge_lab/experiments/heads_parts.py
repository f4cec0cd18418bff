"""Heads of parts of the data, and heads on one private body: what shards and forks are worth (docs/theory.md §10)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge import Accounting, Model, Portfolio, Record, joint
from dpmerge.errors import DataError
from dpmerge.jobs import run_all
from dpmerge.rules import least_noise
from dpmerge.tensors import content_digest
from dpmerge.training import Head, LinearSetting, Origin, Partition, Recipe, Tensors, accuracy, fresh_generator, train_heads
from dpmerge_lab.experiments.calibration import least_noise as noise_of_training
from dpmerge_lab.experiments.heads import BOUND, DELTA, QUICK, Size, fitting, mean, noisy, trained
from dpmerge_lab.experiments.results import Options, Result, band, mean_and_deviation, read, timed, with_error
from dpmerge_lab.tasks.features import Features, cifar10_features, digits_features

PARTS = (1, 2, 5, 10)
TARGETS = (0.5, 2.0, 8.0)
BODY = "private-body"  # the folder that body_training writes, beside the data
BODY_TARGETS = (2.1, 2.25, 2.5, 3.0, 4.0, 8.0)
_AVERAGE, _VOTES, _PART = "average", "votes", "one part"
_SCORES = (_AVERAGE, _VOTES, _PART)


# --- shards -------------------------------------------------------------------------------------------------------------------


def shards(options: Options) -> Result:
    """One head on each of k parts, averaged and by votes, beside one head on all data: each with the same ε by composition."""
    held = digits_features(BOUND) if options.quick else cifar10_features(options.data, BOUND)
    size = replace(QUICK, batch=64) if options.quick else Size()
    parts, targets = ((1, 2), (8.0,)) if options.quick else (PARTS, TARGETS)
    examples = len(held.train)
    recipe = fitting(size, examples, BOUND).recipe
    cases = [(count, epsilon) for epsilon in targets for count in parts]
    configuration = {"delta": DELTA, "recipe": vars(recipe), "parts": list(parts), "repetitions": options.seeds}
    with timed(Result("shards", configuration)) as result:
        asked = run_all(partial(_for_part, recipe, examples, size.batch), cases, jobs=options.jobs)
        for (count, epsilon), one in zip(cases, asked, strict=True):
            work = run_all(partial(_of_parts, held, one, count), range(options.seeds), jobs=options.jobs)
            result.numbers[f"{epsilon:g}, {count}"] = {
                "target": epsilon,
                "parts": count,
                "noise multiplier": one.noise_multiplier,
                "epsilon": max(found["epsilon"] for found in work),
                "theorem": work[0]["theorem"],
                **{name: mean_and_deviation([found[name] for found in work]) for name in _SCORES},
            }
    result.table = (
        "test accuracy of k heads, each of its part of the data (mean ± standard error)",
        ["ε", "k", "σ", "average", "votes", "one part"],
        [_shard_row(row) for row in result.numbers.values()],
    )
    result.pictures = {"parts": shards_picture(result.numbers, options.seeds)}
    return result


def shards_picture(numbers: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Accuracy over the number of parts, a panel for each ε."""
    panels = []
    for target in sorted({row["target"] for row in numbers.values()}):
        rows = [row for row in numbers.values() if row["target"] == target]
        lines = [_line(name, [row["parts"] for row in rows], [row[name] for row in rows]) for name in _SCORES]
        across = {"x_label": "parts of the data", "x_scale": "log", "y_label": "test accuracy"}
        panels.append({"title": f"ε = {target:g}", **across, "lines": lines})
    return _picture("Heads of k parts of the data, at the price of one", seeds, panels)


def _line(label: str, x: Sequence[float], of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"label": label, "standing": "proved", "x": list(x), **band(of)}


def _picture(title: str, seeds: int, panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    subtitle = f"mean ± standard error over {seeds} repetitions with fresh noise and batches"
    return {"kind": "lines", "title": title, "subtitle": subtitle, "panels": list(panels)}


def _shard_row(row: dict[str, Any]) -> list[str]:
    scores = [with_error(row[name]) for name in _SCORES]
    return [f"{row['target']:g}", str(row["parts"]), f"{row['noise multiplier']:.3f}", *scores]


def _for_part(recipe: Recipe, examples: int, batch: int, case: tuple[int, float]) -> Recipe:
    """The same steps and batches on a k-th of the data, with the noise that this needs."""
    count, epsilon = case
    there = replace(recipe, rate=batch * count / examples)
    return replace(there, noise_multiplier=noise_of_training(there, examples // count, epsilon, DELTA))


def _of_parts(held: Features, recipe: Recipe, count: int, _: int) -> dict[str, Any]:
    """Fresh parts, a head on each, and what all of them guarantee together."""
    made = _heads_of_parts(held, recipe, count)
    models = [tensors for tensors, _ in made]
    records = {f"part-{place}": Model(f"part-{place}", record) for place, (_, record) in enumerate(made)}
    portfolio = Portfolio(records.values())
    rule = joint(portfolio, dict.fromkeys(portfolio.names, 1 / count), accounting=Accounting(only_release=False))
    found = rule.guarantee(delta=DELTA)
    said = [_said(model, held) for model in models]
    return {
        "epsilon": found.epsilon,
        "theorem": found.theorem,
        _AVERAGE: accuracy(mean(models), held.test, held.test_labels),
        _VOTES: float(np.mean(_majority(said, held.classes) == held.test_labels)),
        _PART: float(np.mean(said[0] == held.test_labels)),
    }


def _heads_of_parts(held: Features, recipe: Recipe, count: int) -> list[tuple[Tensors, Record]]:
    examples = len(held.train)
    if count == 1:
        heads = [Head(recipe=recipe)]
    else:
        partition = Partition(secrets.token_hex(8), secrets.token_bytes(32), count)
        heads = [
            Head(
                recipe=recipe,
                origin=Origin(shard=partition.shard(part), examples=examples / count),
                rows=partition.rows(part, examples),
            )
            for part in range(1, count + 1)
        ]
    made = train_heads(held.train, held.train_labels, held.classes, heads, norm_bound=held.bound, dataset=held.identity)
    return [(kept[-1].tensors, kept[-1].record) for kept in made]


def _said(tensors: Tensors, held: Features) -> Any:
    return (held.test[:, :-1] @ tensors["weight"].T + tensors["bias"]).argmax(axis=1)


def _majority(said: Sequence[Any], classes: int) -> Any:
    """Most votes win; of equal ones the lowest class."""
    counts = np.stack([np.sum([votes == one for votes in said], axis=0) for one in range(classes)], axis=1)
    return counts.argmax(axis=1)


# --- forks --------------------------------------------------------------------------------------------------------------------


def forks(options: Options) -> Result:
    """Heads at many ε over one private body: its steps count once, and noise at release hides the heads' own."""
    folder = None if options.data is None else options.data / BODY
    held, body, told = _digits_body() if options.quick else _read_body(folder)
    size = QUICK if options.quick else Size()
    setting = fitting(size, len(held.train), BOUND)
    portfolio = _forked(setting, size.models, body, held.identity)
    alone = Accounting(only_release=False).guarantee(_whole(Portfolio([body])), delta=DELTA).epsilon
    targets = tuple(alone * share for share in (2.0,)) if options.quick else BODY_TARGETS
    configuration = {
        "delta": DELTA,
        "recipe": vars(setting.recipe),
        "models": size.models,
        "repetitions": options.seeds,
        "body": told,
    }
    with timed(Result("forks", configuration)) as result:
        even = portfolio.weights(dict.fromkeys(portfolio.names, 1 / size.models))
        find = partial(_noise_of_forks, even)
        asked = run_all(find, targets, jobs=options.jobs, progress=options.bar("accounting"))
        repeat = partial(_heads_on_body, held, setting.recipe, size.models, [noise for noise, *_ in asked])
        scores = np.array(run_all(repeat, range(options.seeds), jobs=options.jobs, progress=options.bar("repetitions")))
        result.numbers = {
            "body alone": alone,
            "heads and body released whole": Accounting(only_release=False).guarantee(_whole(portfolio), delta=DELTA).epsilon,
            "by target": {
                f"{epsilon:g}": {
                    "noise": noise,
                    "epsilon": found,
                    "theorem": theorem,
                    "accuracy": mean_and_deviation(scores[:, place]),
                }
                for place, (epsilon, (noise, found, theorem)) in enumerate(zip(targets, asked, strict=True))
            },
            "heads without noise at release": mean_and_deviation(scores[:, -1]),
        }
    rows = result.numbers["by target"].items()
    result.table = (
        f"test accuracy of the average of {size.models} heads over one private body of ε = {alone:.3f} (mean ± standard error)",
        ["ε", "noise τ", "accuracy"],
        [[epsilon, f"{row['noise']:.4f}", with_error(row["accuracy"])] for epsilon, row in rows],
    )
    result.pictures = {"frontier": forks_picture(result.numbers, told["accuracy"], options.seeds)}
    return result


def forks_picture(numbers: dict[str, Any], body: float, seeds: int) -> dict[str, Any]:
    """Accuracy over ε, beside that of the body's own last layer."""
    rows = numbers["by target"]
    epsilons = [float(epsilon) for epsilon in rows]
    lines = [_line("average of heads, noise at release", epsilons, [row["accuracy"] for row in rows.values()])]
    if math.isfinite(body):
        own = {"label": "the body's own last layer, at its ε", "standing": "reference"}
        lines.append({**own, "x": [numbers["body alone"], epsilons[-1]], "y": [body, body]})
    across = {"x_label": f"ε of body and heads at δ = {DELTA:g}", "x_scale": "log", "y_label": "test accuracy"}
    return _picture("Heads over one private body", seeds, [{"title": "", **across, "lines": lines}])


def _whole(portfolio: Portfolio) -> Any:
    return joint(portfolio, dict.fromkeys(portfolio.names, 1 / len(portfolio.names)))


def _noise_of_forks(even: Any, epsilon: float) -> tuple[float, float, str]:
    noise, found = least_noise(even, epsilon=epsilon, delta=DELTA)
    return noise, found.epsilon, found.theorem


def _forked(setting: LinearSetting, models: int, body: Model, dataset: str) -> Portfolio:
    """The records of heads that start with a function of the body: itself, and a new last layer."""
    mechanism = body.mechanism
    start = {
        "run": mechanism.run,
        "step": getattr(mechanism, "steps", 0),
        "mechanism": mechanism.model_dump(mode="json"),
        "digest": None if body.folder is None else content_digest(body.folder),
    }
    return setting.alike(models, dataset=dataset, starts_from=start)


def _heads_on_body(held: Features, recipe: Recipe, models: int, noises: Sequence[float], _: int) -> list[float]:
    average, generator = mean([trained(held, recipe) for _ in range(models)]), fresh_generator()
    return [accuracy(noisy(average, noise, generator), held.test, held.test_labels) for noise in (*noises, 0.0)]


def _read_body(folder: Path | None) -> tuple[Features, Model, dict[str, Any]]:
    if folder is None or not (folder / "record.json").is_file():
        raise DataError(f"{BODY}: needed beside the data; `python -m dpmerge_lab.experiments.body_training` makes it on a GPU")
    with np.load(folder.parent / "cifar10.npz", allow_pickle=False) as images:
        labels, answers = images["y_train"].astype(np.int64), images["y_test"].astype(np.int64)
    rows = np.concatenate([np.load(path) for path in sorted(folder.glob("features-train-*.npy"))]).astype(np.float32)
    test = np.load(folder / "features-test.npy").astype(np.float32)
    record = Record.load(folder / "record.json")
    held = Features.of((rows, labels, test, answers), BOUND, record.dataset)
    return held, Model("body", record, folder), read(folder / "body.json")


def _digits_body() -> tuple[Features, Model, dict[str, Any]]:
    """For quick runs: the digits themselves, and the record of a run that might have been a body."""
    held = digits_features(BOUND)
    recipe = Recipe(steps=20, learning_rate=1.0, clip=1.0, noise_multiplier=4.0, rate=256 / len(held.train))
    record = recipe.record(20, len(held.train), dataset=held.identity, run="body", noise="body noise", sampler="body sampler")
    return held, Model("body", record), {"accuracy": math.nan}
