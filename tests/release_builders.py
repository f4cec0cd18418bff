"""Portfolios on disk, small and quick to account for, and releases from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.planning import Utilities
from dpmerge.records import Model, Portfolio
from dpmerge.release import Chosen, choose
from dpmerge.rules import RuleName
from tests import builders
from tests.checkpoint_builders import Array, single
from tests.ledger_builders import names_in

DELTA = 1e-5
# A rule's weights over the models of `runs`; for combinations the theorem is `transport`, which hides its inputs.
WEIGHTS = {"a": 0.25, "b": 0.75}
KAPPA = 0.5
RULES: tuple[RuleName, ...] = ("selection", "tempered", "combination", "joint")


def tensors(seed: int) -> dict[str, Array]:
    """Parameters so small that the runs' last noise covers the rounding of float32 (docs/theory.md §3.6)."""
    values = np.random.default_rng(seed).normal(size=(8, 5)) / 64
    return {"weight": values.astype(np.float32), "bias": values[0].astype(np.float64)}


def on_disk(folder: Path, *models: Model) -> Portfolio:
    """The models' records and some tensors, in one folder each."""
    for seed, model in enumerate(models):
        single(folder / model.name, tensors(seed))
        (folder / model.name / "config.json").write_text('{"model_type": "linear"}')
        (folder / model.name / "record.json").write_text(model.record.model_dump_json(by_alias=True))
    return Portfolio(folder)


def runs(folder: Path, **changes: Any) -> Portfolio:
    """Three full-batch runs: everything about them is Gaussian, in closed form."""
    common: dict[str, Any] = {"steps": 10, "smoothness": 0.2, **changes}
    noise = {"a": 4.0, "b": 40.0, "c": 10.0}
    return on_disk(folder / "runs", *(builders.dp_sgd(name, sigma=sigma, **common) for name, sigma in noise.items()))


def scores(portfolio: Portfolio) -> Utilities:
    """Stated beforehand, in [0, 1]."""
    return Utilities.stated(portfolio, {name: 1 / (1 + place) for place, name in enumerate(portfolio.names)})


def chosen(portfolio: Portfolio, rule: RuleName, **options: Any) -> Chosen:
    """A choice with the usual weights."""
    if rule == "tempered":
        options = {"kappa": KAPPA, "utility": scores(portfolio), **options}
    weights = options.pop("weights") if "weights" in options else portfolio.weights(WEIGHTS)
    return choose(portfolio, rule, weights=weights, **{"delta": DELTA, **options})


def dpmerge(*arguments: object) -> Result:
    """A command; errors that the program raises on purpose are in `result.exception`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def certificate(out: Path) -> dict[str, Any]:
    """The certificate as plain data."""
    found: dict[str, Any] = json.loads((out / "certificate.json").read_text())
    return found


def left_behind(folder: Path) -> set[str]:
    """Everything in a folder but the portfolio, and what ledgers keep beside them."""
    return names_in(folder) - {"runs"}
