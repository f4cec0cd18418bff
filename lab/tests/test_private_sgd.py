"""Private training of networks: clipping against every example by itself, noise, batches, records."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import TrainingError
from dpmerge.profiles import run_profile
from dpmerge.records import DpSgd, Portfolio

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from dpmerge_lab.training import networks, private_sgd  # noqa: E402
from dpmerge_lab.training.recipe import LabRecipe as Recipe  # noqa: E402

torch.set_num_threads(1)  # the suite already uses every core
QUIET = Recipe(steps=1, rate=1.0, learning_rate=1.0, clip=1.0, noise_multiplier=0.0)


def images(count: int, side: int = 8) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, side, side, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def by_hand(network: Any, examples: Any, labels: Any, clip: float) -> list[Any]:
    """The sum of clipped gradients, every example's computed by itself."""
    total = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for x, y in zip(examples, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(network(x[None]), y[None])
        gradient = torch.autograd.grad(loss, list(network.parameters()))
        norm = math.sqrt(sum(float((part.double() ** 2).sum()) for part in gradient))
        total = [whole + part * min(1.0, clip / norm) for whole, part in zip(total, gradient, strict=True)]
    return total


@pytest.mark.parametrize("build", [networks.resnet18, networks.wide_resnet, networks.small_cnn, lambda: networks.mlp(192)])
@pytest.mark.parametrize("clip", [1.0, 1000.0])
def test_sums_of_clipped_gradients_are_those_of_every_example(build: Any, clip: float) -> None:
    examples, labels = images(4)
    network = networks.from_seed(build, 1)
    expected = by_hand(network, examples, labels, clip)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    recipe = Recipe(steps=1, rate=1.0, learning_rate=1.0, clip=clip, noise_multiplier=0.0)
    private_sgd.train(network, examples, labels, recipe, "d", "r", micro_batch=3)
    for old, new, total in zip(before, network.parameters(), expected, strict=True):
        assert torch.allclose(old - new, total / 4, rtol=1e-3, atol=2e-6 * max(1.0, float(total.abs().max())))


def test_noise_has_the_stated_size() -> None:
    examples, labels = images(10)
    quiet = private_sgd.train(networks.from_seed(lambda: networks.mlp(192), 1), examples, labels, QUIET, "d", "r")
    loud = Recipe(steps=1, rate=1.0, learning_rate=1.0, clip=2.0, noise_multiplier=3.0)
    noisy = private_sgd.train(networks.from_seed(lambda: networks.mlp(192), 1), examples, labels, loud, "d", "r")
    noise = (noisy[0].state["1.weight"] - quiet[0].state["1.weight"]).numpy()
    deviation = 3.0 * 2.0 / 10
    assert noise.std() == pytest.approx(deviation, rel=0.03)  # 24,576 numbers: 0.03 is six of its deviations
    assert abs(noise.mean()) < 0.2 / 10 + 5 * deviation / np.sqrt(noise.size)


def test_batches_are_poisson(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(network: Any, examples: Any, labels: Any, clip: float, copies: int) -> list[Any]:
        sizes.append(len(labels))
        return [torch.zeros_like(parameter) for parameter in network.parameters()]

    monkeypatch.setattr(private_sgd, "clipped_sums", counted)
    examples, labels = images(200, side=1)
    recipe = Recipe(steps=2000, rate=0.3, learning_rate=0.1, clip=1.0, noise_multiplier=0.0)
    private_sgd.train(networks.mlp(3, 2), examples, labels, recipe, "d", "r")
    assert np.mean(sizes) == pytest.approx(60, abs=5 * np.sqrt(42 / 2000))
    assert np.var(sizes) == pytest.approx(42, rel=0.2)  # variance of a variance: 0.2 is six of its deviations


@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_full_batches_with_a_schedule_are_gradient_descent(decay: float) -> None:
    examples, labels = images(6)
    network, copy = (networks.from_seed(lambda: networks.mlp(192, 4), 1) for _ in range(2))
    recipe = Recipe(steps=4, learning_rate=0.5, clip=0.7, noise_multiplier=0.0, warmup=2, decay=True, weight_decay=decay)
    (trained,) = private_sgd.train(network, examples, labels, recipe, "d", "r", micro_batch=4)
    for rate in (0.25, 0.5, 0.5, 0.25):
        total = by_hand(copy, examples, labels, 0.7)
        with torch.no_grad():
            for parameter, gradient in zip(copy.parameters(), total, strict=True):
                parameter.mul_(1 - rate * decay).sub_(rate * gradient / 6)
    for new, old in zip(network.parameters(), copy.parameters(), strict=True):
        assert torch.allclose(new, old, atol=2e-5)
    mechanism = trained.record.mechanism
    assert isinstance(mechanism, DpSgd) and trained.record.source == "recorded"
    assert (mechanism.sampling.scheme, mechanism.expected_batch, mechanism.sampler_fingerprint) == ("full-batch", 6.0, None)
    assert [(phase.steps, phase.learning_rate) for phase in mechanism.phases] == [(1, 0.25), (2, 0.5), (1, 0.25)]
    assert {phase.weight_decay for phase in mechanism.settings()} == {decay}


def test_records_count_the_checkpoints_kept_before() -> None:
    examples, labels = images(6)
    recipe = Recipe(steps=4, learning_rate=0.5, clip=0.7, noise_multiplier=1.0)
    kept = private_sgd.train(networks.from_seed(lambda: networks.mlp(192, 4), 1), examples, labels, recipe, "d", "r", [1, 3])
    assert [(one.steps, getattr(one.record.mechanism, "checkpoints_kept", 0)) for one in kept] == [(1, None), (3, 1), (4, 2)]


def test_clipped_gradients_stay_within_the_clip() -> None:
    """Over millions of parameters too, where torch's own norm in float32 comes out too small."""
    examples, labels = images(3, side=32)
    network = networks.from_seed(lambda: networks.mlp(3 * 32 * 32, 700), 1)
    for example, label in zip(examples, labels, strict=True):
        total = private_sgd.clipped_sums(network, example[None], label[None], 0.01)
        norm = math.sqrt(sum(float((part.double() ** 2).sum()) for part in total))
        assert 0.01 * (1 - 2e-5) < norm <= 0.01


def test_noise_on_a_gpu_has_a_seed_for_every_step_that_no_record_gives_away(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch, "Generator", lambda where: None)
    one, other = private_sgd.GaussianNoise(gpu), private_sgd.GaussianNoise(gpu)
    seeds = [noise._next_seed() for noise in (one, other) for _ in range(100)]
    assert len(set(seeds)) == 200 and max(seeds) > 2**60 and max(seeds) < 2**64
    assert one.fingerprint != other.fingerprint
    told = {hashlib.sha256(seed.to_bytes(8)).hexdigest()[:32] for seed in seeds}
    assert not told & {one.fingerprint, other.fingerprint}


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "wrn-16-4"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 15, 17)])
def test_networks_fit_images_of_any_size(name: str, shape: tuple[int, int, int]) -> None:
    network = networks.build(name, shape, 7)
    assert network(torch.zeros(2, *shape)).shape == (2, 7)
    assert not any(list(network.buffers()))
    if name != "mlp":
        with pytest.raises(TrainingError, match="needs images"):
            networks.build(name, (64,), 7)


