"""Private linear models: clipping in closed form, noise of the stated size, schedules, and records that say what was run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpmerge import combination
from dpmerge.datasets import bounded_features
from dpmerge.errors import DataError, TrainingError
from dpmerge.profiles import run_profile
from dpmerge.records import DpSgd, Model, Portfolio
from dpmerge.rules import Combination
from dpmerge.training import (
    Head,
    Loss,
    PortfolioFile,
    Recipe,
    accuracy,
    fresh_generator,
    linear,
    poisson_batch,
    train,
    train_heads,
    train_portfolio,
)
from dpmerge_lab.tasks import digits

BOUND = math.sqrt(2)
Floats = npt.NDArray[np.float32]


def data(count: int = 40, loss: Loss = "softmax") -> tuple[Floats, npt.NDArray[np.int64], int]:
    examples, _ = digits.load()
    labels = examples.labels[:count]
    features = bounded_features(examples.images[:count], BOUND)
    return (features, (labels > 4).astype(np.int64), 2) if loss == "logistic" else (features, labels, 10)


def by_hand(features: Floats, labels: npt.NDArray[np.int64], recipe: Recipe, loss: Loss) -> npt.NDArray[np.float64]:
    """Full-batch steps without noise, every example's gradient written out and clipped by itself."""
    outputs = 1 if loss == "logistic" else 10
    parts = 10 if loss == "one-vs-rest" else 1  # which are clipped by themselves
    weights = np.zeros((outputs, features.shape[1]))
    for rate in recipe.learning_rates():
        total = np.zeros_like(weights)
        for x, y in zip(features.astype(np.float64), labels.tolist(), strict=True):
            said = weights @ x
            if loss == "one-vs-rest":
                error = 1 / (1 + np.exp(-said)) - (np.arange(10) == y)
            elif outputs == 1:
                error = np.array([1 / (1 + math.exp(-said[0])) - y])
            else:
                error = np.exp(said - said.max()) / np.exp(said - said.max()).sum()
                error[y] -= 1
            for part, gradient in zip(np.split(total, parts), np.split(np.outer(error, x), parts), strict=True):
                part += gradient * min(1.0, recipe.clip / math.sqrt(parts) / float(np.linalg.norm(gradient)))
        weights = (1 - rate * recipe.weight_decay) * weights - rate * total / len(labels)
    return weights


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest"])
@pytest.mark.parametrize("clip", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("shrinking", [0.0, 0.6])
def test_sums_of_clipped_gradients_are_those_of_every_example(loss: Any, clip: float, decay: bool, shrinking: float) -> None:
    features, labels, classes = data(loss=loss)
    recipe = Recipe(steps=5, learning_rate=0.7, clip=clip, noise_multiplier=0.0, warmup=2, decay=decay, weight_decay=shrinking)
    (model,) = train(features, labels, classes, recipe, norm_bound=BOUND, dataset="d", loss=loss)
    expected = by_hand(features, labels, recipe, loss)
    assert np.allclose(model.tensors["weight"], expected[:, :-1], atol=3e-5)
    assert np.allclose(model.tensors["bias"], expected[:, -1], atol=3e-5)


@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest"])
def test_no_example_contributes_more_than_the_clip(loss: Any) -> None:
    features, labels, _ = data()
    for index in range(len(labels)):
        for clip in (0.1, 0.9, 1.4):
            recipe = Recipe(steps=1, learning_rate=1.0, clip=clip, noise_multiplier=0.0)
            one = slice(index, index + 1)
            (model,) = train(features[one], labels[one], 10, recipe, norm_bound=BOUND, dataset="d", loss=loss)
            moved = np.hstack([model.tensors["weight"], model.tensors["bias"][:, None]]).astype(np.float64)
            assert float(np.linalg.norm(moved)) <= clip


def test_heads_trained_at_once_are_those_trained_alone() -> None:
    features, labels, _ = data(600)
    recipes = [
        Recipe(steps=steps, learning_rate=0.7, clip=clip, noise_multiplier=0.0, rate=rate)
        for steps, clip, rate in ((3, 0.5, None), (5, 2.0, None), (4, 1.0, 1.0))
    ]
    losses: list[Loss] = ["softmax", "one-vs-rest", "softmax"]
    heads = [Head(recipe=recipe, loss=loss) for recipe, loss in zip(recipes, losses, strict=True)]
    together = train_heads(features, labels, 10, heads, norm_bound=BOUND, dataset="d")
    for (made,), head in zip(together, heads, strict=True):
        (alone,) = train(features, labels, 10, head.recipe, norm_bound=BOUND, dataset="d", loss=head.loss)
        assert made.step == head.recipe.steps
        assert np.allclose(made.tensors["weight"], alone.tensors["weight"], atol=1e-6)
    found = [made.record.mechanism for (made,) in together]
    assert len({one.noise_fingerprint for one in found}) == 3
    assert [one.clipping for one in found if isinstance(one, DpSgd)] == ["flat", "per-output", "flat"]


def test_one_vs_rest_is_hidden_at_any_clip() -> None:
    """Each output is clipped by itself: averages and last iterates cost less than composition, far below √2·r."""
    features, labels, _ = data(1437)
    recipe = Recipe(steps=60, learning_rate=1.0, clip=0.2, noise_multiplier=0.6, rate=0.02)
    told = {}
    for loss in ("softmax", "one-vs-rest"):
        (made,) = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d", loss=loss)
        model = Model("a", made.record)
        found = combination(Portfolio([model]), {"a": 1.0}, noise=0.05).guarantee(delta=1e-5)
        told[loss] = (found.theorem, found.epsilon, run_profile(model).profile.epsilon(1e-5))
    assert told["softmax"][1] == told["softmax"][2] == told["one-vs-rest"][2]
    assert told["one-vs-rest"][0] == "hidden-run" and told["one-vs-rest"][1] < 0.5 * told["softmax"][1]


def test_noise_has_the_stated_size() -> None:
    features, labels, _ = data()
    quiet = Recipe(steps=1, learning_rate=1.0, clip=1.0, noise_multiplier=0.0)
    loud = Recipe(steps=1, learning_rate=1.0, clip=1.0, noise_multiplier=3.0)
    (mean,) = train(features, labels, 10, quiet, norm_bound=BOUND, dataset="d")
    runs = [train(features, labels, 10, loud, norm_bound=BOUND, dataset="d")[0].tensors["weight"] for _ in range(20)]
    noisy = np.stack(runs) - mean.tensors["weight"]
    deviation = 3.0 / len(labels)
    assert noisy.std() == pytest.approx(deviation, rel=0.03)  # 12,800 numbers: 0.03 is five of its deviations
    assert abs(noisy.mean()) < 5 * deviation / math.sqrt(noisy.size)


def test_batches_are_poisson() -> None:
    """One step from zero without noise: least squares tell which examples were in the batch."""
    features, labels, _ = data(200)
    recipe = Recipe(steps=1, learning_rate=1.0, clip=100.0, noise_multiplier=0.0, rate=0.3)
    errors = np.full((len(labels), 10), 0.1)
    errors[np.arange(len(labels)), labels] -= 1
    design = np.einsum("nc,nf->ncf", errors, features).reshape(len(labels), -1).T
    solver = np.linalg.pinv(design)
    sizes = []
    for _ in range(300):
        (model,) = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d")
        step = -np.hstack([model.tensors["weight"], model.tensors["bias"][:, None]]).ravel() * 60
        members = solver @ step
        assert np.all(np.minimum(np.abs(members), np.abs(members - 1)) < 0.02)
        sizes.append(round(float(members.sum())))
    assert np.mean(sizes) == pytest.approx(60, abs=5 * math.sqrt(42 / 300))
    assert np.var(sizes) == pytest.approx(42, rel=0.5)


@pytest.mark.parametrize("rate", [1e-300, 0.002, 0.05, 0.6, 1.0])
def test_batches_are_independent_coins(rate: float) -> None:
    """Sizes, every example's share, and pairs of neighbours: within five deviations of independent coins."""
    count, draws = 300, 2000
    generator = fresh_generator()
    chosen = np.zeros((draws, count))
    for row in chosen:
        batch = poisson_batch(generator, count, rate)
        assert np.all(np.diff(batch) > 0)
        assert batch.size == 0 or (batch[0] >= 0 and batch[-1] < count)
        row[batch] = 1
    spread = math.sqrt(rate * (1 - rate))
    sizes = chosen.sum(axis=1)
    assert abs(sizes.mean() - count * rate) <= 5 * spread * math.sqrt(count / draws)
    assert sizes.var() == pytest.approx(
        count * spread**2, rel=5 * math.sqrt(2 / draws) + 5 / math.sqrt(1 + count * draws * rate)
    )
    assert np.all(np.abs(chosen.mean(axis=0) - rate) <= 6 * spread / math.sqrt(draws) + 6 / draws)
    together = (chosen[:, 1:] * chosen[:, :-1]).mean()
    assert abs(together - rate**2) <= 6 * rate * math.sqrt(4 / (count * draws)) + 6 / (count * draws)


def test_features_stay_within_their_bound() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7)) * np.geomspace(1e-3, 1e3, 50)[:, None]
    features = bounded_features(rows, 3.0)
    assert np.linalg.norm(features.astype(np.float64), axis=1).max() <= 3.0
    short = np.linalg.norm(rows, axis=1) < 2.8
    assert np.allclose(features[short, :-1], rows[short], rtol=1e-6)


