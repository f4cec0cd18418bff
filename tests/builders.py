"""Records, models, portfolios and weights in memory, through the same parser that reads a user's files."""

from __future__ import annotations

import json
from typing import Any

from dpmerge.records import Adjacency, Model, Portfolio, Record, Weights

DATASET = "test-data"


def model(name: str, mechanism: dict[str, Any], adjacency: Adjacency = "add-remove", dataset: str = DATASET) -> Model:
    """Any mechanism, given as the JSON object that a record holds."""
    record = {"schema": 1, "dataset": dataset, "adjacency": adjacency, "mechanism": mechanism}
    return Model(name, Record.parse(json.dumps(record), source=name))


def dp_sgd(
    name: str,
    *,
    sigma: float,
    clip: float = 1.0,
    steps: int = 1,
    eta: float = 0.1,
    batch: float = 1000.0,
    sampling: float | None = None,
    smoothness: float | None = None,
    convex: str | None = None,
    adjacency: Adjacency = "add-remove",
    phases: list[dict[str, Any]] | None = None,
    **overrides: Any,
) -> Model:
    """A DP-SGD run with fingerprints of its own. `sampling` is a Poisson rate, or nothing for full batches.

    `phases` replaces the single phase of `steps` at `eta`; `overrides` replaces any other field of the mechanism.
    """
    scheme = {"scheme": "full-batch"} if sampling is None else {"scheme": "poisson", "rate": sampling}
    mechanism: dict[str, Any] = {
        "kind": "dp-sgd",
        "run": f"run-{name}",
        "noise_fingerprint": f"noise-{name}",
        "sampler_fingerprint": f"sampler-{name}",
        "optimizer": "sgd",
        "sampling": scheme,
        "expected_batch": batch,
        "noise_multiplier": sigma,
        "clip": clip,
        "clipping": "flat",
        "phases": [{"steps": steps, "learning_rate": eta}] if phases is None else phases,
        "smoothness": smoothness,
        "convex": convex,
    }
    return model(name, {**mechanism, **overrides}, adjacency)


def gaussian(
    name: str,
    *,
    noise_std: float,
    sensitivity: float = 1.0,
    dimension: int | None = None,
    adjacency: Adjacency = "add-remove",
    **overrides: Any,
) -> Model:
    """The Gaussian mechanism once: one private mean."""
    mechanism: dict[str, Any] = {
        "kind": "gaussian",
        "noise_fingerprint": f"noise-{name}",
        "sensitivity": sensitivity,
        "noise_std": noise_std,
        "dimension": dimension,
    }
    return model(name, {**mechanism, **overrides}, adjacency)


def portfolio(*models: Model) -> Portfolio:
    """These models, in this order."""
    return Portfolio(models)


def weights(portfolio: Portfolio, **values: float) -> Weights:
    """Weights by name; a model that is not named has weight 0."""
    return portfolio.weights(values)


def weighted(*parts: tuple[Model, float]) -> Weights:
    """A portfolio of exactly these models, with these weights."""
    return Portfolio(tuple(part for part, _ in parts)).weights({part.name: value for part, value in parts})
