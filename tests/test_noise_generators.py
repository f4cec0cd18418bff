"""Where training noise comes from: our trainers' generator is cryptographic, and guarantees name those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpmerge.datasets import bounded_features
from dpmerge.records import DpSgd, Model, NoiseGenerator, Portfolio, Record
from dpmerge.rules import Base, Joint, Selection
from dpmerge.training import Recipe, fresh_generator, together, train
from tests.builders import dp_sgd

SAID = "training noise of a generator that is not known to be cryptographic is as good as true noise"


def assumed(*models: Model) -> list[str]:
    portfolio = Portfolio(models)
    rule = Selection(portfolio.weights({model.name: 1 / len(models) for model in models}))
    return [text for text in rule.guarantee(delta=1e-5).assumptions if SAID in text]


def test_a_guarantee_names_the_generators_once() -> None:
    def model(name: str, generator: NoiseGenerator | None) -> Model:
        return dp_sgd(name, sigma=4.0, run=name, noise_fingerprint=name, noise_generator=generator)

    models = (model("a", "torch-mt19937"), model("b", None), model("c", "chacha20"), model("d", "torch-mt19937"))
    assert assumed(*models) == [f"{SAID} (torch-mt19937 for 'a', 'd'; not recorded for 'b')"]
    assert assumed(model("a", "operating-system"), model("b", "chacha20")) == []
    assert any(SAID in text for text in Base.recorded(models[0]).run.assumptions)


def test_an_unknown_word_is_refused_and_a_missing_one_is_not_written() -> None:
    record = dp_sgd("a", sigma=4.0).record
    assert "noise_generator" not in record.as_dict()["mechanism"]
    content = record.as_dict()
    content["mechanism"]["noise_generator"] = "dice"
    with pytest.raises(Exception, match="noise_generator"):
        Record.parse(json.dumps(content))


def test_fresh_generators_are_chacha20_with_256_bits_of_the_systems_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes(range(100, 132))
    asked: list[int] = []

    def bits(count: int) -> int:
        asked.append(count)
        return int.from_bytes(key, "little")

    monkeypatch.setattr("secrets.randbits", bits)
    drawn = fresh_generator().bit_generator.random_raw(100)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(800))
    assert asked == [256] and drawn.tobytes() == stream


def test_linear_models_say_chacha20() -> None:
    features = bounded_features(np.eye(4, dtype=np.float32), 2.0)
    recipe = Recipe(steps=1, learning_rate=0.1, clip=1.0, noise_multiplier=1.0)
    (trained,) = train(features, np.arange(4) % 2, 2, recipe, norm_bound=2.0, dataset="d")
    assert trained.record.mechanism.noise_generator == "chacha20" and assumed(Model("a", trained.record)) == []


def test_a_run_with_several_generators() -> None:
    assert together(["chacha20", "chacha20"]) == "chacha20"
    assert together(["chacha20", "torch-philox"]) == "several"
    assert together([None, "chacha20"]) is None


def test_networks_and_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge.training import recorder_randomness
    from dpmerge_lab.training import private_sgd
    from tests.opacus_builders import private

    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    assert private_sgd.Randomness(torch.device("cpu")).noise.generator == "chacha20"
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        run = private()
    found: Any = recorder_randomness.noise_generator
    assert found(run.engine, run.optimizer) == "torch-mt19937"
    run.optimizer.generator = object()
    assert found(run.engine, run.optimizer) == "other"
    run.engine.secure_mode, run.engine.secure_rng = True, run.optimizer.generator
    assert found(run.engine, run.optimizer) == "operating-system"


def test_a_joint_release_says_it_too() -> None:
    model = dp_sgd("a", sigma=4.0)
    assert isinstance(model.mechanism, DpSgd)
    rule = Joint(Portfolio((model,)).weights({"a": 1.0}))
    assert f"{SAID} (not recorded for 'a')" in rule.guarantee(delta=1e-5).assumptions