@pytest.mark.parametrize(
    "loss, clip, smoothness, convex",
    [
        ("softmax", 2.001, 1.0, "unclipped"),
        ("softmax", 1.9, 1.0, None),
        ("logistic", 0.1, 0.5, "glm"),
        ("one-vs-rest", 0.1, 0.5, "glm"),
    ],
)
def test_records_say_what_was_run(tmp_path: Path, loss: Any, clip: float, smoothness: float, convex: str | None) -> None:
    features, labels, classes = data(loss=loss)
    recipe = Recipe(steps=7, learning_rate=0.5, clip=clip, noise_multiplier=1.1, rate=0.25, warmup=3, decay=True)
    for name in ("a", "b"):
        early, late = train(features, labels, classes, recipe, norm_bound=BOUND, dataset="d", loss=loss, checkpoints=[4])
        early.save(tmp_path / f"{name}-4")
        late.save(tmp_path / f"{name}-7")
    portfolio = Portfolio(tmp_path)  # which checks that checkpoints of a run continue each other
    mechanisms = {model.name: model.mechanism for model in portfolio.models}
    first = mechanisms["a-7"]
    assert isinstance(first, DpSgd)
    assert (first.steps, first.expected_batch, first.convex) == (7, 10.0, convex)
    assert first.smoothness == pytest.approx(smoothness)
    assert [phase.learning_rate for phase in first.phases for _ in range(phase.steps)] == recipe.learning_rates()
    assert first.noise_fingerprint != mechanisms["b-7"].noise_fingerprint
    assert first.sampler_fingerprint != mechanisms["b-7"].sampler_fingerprint
    assert run_profile(portfolio.models[0]).profile.epsilon(1e-4) > 0
    assert Combination(portfolio.weights({"a-7": 0.5, "b-7": 0.5})).guarantee(delta=1e-4).epsilon > 0


