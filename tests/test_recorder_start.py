"""The recorder and private starts: noticed by their bits, counted in the record, refused where nobody knows them."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Portfolio, Record, Shard, distinct_runs
from dpmerge.rules import Joint

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from dpmerge.tensors import content_digest  # noqa: E402
from dpmerge.training import data_fingerprint, record, recorder_randomness, recorder_start  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    as_a_new_process()


def body(folder: Path, epochs: int = 1) -> Any:
    run = private()
    recorder = record(*run.parts, dataset="made-up")
    run.train(epochs=epochs)
    recorder.save(folder)
    return recorder, run


def forked(state: Any, build: Callable[[], Any] = network, **options: Any) -> Private:
    def begun() -> Any:
        made = build()
        made.load_state_dict(state)
        return made

    return private(build=begun, **options)


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
    as_a_new_process()
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


def test_a_fork_with_the_noise_of_its_body_is_refused(tmp_path: Path) -> None:
    """With σ = 100 and the generator's state restored with the checkpoint, body and fork differed by next to nothing."""
    generator = torch.Generator().manual_seed(7)
    run = private(noise_generator=generator)
    recorder = record(*run.parts, dataset="made-up")
    run.train()
    recorder.save(tmp_path / "body")
    state, noise = state_of(run), generator.get_state()
    run.train()
    fork = forked(state, noise_generator=torch.Generator().set_state(noise))
    record(*fork.parts, dataset="made-up")
    with pytest.raises(TrainingError, match=r"noise generator was in a state .* checkpoint that another training begins"):
        fork.train()


def test_a_fork_with_the_batches_of_its_body_is_refused(tmp_path: Path) -> None:
    def coins() -> Any:
        return DataLoader(examples(), batch_size=5, generator=torch.Generator().manual_seed(3))

    run = private(loader=coins())
    recorder = record(*run.parts, dataset="made-up")
    run.train()
    recorder.save(tmp_path / "body")
    fork = forked(state_of(run), loader=coins())
    record(*fork.parts, dataset="made-up")
    with pytest.raises(TrainingError, match="sampling generator was in a state"):
        fork.train()


class Counting(nn.Module):
    """Keeps the sum of its inputs in a buffer, without noise."""

    def __init__(self, counts: bool = True, name: str = "seen") -> None:
        super().__init__()
        self.layer, self.counts, self.name = nn.Linear(4, 3), counts, name
        self.register_buffer(name, torch.zeros(4))

    def forward(self, inputs: Any) -> Any:
        if self.counts:
            getattr(self, self.name).add_(inputs.detach().sum(0))
        return self.layer(inputs)


def test_what_the_body_left_out_stays_out_of_the_fork(tmp_path: Path) -> None:
    run = private(build=Counting)
    recorder = record(*run.parts, dataset="made-up")
    run.train()
    recorder.save(tmp_path / "body", leave_out=["seen"])
    state = state_of(run)
    fork = forked(state, lambda: Counting(counts=False))
    second = record(*fork.parts, dataset="made-up")
    fork.train()
    second.save(tmp_path / "fork")
    assert mechanism(tmp_path / "fork").left_out == ["seen"]
    assert "seen" not in load_file(tmp_path / "fork" / "model.safetensors")
    guarantee = Joint(Portfolio(tmp_path).weights({"fork": 1.0})).guarantee(delta=1e-5)
    assert any("seen" in text for text in guarantee.assumptions)
    # Under another name, or trained, it is refused; also when body and recorder are gone.
    renamed = {"layer.weight": state["layer.weight"], "layer.bias": state["layer.bias"], "sum": state["seen"]}
    del run, recorder
    gc.collect()
    with pytest.raises(TrainingError, match="'sum': changed without noise by a private training of this process"):
        record(*forked(renamed, lambda: Counting(False, "sum")).parts, dataset="made-up")
    trained = forked(state, lambda: Counting(counts=False))
    trained.module._module.seen = nn.Parameter(trained.module._module._buffers.pop("seen"))
    trained.optimizer.param_groups[0]["params"].append(trained.module._module.seen)
    with pytest.raises(TrainingError, match=r"'seen': left out of the checkpoint .* and trained now"):
        record(*trained.parts, dataset="made-up")


def test_a_folder_that_was_overwritten_is_not_taken_for_the_start(tmp_path: Path) -> None:
    first, run = body(tmp_path / "body", epochs=2)
    shutil.rmtree(tmp_path / "body")
    second, other = body(tmp_path / "body")
    for recorder, of in ((first, run), (second, other)):
        fork = forked(state_of(of))
        again = record(*fork.parts, dataset="made-up")
        fork.train()
        start = again.record().mechanism.starts_from  # type: ignore[union-attr]
        assert start is not None
        assert (start.run, start.step) == (recorder.record().mechanism.run, recorder.steps)


def test_a_start_is_known_after_its_recorder_is_gone(tmp_path: Path) -> None:
    def left(resume: Path | None = None) -> Any:
        run = private() if resume is None else forked(load_file(resume / "model.safetensors"))
        record(*run.parts, dataset="made-up", resume=resume)
        run.train()
        return state_of(run)

    body(tmp_path / "body")
    gc.collect()
    as_a_new_process()
    states = [left(), left(tmp_path / "body")]  # a run that is resumed leaves private tensors too
    gc.collect()
    assert not recorder_start._FOLLOWED
    for state in states:
        with pytest.raises(TrainingError, match="left by a private training of this process and not saved"):
            record(*forked(state).parts, dataset="made-up")
    # What it was resumed from is a start that was named.
    fork = forked(load_file(tmp_path / "body" / "model.safetensors"))
    recorder = record(*fork.parts, dataset="made-up")
    fork.train()
    assert recorder.record().mechanism.starts_from is not None  # type: ignore[union-attr]


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


@pytest.mark.parametrize("count", [60, 61])
def test_the_steps_of_a_part_do_not_tell_its_size(count: int) -> None:
    run = private(count=count)
    run.loader.batch_sampler.sample_rate = 5 / 60
    run.optimizer.expected_batch_size = 5
    if count == 61:  # Opacus would make 13 steps an epoch
        with pytest.raises(TrainingError, match=r"loader\.batch_sampler\.steps"):
            record(*run.parts, dataset="made-up", shard=PART, part_size=60)
        run.loader.batch_sampler.steps = 12
    recorder = record(*run.parts, dataset="made-up", shard=PART, part_size=60)
    run.train(epochs=2)
    assert recorder.steps == 24


def test_the_fingerprint_of_the_data_stays_with_the_run(tmp_path: Path) -> None:
    """It is in the record, a resumed run repeats it, and a fork on data with another one is refused."""
    found, other = (data_fingerprint(examples(count), key=bytes(32)) for count in (60, 59))
    run = private()
    recorder = record(*run.parts, dataset="made-up", data_fingerprint=found)
    run.train()
    recorder.save(tmp_path / "body")
    assert Record.load(tmp_path / "body" / "record.json").data_fingerprint == found
    with pytest.raises(TrainingError, match="whose data have another fingerprint"):
        record(*forked(state_of(run)).parts, dataset="made-up", data_fingerprint=other)
    for given in (None, other):
        with pytest.raises(TrainingError, match="that of the same data under the same key"):
            record(*forked(state_of(run)).parts, dataset="made-up", resume=tmp_path / "body", data_fingerprint=given)
    on = forked(state_of(run))
    resumed = record(*on.parts, dataset="made-up", resume=tmp_path / "body", data_fingerprint=found)
    on.train()
    assert resumed.record().data_fingerprint == found
