"""`dpmerge train` with networks: what is trained, what a run that was stopped continues from, and what cannot be run here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import DpmergeError, TrainingError
from dpmerge.records import Portfolio
from dpmerge.training.data import DataSource, load
from tests.test_train_command import mechanisms, trained, written

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from dpmerge_lab.training import networks, private_sgd, trainers  # noqa: E402

NETWORKS: dict[str, Any] = {
    "data": "digits",
    "defaults": {"model": "mlp", "hidden": 8, "learning_rate": 0.5, "steps": 12, "rate": 0.1, "clip": 1, "noise_multiplier": 1},
    "runs": {"a": {"checkpoints": [4, 10]}},
}


class Killed(BaseException):
    """As good as SIGKILL for whoever expects errors."""


def stopped_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training stops after so many steps; its state is saved at every step before."""
    real, taken = private_sgd.clipped_sums, 0

    def counted(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > steps:
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(private_sgd, "clipped_sums", counted)
    monkeypatch.setattr(trainers, "SAVE_EVERY", 0.0)


def changed(**fields: Any) -> dict[str, Any]:
    return {**NETWORKS, "defaults": {**NETWORKS["defaults"], **fields}}


def test_a_portfolio_of_networks(tmp_path: Path) -> None:
    runs = {
        "small": {"checkpoints": [6], "seed": 5, "warmup": 2, "decay": True, "weight_decay": 0.1},
        "conv": {"model": "cnn", "full_batch": True, "steps": 2, "hidden": 128},
        "line": {"model": "softmax"},
    }
    content = {**NETWORKS, "norm_bound": 1.5, "runs": runs}
    with pytest.raises(TrainingError, match="run 'line': field hidden: unknown field"):
        trained(written(tmp_path, content), tmp_path / "out")
    del content["runs"]["line"]
    threads = torch.get_num_threads()
    trained(written(tmp_path, content), tmp_path / "out")
    assert torch.get_num_threads() == threads
    found = mechanisms(tmp_path / "out")
    assert set(found) == {"small", "small@6", "conv"}
    assert found["small"].run == found["small@6"].run
    assert (found["small@6"].checkpoints_kept, found["small"].checkpoints_kept) == (None, 1)
    assert {phase.weight_decay for phase in found["small"].settings()} == {0.1}
    assert [phase.learning_rate for phase in found["small"].phases][:2] == [0.25, 0.5]
    assert (found["conv"].sampling.scheme, found["conv"].sampler_fingerprint) == ("full-batch", None)
    assert found["conv"].smoothness is None and found["conv"].convex is None
    assert load_file(tmp_path / "out" / "small" / "model.safetensors")["1.weight"].shape == (8, 64)
    scores = json.loads((tmp_path / "out" / "utilities.json").read_text())["utilities"]
    network = networks.mlp(64, 8)
    state = load_file(tmp_path / "out" / "small" / "model.safetensors")
    network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in state.items()})
    data = load(DataSource("digits"))
    assert scores["small"] == np.mean(network(torch.from_numpy(data.test)).argmax(1).numpy() == data.test_labels)


def test_a_network_that_was_stopped_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = written(tmp_path, NETWORKS), tmp_path / "out"
    state = out / ".training" / "states" / "a.safetensors"
    for steps in (7, 1):  # stopped a second time after one step more
        with monkeypatch.context() as patch:
            stopped_after(steps, patch)
            with pytest.raises(Killed):
                trained(path, out)
    with pytest.raises(DpmergeError, match="no models here"):
        Portfolio(out)
    reached = load_file(state)
    taken: list[int] = []
    real = private_sgd.steps

    def watched(*arguments: Any, **options: Any) -> Any:
        network, first = arguments[0], True
        assert np.array_equal(network.state_dict()["1.weight"].numpy(), reached["now/1.weight"])  # from where it had stopped
        for step in real(*arguments, **options):
            assert first or not np.array_equal(network.state_dict()["1.weight"].numpy(), reached["now/1.weight"])
            taken.append(step)
            yield step
            first = False

    monkeypatch.setattr(private_sgd, "steps", watched)
    trained(path, out)
    assert taken == [9, 10, 11, 12]
    found = mechanisms(out)
    assert {name: record.steps for name, record in found.items()} == {"a@4": 4, "a@10": 10, "a": 12}
    assert len({record.run for record in found.values()}) == 1
    assert np.array_equal(load_file(out / "a@4" / "model.safetensors")["1.weight"], reached["4/1.weight"])
    assert not state.exists()


def test_two_continuations_of_one_beginning_do_not_pass_for_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their noise is the same up to where they parted: neither one run counted once, nor two independent ones."""
    path, out, other = written(tmp_path, NETWORKS), tmp_path / "out", tmp_path / "other"
    with monkeypatch.context() as patch:
        stopped_after(5, patch)
        with pytest.raises(Killed):
            trained(path, out)
    state = Path(".training") / "states" / "a.safetensors"
    (other / state).parent.mkdir(parents=True)
    (other / state).write_bytes((out / state).read_bytes())
    for folder in (out, other):
        trained(path, folder)
    (other / "a").rename(out / "b")
    with pytest.raises(DpmergeError, match="not the beginning of the second"):
        Portfolio(out)


def test_a_fork_does_not_go_on_when_its_start_was_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first steps began with the old body, and its record would state the new one; likewise a part of a new partition."""
    runs = {"body": {"steps": 2}, "fork": {"from": "body"}, "part": {"shards": 2}}
    out = tmp_path / "out"

    def train(*names: str) -> None:
        trained(written(tmp_path, {**NETWORKS, "runs": {name: runs[name] for name in names}}), out)

    train("body")
    for name in ("fork", "part"):
        with monkeypatch.context() as patch:
            stopped_after(6, patch)
            with pytest.raises(Killed):
                train("body", name)
    first = (out / "body").rename(tmp_path / "first")
    (out / ".training" / "parts" / "2-parts.json").unlink()
    train("body")
    with pytest.raises(TrainingError, match="'fork' was begun from another checkpoint"):
        train("body", "fork")
    with pytest.raises(TrainingError, match=r"'part\.1' was begun .* on another part of the data"):
        train("body", "part")
    shutil.rmtree(out / "body")
    first.rename(out / "body")
    train("body", "fork")
    start = mechanisms(out)["fork"].starts_from
    assert start is not None and start.run == mechanisms(out)["body"].run