def test_records_say_weight_decay_and_what_was_kept_before() -> None:
    features, labels, _ = data()
    plain = Recipe(steps=6, learning_rate=0.5, clip=2.01, noise_multiplier=1.1, rate=0.25)
    for decay in (0.0, 0.3):
        recipe = replace(plain, weight_decay=decay)
        made = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d", checkpoints=[2, 4])
        found = [one.record.mechanism for one in made]
        assert all(isinstance(one, DpSgd) and one.optimizer == "sgd" for one in found)
        assert [one.checkpoints_kept for one in found if isinstance(one, DpSgd)] == [None, 1, 2]
        assert [one.settings()[0].weight_decay for one in found if isinstance(one, DpSgd)] == [decay] * 3
        assert ("weight_decay" in str(made[0].record.as_dict())) == (decay > 0)  # as before where there is none
    assert len(Portfolio([Model(str(one.step), one.record) for one in made])) == 3


def test_the_guarantee_of_one_model_says_that_checkpoints_were_kept() -> None:
    features, labels, _ = data(1437)
    recipe = Recipe(steps=100, learning_rate=0.5, clip=2.01, noise_multiplier=0.6, rate=0.02)
    made = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d", checkpoints=[20, 50])
    found = combination(Portfolio([Model("a", made[-1].record)]), {"a": 1.0}).guarantee(delta=1e-5)
    assert found.theorem == "hidden-run"
    kept = "the training of model 'a' kept 2 checkpoints: none of them was or will be published or chosen from"
    assert kept in found.assumptions
    first = combination(Portfolio([Model("a", made[0].record)]), {"a": 1.0}).guarantee(delta=1e-5)
    assert not any("checkpoints:" in text for text in first.assumptions)


def test_weight_decay_lets_a_run_forget() -> None:
    """The same steps cost less where old participations shrink (docs/theory.md §9.1); composition knows nothing of it."""
    features, labels, _ = data()
    plain = Recipe(steps=40, learning_rate=0.5, clip=2.01, noise_multiplier=3.0)
    told, composed = [], []
    for decay in (0.0, 0.2):
        (made,) = train(features, labels, 10, replace(plain, weight_decay=decay), norm_bound=BOUND, dataset="d")
        model = Model("a", made.record)
        told.append(combination(Portfolio([model]), {"a": 1.0}).guarantee(delta=1e-5).epsilon)
        composed.append(run_profile(model).profile.epsilon(1e-5))
    assert composed[0] == composed[1]
    assert told[1] < 0.8 * told[0]


