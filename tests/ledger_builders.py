"""Ledgers and releases for tests: portfolios whose accounting is in closed form, entered or really released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.records import Portfolio, Weights
from dpmerge.release import Ledger
from dpmerge.release.entries import PendingEntry
from dpmerge.release.forms import RuleForm
from dpmerge.rules import Exposure, Joint, Releases
from tests import builders
from tests.ledger_workers import DELTA

PRECISE = 1e-9


def three(*, dataset: str = builders.DATASET) -> Portfolio:
    """Gaussian mechanisms a, b and c: every answer is in closed form."""
    mechanisms = [
        {"kind": "gaussian", "run": f"run {name}", "noise_fingerprint": name, "sensitivity": 1.0, "noise_std": std}
        for name, std in (("a", 0.5), ("b", 1.0), ("c", 4.0))
    ]
    return Portfolio(tuple(builders.model(str(m["noise_fingerprint"]), m, dataset=dataset) for m in mechanisms))


THREE = three()


def written(folder: Path, portfolio: Portfolio = THREE) -> Portfolio:
    """A portfolio on disk, with tiny models."""
    for number, model in enumerate(portfolio.models):
        place = folder / model.name
        place.mkdir(parents=True)
        save_file({"weight": np.full((2, 3), float(number), dtype=np.float32)}, place / "model.safetensors")
        (place / "record.json").write_text(model.record.model_dump_json(by_alias=True))
    return Portfolio(folder)


def new(
    where: str | Path, *, epsilon: float = 8.0, delta: float = DELTA, dataset: str = builders.DATASET, **provisions: Any
) -> Ledger:
    return Ledger.create(where, dataset=dataset, adjacency="add-remove", epsilon=epsilon, delta=delta, **provisions)


def planned(
    portfolio: Portfolio, rule: str = "selection", *, dependent: bool = False, delta: float = DELTA, **given: Any
) -> PendingEntry:
    """A release that is only entered: weights by name, and other fields of the rule's form."""
    fields = {
        name: given.pop(name) for name in ("looked_at", "kappa", "validation", "shuffle_rate", "last_only") if name in given
    }
    weights = {name: float(value).hex() for name, value in given.items()}
    form = RuleForm.model_validate({"rule": rule, "weights": weights, **fields})
    own = form.build(portfolio).guarantee(delta=delta)
    return PendingEntry((form,), portfolio, form.exposure(portfolio), (own,), "/nowhere/at/all", dependent)


def joint(*names: str, portfolio: Portfolio = THREE) -> float:
    """ε of the joint release of these models."""
    return Joint(portfolio.weights({name: 1 / len(names) for name in names})).guarantee(delta=DELTA).epsilon


def drawn(*weights: Weights) -> float:
    """ε of these draws, each by itself."""
    return Releases(weights[0].portfolio, [Exposure.drawn(one) for one in weights]).guarantee(delta=DELTA).epsilon


def names_in(folder: Path) -> set[str]:
    """What is in a folder, but for what ledgers keep beside them."""
    return {path.name for path in folder.iterdir() if path.suffix != ".heads"}


def total(ledger: Ledger) -> float:
    found = ledger.cumulative()
    assert found is not None
    return found.epsilon


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
