"""The recorder and private starts: noticed by their bits, counted in the record, refused where nobody knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Portfolio, Record, Shard, distinct_runs
from dpmerge.rules import Joint

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from dpmerge.tensors import content_digest  # noqa: E402
from dpmerge.training import record, recorder_randomness, recorder_start  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    monkeypatch.setattr(recorder_start, "_SAVED", {})
    monkeypatch.setattr(recorder_start, "_NAMED", {})
    monkeypatch.setattr(recorder_start, "_FOLLOWED", type(recorder_start._FOLLOWED)())


def body(folder: Path, epochs: int = 1) -> Any:
    run = private()
    recorder = record(*run.parts, dataset="made-up")
    run.train(epochs=epochs)
    recorder.save(folder)
    return recorder, run


def forked(state: Any) -> Private:
    def build() -> Any:
        made = network()
        made.load_state_dict(state)
        return made

    return private(build=build)


def state_of(run: Private) -> Any:
    return {name: tensor.clone() for name, tensor in run.module._module.state_dict().items()}


def mechanism(folder: Path) -> DpSgd:
    found = Record.load(folder / "record.json").mechanism
    assert isinstance(found, DpSgd)
    return found


def test_a_start_is_noticed_and_counted_once(tmp_path: Path) -> None:
    _, run = body(tmp_path / "body")
    for name in ("a", "b"):
        fork = forked(state_of(run))
        recorder = record(*fork.parts, dataset="made-up")
        fork.train()
        recorder.save(tmp_path / name)
    start = mechanism(tmp_path / "a").starts_from
    assert start is not None
    assert start.mechanism == mechanism(tmp_path / "body")
    assert start.digest == content_digest(tmp_path / "body")
    portfolio = Portfolio(tmp_path)
    assert len(distinct_runs(portfolio.models)) == 3
    weights = {"a": 0.5, "b": 0.5}
    without = Joint(portfolio.weights(weights), looked_at=()).guarantee(delta=1e-5)
    assert Joint(portfolio.weights(weights), looked_at=("body",)).guarantee(delta=1e-5).epsilon == without.epsilon


def test_a_public_start_stays_public(tmp_path: Path) -> None:
    body(tmp_path / "body")
    fresh = private()
    recorder = record(*fresh.parts, dataset="made-up")
    fresh.train()
    recorder.save(tmp_path / "a")
    assert mechanism(tmp_path / "a").starts_from is None


def test_a_start_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    recorder, run = body(tmp_path / "body")
    run.train()  # on, beyond what was saved
    with pytest.raises(TrainingError, match="left by a private training of this process and not saved"):
        record(*forked(state_of(run)).parts, dataset="made-up")
    recorder.save(tmp_path / "later")
    fork = forked(state_of(run))
    again = record(*fork.parts, dataset="made-up")
    fork.train()
    start = again.record().mechanism.starts_from  # type: ignore[union-attr]
    assert start is not None
    assert start.step == recorder.steps


def test_a_new_head_on_a_private_body(tmp_path: Path) -> None:
    """Part of the tensors is enough; a start of another process is named."""
    _, run = body(tmp_path / "body")
    state = state_of(run)
    state["2.weight"], state["2.bias"] = torch.zeros(3, 5), torch.zeros(3)
    fork = forked(state)
    recorder = record(*fork.parts, dataset="made-up")
    fork.train()
    assert recorder.record().mechanism.starts_from is not None  # type: ignore[union-attr]
    recorder_start._SAVED.clear()
    recorder_start._FOLLOWED.clear()
    other = forked(state)
    named = record(*other.parts, dataset="made-up", starts_from=tmp_path / "body")
    other.train()
    assert named.record().mechanism.starts_from is not None  # type: ignore[union-attr]
    again = forked(state)  # named once, it is known
    forgotten = record(*again.parts, dataset="made-up")
    again.train()
    assert forgotten.record().mechanism.starts_from is not None  # type: ignore[union-attr]


def test_what_cannot_be_a_start_is_refused(tmp_path: Path) -> None:
    _, run = body(tmp_path / "body")
    state = state_of(run)
    with pytest.raises(TrainingError, match="holds none of its tensors"):
        record(*private().parts, dataset="made-up", starts_from=tmp_path / "body")
    with pytest.raises(TrainingError, match="a model of 'made-up'"):
        record(*forked(state).parts, dataset="other")
    _, second = body(tmp_path / "second")
    mixed = {**state, "2.weight": state_of(second)["2.weight"]}
    with pytest.raises(TrainingError, match="several private checkpoints"):
        record(*forked(mixed).parts, dataset="made-up")
    with pytest.raises(TrainingError, match="several private checkpoints"):
        record(*forked(mixed).parts, dataset="made-up", starts_from=tmp_path / "body")
    with pytest.raises(TrainingError, match="leave these out"):
        record(*forked(state).parts, dataset="made-up", resume=tmp_path / "body", starts_from=tmp_path / "second")


def test_a_fork_that_is_resumed_keeps_its_start(tmp_path: Path) -> None:
    _, run = body(tmp_path / "body")
    fork = forked(state_of(run))
    recorder = record(*fork.parts, dataset="made-up")
    fork.train()
    recorder.save(tmp_path / "a")
    again = forked(state_of(fork))
    resumed = record(*again.parts, dataset="made-up", resume=tmp_path / "a")
    again.train()
    resumed.save(tmp_path / "a-later")
    assert mechanism(tmp_path / "a-later").starts_from == mechanism(tmp_path / "a").starts_from
    Portfolio(tmp_path)


PART = Shard(partition="p", part=1, of=2, assignment="keyed-hash")


def test_a_part_is_recorded_with_constants(tmp_path: Path) -> None:
    run = private(count=57)
    with pytest.raises(TrainingError, match="must not depend on how many records it has"):
        record(*run.parts, dataset="made-up", shard=PART)
    with pytest.raises(TrainingError, match="must not depend on how many records it has"):
        record(*run.parts, dataset="made-up", shard=PART, part_size=60)  # Opacus took 1/12 and ⌊57/12⌋
    run = private(count=57)
    run.loader.batch_sampler.sample_rate = 5 / 60
    run.optimizer.expected_batch_size = 5
    recorder = record(*run.parts, dataset="made-up", shard=PART, part_size=60)
    run.train()
    recorder.save(tmp_path / "a")
    found = mechanism(tmp_path / "a")
    assert found.shard == PART
    assert (found.expected_batch, found.sampling.rate) == (5, 5 / 60)