def test_full_batches_have_no_sampler() -> None:
    features, labels, _ = data()
    recipe = Recipe(steps=2, learning_rate=0.1, clip=1.0, noise_multiplier=1.0)
    (model,) = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d", run="mine")
    mechanism = model.record.mechanism
    assert isinstance(mechanism, DpSgd)
    assert model.record.source == "recorded"
    assert (mechanism.run, mechanism.sampling.scheme, mechanism.sampler_fingerprint) == ("mine", "full-batch", None)
    assert mechanism.expected_batch == 40.0


@pytest.mark.parametrize("loss", ["softmax", "logistic", "one-vs-rest"])
def test_smoothness_and_convexity_are_facts(loss: Any) -> None:
    """Clipped gradients at random pairs of points: β-Lipschitz, and monotone wherever the record says they are convex."""
    rng = np.random.default_rng(3)
    features, labels, classes = data(loss=loss)
    outputs = 1 if loss == "logistic" else classes
    norms = np.linalg.norm(features, axis=1).astype(np.float32)
    for clip in (0.2, 1.0, 2.001):
        smoothness, convex = linear.facts_of_linear(loss, clip, BOUND)
        for _ in range(100):
            one = rng.standard_normal((outputs, features.shape[1])).astype(np.float32) * rng.choice([1, 10])
            other = one + rng.standard_normal(one.shape).astype(np.float32) * rng.choice([0.1, 1, 10])
            index = rng.integers(len(labels))
            row = slice(index, index + 1)
            held = linear._Held(features[row], labels[row], norms[row])
            g, h = linear._clipped_sums(held, [(one, loss, clip), (other, loss, clip)])
            assert np.linalg.norm(g - h) <= smoothness * np.linalg.norm(one - other) * (1 + 1e-5) + 1e-5
            if convex:
                assert np.sum((g - h) * (one - other)) >= -1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"learning_rate": 0.0},
        {"learning_rate": math.inf},
        {"clip": math.nan},
        {"clip": 0.0},
        {"noise_multiplier": -1.0},
        {"rate": 0.0},
        {"rate": 1.5},
        {"warmup": 9},
        {"weight_decay": -0.1},
        {"weight_decay": math.inf},
    ],
)
def test_impossible_recipes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(changes))):
        Recipe(**{"steps": 5, "learning_rate": 0.1, "clip": 1.0, "noise_multiplier": 1.0, **changes})


def test_impossible_data_are_refused() -> None:
    features, labels, _ = data()
    recipe = Recipe(steps=1, learning_rate=0.1, clip=1.0, noise_multiplier=1.0)

    def ask(**changes: Any) -> None:
        arguments = {
            "features": features,
            "labels": labels,
            "classes": 10,
            "recipe": recipe,
            "norm_bound": BOUND,
            "dataset": "d",
        }
        train(**{**arguments, **changes})

    for changes, complaint in (
        ({"labels": labels[:3]}, "40 inputs but 3 labels"),
        ({"labels": labels + 8}, "between 0 and 9"),
        ({"loss": "logistic"}, "two classes"),
        ({"norm_bound": 1.4}, "an input has norm 1.4142.*bounded_features"),
        ({"recipe": replace(recipe, steps=3, learning_rate=1e300)}, "no longer finite; use a smaller learning rate"),
        ({"recipe": replace(recipe, steps=3, learning_rate=1e42)}, "no longer finite; use a smaller learning rate"),
        ({"checkpoints": [2]}, "between 1 and 1"),
    ):
        with pytest.raises(TrainingError, match=complaint):
            ask(**changes)
    with pytest.raises(DataError, match="NaN"):
        bounded_features(np.full((2, 2), np.nan), 2.0)
    with pytest.raises(DataError, match="exceed 1"):
        bounded_features(np.ones((2, 2)), 1.0)


def test_the_demos_portfolio(tmp_path: Path) -> None:
    demo = Path(__file__).parent.parent / "lab" / "portfolios" / "digits.yaml"
    train_portfolio(PortfolioFile.load(demo), tmp_path / "portfolio", jobs=1)
    portfolio = Portfolio(tmp_path / "portfolio")
    assert portfolio.names == ("noise-1", "noise-2", "noise-6")
    assert digits.accuracy(tmp_path / "portfolio" / "noise-1") > 0.75
    assert all(isinstance(m.mechanism, DpSgd) and m.mechanism.convex == "unclipped" for m in portfolio.models)
    features, labels, _ = data()
    recipe = Recipe(steps=200, learning_rate=1.0, clip=3.0, noise_multiplier=0.0)
    (model,) = train(features, labels, 10, recipe, norm_bound=BOUND, dataset="d")
    assert accuracy(model.tensors, features, labels) > 0.9
