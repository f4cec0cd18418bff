"""The recorder with two real processes (gloo): batches, steps and noise as they are, and every refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Record

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from dpmerge.training.recorder_wrapped import module_of  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What two processes found, and their folder."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.ddp_workers"]
    workers = [subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for worker in workers:
        _, said = worker.communicate(timeout=240)
        assert worker.returncode == 0, said
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], folder


@pytest.mark.parametrize("kind", ["hooks", "functorch", "ghost", "torch", "layers"])
def test_steps_are_recorded_as_they_are(ranks: tuple[list[dict[str, Any]], Path], kind: str) -> None:
    for found in (one[kind] for one in ranks[0]):
        assert found["worst"] < 1e-7  # of the sum of both processes' clipped gradients, over the batch size of both
        held = DpSgd.model_validate(found["mechanism"])
        (phase,) = held.settings()
        assert (phase.steps, phase.sampling.scheme, phase.sampling.rate, phase.expected_batch) == (10, "poisson", 0.1, 2.0)
        assert held.optimizer == "sgd" and held.clipping == ("per-layer" if kind == "layers" else "flat")
        assert found["history"] == [[0.0, 0.1, 10]]


def test_empty_batches_of_a_process_are_steps(ranks: tuple[list[dict[str, Any]], Path]) -> None:
    sizes = [
        size for one in ranks[0] for kind in ("hooks", "functorch", "ghost", "torch", "layers") for size in one[kind]["sizes"]
    ]
    assert len(sizes) == 100 and sizes.count(0) > 5  # 35 are expected
    assert 50 < sum(sizes) < 150  # one record a batch and process: 100 ± 10


def test_noise_is_added_once(ranks: tuple[list[dict[str, Any]], Path]) -> None:
    for one in ranks[0]:
        assert one["noise"] == pytest.approx(1.0, rel=0.2)  # twice would be 1.41


def test_the_first_process_saves(ranks: tuple[list[dict[str, Any]], Path]) -> None:
    found, folder = ranks
    held = Record.load(folder / "a" / "record.json").mechanism
    assert isinstance(held, DpSgd) and held.steps == 10
    first, second = (one["hooks"]["mechanism"] for one in found)
    assert held.noise_fingerprint == first["noise_fingerprint"] != second["noise_fingerprint"]
    assert held.sampler_fingerprint == first["sampler_fingerprint"] == second["sampler_fingerprint"]
    from safetensors.torch import load_file

    assert sorted(load_file(folder / "a" / "model.safetensors")) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_a_fork_is_recorded_in_the_first_process(ranks: tuple[list[dict[str, Any]], Path]) -> None:
    first = ranks[0][0]["fork"]
    assert first["starts_from"]["run"] == first["body"] and first["starts_from"]["step"] == 10


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        ("torch's shell in ghost mode", "both backward passes"),
        ("own data", "the processes have different data"),
        ("seed of the noise", "the noise generator has the seed of a process' batches"),
        ("sealed", "cannot be read"),
        ("same seed", "generators with the same seed"),
        ("same seed elsewhere", "generators with the same seed"),
        ("different clips", "clip differs between the processes of this training (1.0, 2.0)"),
        ("changed in one", "'seen': changed since recording began"),
        ("everything in each", "divides the data among 1 processes, and 2 add up"),
        ("norm bound", "for a training in one process"),
    ],
)
def test_refusals_reach_every_process(ranks: tuple[list[dict[str, Any]], Path], attempt: str, message: str) -> None:
    for one in ranks[0]:
        assert message in one["refusals"][attempt]


def test_a_shell_around_the_private_module_is_refused() -> None:
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    with pytest.raises(TrainingError, match="each process then adds noise of its own"):
        module_of(wrapped)
