"""What dpmerge itself says about the releases of the games: records as a training would write them, claims by its rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from scipy.optimize import brentq

from dpmerge.audit import Claim, ClaimStanding
from dpmerge.errors import DpmergeError
from dpmerge.profiles import gaussian_epsilon
from dpmerge.records import Adjacency, Model, Portfolio, Record, Weights
from dpmerge.rules import Rule

DATASET = "audited"


def model(name: str, mechanism: dict[str, Any], adjacency: Adjacency = "add-remove") -> Model:
    """A model with a record of this mechanism, read by the parser that reads files."""
    content = {"schema": 1, "dataset": DATASET, "adjacency": adjacency, "mechanism": mechanism}
    return Model(name, Record.parse(json.dumps(content), source=name))


def gaussian(name: str, noise_std: float, sensitivity: float = 1.0, **other: Any) -> Model:
    """The Gaussian mechanism once, with noise of its own unless `other` says otherwise."""
    own = {"run": name, "noise_fingerprint": f"noise of {name}"}
    return model(name, {"kind": "gaussian", "sensitivity": sensitivity, "noise_std": noise_std, **own, **other})


def dp_sgd(
    name: str,
    noise_multiplier: float,
    steps: int,
    *,
    rate: float | None = None,
    adjacency: Adjacency = "add-remove",
    **other: Any,
) -> Model:
    """A run of DP-SGD with Poisson batches of this rate, or full ones; `other` fields replace those of the mechanism."""
    mechanism = {
        "kind": "dp-sgd",
        "run": name,
        "noise_fingerprint": f"noise of {name}",
        "sampler_fingerprint": None if rate is None else f"batches of {name}",
        "optimizer": "sgd",
        "sampling": {"scheme": "full-batch"} if rate is None else {"scheme": "poisson", "rate": rate},
        "expected_batch": 10_000.0 * (rate or 1.0),
        "noise_multiplier": noise_multiplier,
        "clip": 1.0,
        "clipping": "flat",
        "phases": [{"steps": steps, "learning_rate": 1.0}],
        "smoothness": None,
        "convex": None,
    }
    return model(name, {**mechanism, **other}, adjacency)


def weighted(*parts: tuple[Model, float]) -> Weights:
    """A portfolio of exactly these models, with these weights."""
    return Portfolio(tuple(one for one, _ in parts)).weights({one.name: value for one, value in parts})


def even(*models: Model) -> Weights:
    """All of them alike: for rules to which weights do not matter."""
    return weighted(*((one, 1 / len(models)) for one in models))


def claim(label: str, rule: Rule, delta: float, standing: ClaimStanding | None = None, is_gdp: bool = False) -> Claim:
    """What a rule guarantees, at every δ; its standing is the guarantee's own, unless the game knows better.

    `is_gdp`: the guarantee says that the release is μ-GDP, with the μ that has its ε at δ.
    """
    answer = rule.guarantee(delta=delta)

    def epsilon(at: float) -> float:
        return rule.guarantee(delta=at).epsilon

    mu = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - answer.epsilon, 0.0, 100.0, xtol=1e-12)) if is_gdp else None
    return Claim(label, standing or answer.standing, epsilon, mu)


def unless_refused(refusal: type[DpmergeError], rule: Callable[[], Rule], delta: float) -> list[Claim]:
    """What dpmerge says about a release of which it ought to say nothing: no claim, as long as it refuses.

    Should a change of the code let it pass, its guarantee is a claim like any other, and the attack is there to break it.
    """
    try:
        return [claim("dpmerge, which ought to refuse", rule(), delta)]
    except refusal:
        return []