def test_what_was_begun_is_not_continued_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = written(tmp_path, NETWORKS), tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_after(3, patch)
        with pytest.raises(Killed):
            trained(path, out)
    state = out / ".training" / "states" / "a.safetensors"
    with pytest.raises(TrainingError, match=r"run 'a' in .* was made with clip 1.0, but is now asked for with 2.0"):
        trained(written(tmp_path, changed(clip=2)), out)
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrainingError, match=r"cannot be read.*remove it to begin run 'a' anew"):
        trained(written(tmp_path, NETWORKS), out)
    state.write_bytes(whole)
    monkeypatch.setattr("dpmerge.training.data.Data.digest", lambda self: "of other data")
    with pytest.raises(TrainingError, match="run 'a' was begun on other data; remove"):
        trained(written(tmp_path, NETWORKS), out)


@pytest.mark.parametrize(
    "fault, text",
    [
        (
            lambda: torch.cuda.OutOfMemoryError("CUDA out of memory"),
            "run a: the memory of the GPU is too small .* 512 examples",
        ),
        (
            lambda: RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"),
            "of this machine .* fewer jobs",
        ),
        (
            lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "memory of this machine is too small",
        ),
        (MemoryError, "memory of this machine is too small"),
    ],
)
def test_out_of_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, text: str) -> None:
    def too_much(*_: Any) -> None:
        raise fault()

    monkeypatch.setattr(private_sgd, "example_gradients", too_much)
    with pytest.raises(TrainingError, match=text):
        trained(written(tmp_path, NETWORKS), tmp_path / "out")


def test_other_faults_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(private_sgd, "example_gradients", wrong)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        trained(written(tmp_path, NETWORKS), tmp_path / "out")


def test_what_cannot_be_run_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ["train", str(written(tmp_path, NETWORKS)), "--out", str(tmp_path / "out"), "--device", "cuda"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, TrainingError)
    assert str(result.exception).endswith("run 'a': device cuda: torch sees no CUDA GPU on this machine; use cpu")
    content = {**changed(model="cnn"), "data": "tests.test_train_command:arrays", "classes": 3, "dataset": "mine"}
    with pytest.raises(TrainingError, match=r"run 'a': cnn needs images; the inputs have shape \(4,\): use mlp"):
        trained(written(tmp_path, content), tmp_path / "out")
    with pytest.raises(TrainingError, match="run a: the parameters are no longer finite; use a smaller learning rate"):
        trained(written(tmp_path, changed(learning_rate=1e30, clip=1e15)), tmp_path / "out")
    assert not (tmp_path / "out" / "a").exists()


def test_a_network_on_aggregates_that_was_stopped_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = changed(on_aggregates={"start": 2, "last": 2})
    content["runs"] = {"a": {}}
    with monkeypatch.context() as patch:
        stopped_after(5, patch)
        with pytest.raises(Killed):
            trained(written(tmp_path, content), tmp_path / "out")
    trained(written(tmp_path, content), tmp_path / "out")
    record = mechanisms(tmp_path / "out")["a"]
    assert record.steps == 12 and record.optimizer.startswith("sgd from the mean of the last 2 iterates")


def test_fingerprints_of_a_continued_run_tell_continuations_apart() -> None:
    chained = trainers.chained
    assert chained(["a"]) == "a"
    assert len({chained(["a"]), chained(["a", "b"]), chained(["a", "c"]), chained(["a", "b", "c"])}) == 4


def test_networks_fork_and_are_trained_on_parts(tmp_path: Path) -> None:
    """Forks begin with the body's tensors; parts divide by their public share. A stopped fork keeps its start."""
    runs = {"body": {}, "head": {"from": "body", "shards": 2, "steps": 1, "learning_rate": 1e-9}}
    trained(written(tmp_path, {**NETWORKS, "runs": runs}), tmp_path / "out")
    found = mechanisms(tmp_path / "out")
    assert set(found) == {"body", "head.1", "head.2"}
    held = {name: load_file(tmp_path / "out" / name / "model.safetensors") for name in found}
    for part in (1, 2):
        fork = found[f"head.{part}"]
        assert fork.starts_from is not None and fork.starts_from.mechanism == found["body"]
        assert fork.shard is not None and (fork.shard.part, fork.shard.of) == (part, 2)
        assert fork.expected_batch == pytest.approx(0.1 * 1437 / 2)
        for name, tensor in held["body"].items():
            np.testing.assert_allclose(held[f"head.{part}"][name], tensor, atol=1e-6)
    with pytest.raises(TrainingError, match="leave out shift or shards"):
        trained(written(tmp_path, {**NETWORKS, "runs": {"s": {"shards": 2, "shift": {"period": 4}}}}), tmp_path / "other")
    with pytest.raises(TrainingError, match="has the tensors"):
        trained(written(tmp_path, {**NETWORKS, "runs": {"w": {"from": "out/body", "hidden": 9}}}), tmp_path / "other")
