"""What the experiments on CIFAR-10 train and merge: sizes, settings, groups, and the grid of weights. No torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from dpmerge.errors import TrainingError
from dpmerge.planning import simplex_grid

SEED = 42  # the papers'
# The least σ in thousandths whose Rényi ε at δ = 1e-5, by the papers' conversion, is below the bound: 3920 steps at 256/50000.
NOISE_FOR_EPSILON = {10: 0.584, 9: 0.604}


@dataclass(frozen=True)
class Size:
    """How large the experiments are: the papers', or quick on the digits."""

    data: str = "cifar10"
    network: str = "resnet18"
    examples: int = 50_000
    tested: int = 10_000
    batch: int = 256
    epochs: int = 20
    keep: tuple[int, ...] = (12, 16, 20)
    micro_batch: int = 304  # three standard deviations above a batch: nearly every batch is one part
    pretraining_epochs: int = 100
    pretraining_batch: int = 128
    fine_tuning_epochs: int = 3
    grid: float = 0.1


SMALL = Size(network="cnn")  # the same on a CPU: some minutes a run
QUICK = Size("digits", "small-cnn", 400, 100, 40, 4, (2, 3, 4), 64, 2, 20, 1, 0.5)


@dataclass(frozen=True)
class Setting:
    """What differs between private runs."""

    learning_rate: float
    clip: float
    noise_multiplier: float
    pretrained: str | None = None  # by which pretraining; from scratch the first parameters come from the seed
    seed: int = SEED
    full_batches: int = 0  # so many steps with all examples; else epochs of Poisson batches


# Public networks by name: whether images are moved and mirrored, and whether it is the moving average of the iterates.
PRETRAININGS = {"pretraining": (False, False), "pretraining-views": (True, False), "pretraining-views-ema": (True, True)}
_SCRATCH = {
    f"eps{bound}-lr{rate}-c{clip}": Setting(rate, float(clip), sigma)
    for bound, sigma in NOISE_FOR_EPSILON.items()
    for rate in (0.01, 0.02, 0.04)
    for clip in (1, 2, 4)
}
_FINE_TUNED = {
    public.replace("pretraining", "pretrained") + f"-lr{rate}-s{sigma}": Setting(rate, 1.0, sigma, pretrained=public)
    for public in PRETRAININGS
    for rate in (0.005, 0.01)
    for sigma in (0.4, 0.5)
}
# Version 2's: all 25,000 examples in every step. Its rates, noise and steps are missing from our copy; these are ours.
_FULL_BATCH = {
    group: {
        f"{group}-lr{rate}-s{sigma}": Setting(rate, 1.0, sigma, pretrained=public, full_batches=30)
        for rate, sigma in ((0.1, 10.0), (0.2, 10.0), (0.1, 15.0))
    }
    for group, public in {"full-batch": "pretraining-views", "full-batch-ema": "pretraining-views-ema"}.items()
}
# The second and the third model of scratch-b, from other first parameters than the first.
_APART = {
    f"{name}-seed{SEED + k}": replace(_SCRATCH[name], seed=SEED + k)
    for k, name in ((1, "eps10-lr0.01-c4"), (2, "eps9-lr0.02-c2"))
}
RUNS = _SCRATCH | _APART | _FINE_TUNED | _FULL_BATCH["full-batch"] | _FULL_BATCH["full-batch-ema"]
# One model, one with another learning rate or clip (equally private), one with more noise: as the papers choose their three.
MERGES = {
    "scratch-a": ("eps10-lr0.04-c1", "eps10-lr0.02-c1", "eps9-lr0.04-c1"),
    "scratch-b": ("eps10-lr0.02-c2", "eps10-lr0.01-c4", "eps9-lr0.02-c2"),
    "checkpoints": ("eps10-lr0.04-c1@12", "eps10-lr0.04-c1@16", "eps10-lr0.04-c1@20"),
    "apart": ("eps10-lr0.02-c2", *_APART),
    **{
        public.replace("pretraining", "pretrained"): tuple(
            name for name, setting in _FINE_TUNED.items() if setting.pretrained == public
        )
        for public in PRETRAININGS
    },
    **{group: tuple(runs) for group, runs in _FULL_BATCH.items()},
}


def wanted(only: str | None) -> list[str]:
    """Names in the order in which they can be made: pretraining, runs, merges. A merge brings its runs along.

    All runs from scratch are called "settings" together.
    """
    known = [*PRETRAININGS, *RUNS, *MERGES]
    named = list(MERGES) if only is None else only.split(",")
    asked = [name for one in named for name in (_SCRATCH if one == "settings" else (one,))]
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise TrainingError(f"--only: no run or merge is called {unknown[0]!r}; there are settings, {', '.join(known)}")
    every = set(asked) | {model.partition("@")[0] for name in asked for model in MERGES.get(name, ())}
    every |= {RUNS[name].pretrained or name for name in every if name in RUNS}
    return [name for name in known if name in every]


def grid(models: int, step: float) -> list[list[float]]:
    """Weights on the simplex: the whole grid for three models; for more, the edges at this step and a coarse interior."""
    if models <= 3:
        return [[float(w) for w in row] for row in simplex_grid(models, step)]
    rows = {tuple(map(float, row)) for row in simplex_grid(models, 0.25)} | {(1 / models,) * models}
    for (i, j), (a, b) in itertools.product(itertools.combinations(range(models), 2), simplex_grid(2, step)):
        rows.add(tuple(float(a) if k == i else float(b) if k == j else 0.0 for k in range(models)))
    return [list(row) for row in sorted(rows)]
