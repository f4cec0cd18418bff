"""Private softmax regression: clipping in closed form, noise of the stated size, and records that say what was run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpmerge.profiles.runs import run_profile
from dpmerge.records import Portfolio
from dpmerge.tasks import digits
from dpmerge.training.digits import RECIPES, main
from dpmerge.training.softmax import Recipe, save, train


def data(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    examples, _ = digits.load()
    return examples.images[:count], examples.labels[:count]


def by_hand(images: np.ndarray, labels: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Full-batch steps without noise, every example's gradient written out and clipped by itself."""
    features = np.hstack([images, np.ones((len(labels), 1))])
    weights = np.zeros((10, features.shape[1]))
    for _ in range(recipe.steps):
        total = np.zeros_like(weights)
        for x, y in zip(features, labels, strict=True):
            scores = weights @ x
            p = np.exp(scores - scores.max())
            p /= p.sum()
            p[y] -= 1
            gradient = np.outer(p, x)
            total += gradient * min(1.0, recipe.clip / np.linalg.norm(gradient))
        weights -= recipe.learning_rate * total / len(labels)
    return weights


@pytest.mark.parametrize("clip", [0.3, 1.0, 2.0])
def test_sums_of_clipped_gradients_are_those_of_every_example(clip: float) -> None:
    images, labels = data()
    recipe = Recipe(steps=5, rate=1.0, learning_rate=0.7, clip=clip, noise_multiplier=0.0)
    tensors, _ = train(images, labels, 10, recipe, "d", "r")
    expected = by_hand(images, labels, recipe).astype(np.float32)
    assert np.allclose(tensors["weight"], expected[:, :-1], atol=1e-6)
    assert np.allclose(tensors["bias"], expected[:, -1], atol=1e-6)


def test_noise_has_the_stated_size() -> None:
    images, labels = data()
    quiet = Recipe(steps=1, rate=1.0, learning_rate=1.0, clip=1.0, noise_multiplier=0.0)
    loud = Recipe(steps=1, rate=1.0, learning_rate=1.0, clip=1.0, noise_multiplier=3.0)
    mean, _ = train(images, labels, 10, quiet, "d", "r")
    noisy = np.stack([train(images, labels, 10, loud, "d", "r")[0]["weight"] for _ in range(20)]) - mean["weight"]
    deviation = 3.0 / len(labels)
    assert noisy.std() == pytest.approx(deviation, rel=0.03)  # 12,800 numbers: 0.03 is five of its deviations
    assert abs(noisy.mean()) < 5 * deviation / np.sqrt(noisy.size)


def test_batches_are_poisson() -> None:
    """Without noise, one step from zero reveals how many examples were in the batch: their labels' counts."""
    images, labels = data(200)
    recipe = Recipe(steps=1, rate=0.3, learning_rate=1.0, clip=100.0, noise_multiplier=0.0)
    sizes = []
    for _ in range(300):
        tensors, _ = train(images, labels, 10, recipe, "d", "r")
        # The bias of class c is (members of c in the batch − batch/10)/B; absolute sums are monotone, so count by weights.
        sizes.append(float(np.sum(tensors["bias"])))
        assert abs(sizes[-1]) < 1e-4  # p − y sums to 0 over the classes
    counts = np.array([round(_batch_size(train(images, labels, 10, recipe, "d", "r")[0], images, labels)) for _ in range(300)])
    assert counts.mean() == pytest.approx(60, abs=5 * np.sqrt(42 / 300))
    assert counts.var() == pytest.approx(42, rel=0.5)


def _batch_size(tensors: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> float:
    """Least squares for which examples were in the batch of one step from zero."""
    errors = np.full((len(labels), 10), 0.1)
    errors[np.arange(len(labels)), labels] -= 1
    features = np.hstack([images, np.ones((len(labels), 1))])
    design = np.einsum("nc,nf->ncf", errors, features).reshape(len(labels), -1).T
    step = -np.hstack([tensors["weight"], tensors["bias"][:, None]]).ravel() * 60
    return float(np.linalg.lstsq(design, step.astype(float), rcond=None)[0].sum())


def test_records_say_what_was_run(tmp_path: Path) -> None:
    images, labels = data()
    recipe = Recipe(steps=7, rate=0.25, learning_rate=0.5, clip=1.5, noise_multiplier=1.1)
    for name in ("a", "b"):
        tensors, record = train(images, labels, 10, recipe, "some-data", name)
        save(tmp_path / name, tensors, record)
    portfolio = Portfolio.load(tmp_path)
    first, second = (model.mechanism for model in portfolio.models)
    assert first.noise_fingerprint != second.noise_fingerprint
    assert first.sampler_fingerprint != second.sampler_fingerprint
    stated = json.loads((tmp_path / "a" / "record.json").read_text())["mechanism"]
    assert stated["expected_batch"] == 10.0
    assert (stated["phases"], stated["smoothness"], stated["convex"]) == ([{**stated["phases"][0]}], 1.0, None)
    assert stated["phases"][0]["steps"] == 7
    assert run_profile(portfolio.models[0]).profile.epsilon(1e-4) > 0
    assert train(images, labels, 10, Recipe(1, 0.5, 0.1, 2.0, 1.0), "d", "r")[1].mechanism.convex == "unclipped"  # type: ignore[union-attr]


def test_the_demos_portfolio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path / "portfolio")
    portfolio = Portfolio.load(tmp_path / "portfolio")
    assert portfolio.names == tuple(RECIPES)
    assert digits.accuracy(tmp_path / "portfolio" / "noise-1") > 0.75
    assert capsys.readouterr().out.count("test accuracy") == 3