def test_an_empty_batch_is_noise_alone() -> None:
    examples, labels = images(3)
    recipe = Recipe(steps=3, rate=1e-9, learning_rate=0.1, clip=1.0, noise_multiplier=1.0)
    trained = private_sgd.train(networks.mlp(192, 4), examples, labels, recipe, "d", "r")
    assert torch.isfinite(trained[-1].state["1.weight"]).all()


def test_records_of_checkpoints_continue_each_other(tmp_path: Path) -> None:
    examples, labels = images(40)
    recipe = Recipe(steps=9, rate=0.25, learning_rate=0.5, clip=1.5, noise_multiplier=1.1)
    trained = private_sgd.train(networks.mlp(192, 4), examples, labels, recipe, "some-data", "one-run", keep=(3, 6))
    again = private_sgd.train(networks.mlp(192, 4), examples, labels, recipe, "some-data", "another")
    assert [point.steps for point in trained] == [3, 6, 9]
    assert not torch.equal(trained[0].state["1.weight"], trained[1].state["1.weight"])
    for name, point in zip(["a", "b", "c", "d"], [*trained, *again], strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(point.record.model_dump_json(by_alias=True))
    portfolio = Portfolio(tmp_path)
    stated = json.loads((tmp_path / "b" / "record.json").read_text())["mechanism"]
    assert stated["phases"][0]["steps"] == 6 and stated["expected_batch"] == 10.0
    assert (stated["noise_multiplier"], stated["clip"], stated["clipping"], stated["smoothness"]) == (1.1, 1.5, "flat", None)
    assert stated["sampling"] == {"scheme": "poisson", "rate": 0.25}
    first, *_, other = (model.mechanism for model in portfolio.models)
    assert first.noise_fingerprint != other.noise_fingerprint and first.sampler_fingerprint != other.sampler_fingerprint
    epsilons = [run_profile(model).profile.epsilon(1e-5) for model in portfolio.models]
    assert epsilons[0] < epsilons[1] < epsilons[2] == epsilons[3]


def test_what_cannot_be_run_is_one_line() -> None:
    with pytest.raises(TrainingError, match="no device of torch"):
        private_sgd.device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(TrainingError, match="no CUDA GPU"):
            private_sgd.device("cuda")
    examples, labels = images(4)
    with pytest.raises(TrainingError, match="GroupNorm for BatchNorm"):
        private_sgd.train(torch.nn.BatchNorm2d(3), examples, labels, QUIET, "d", "r")
    with pytest.raises(TrainingError, match="checkpoints must lie between 1 and 1"):
        private_sgd.train(networks.mlp(192, 4), examples, labels, QUIET, "d", "r", keep=(2,))
    with pytest.raises(TrainingError, match="clip must be positive"):
        Recipe(steps=1, rate=None, learning_rate=1.0, clip=0.0, noise_multiplier=0.0)
    wild = Recipe(steps=3, rate=1.0, learning_rate=1e38, clip=1e3, noise_multiplier=9.0)
    with pytest.raises(TrainingError, match="smaller learning rate"):
        private_sgd.train(networks.mlp(192, 4), examples, labels, wild, "d", "r")
