"""What a recorded run may show: parameters that were trained with noise, and what never changed. Everything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Model, Portfolio, Record
from dpmerge.rules import Joint

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

from dpmerge.training import record, recorder_randomness  # noqa: E402
from dpmerge_lab.training import private_sgd  # noqa: E402
from dpmerge_lab.training.recipe import LabRecipe  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    as_a_new_process()


class Keeper(nn.Module):
    """Passes its input on, and keeps the first one it sees: what a private buffer does at its worst."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4), persistent=persistent)
        self.register_buffer("constant", torch.full((2,), float("nan")))

    def forward(self, x: Any) -> Any:
        if len(x):
            self.get_buffer("kept").copy_(x[0])
        return x


class Counter(nn.Module):
    """Keeps how many batches there were, as state of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> Any:
        return torch.tensor(self.count)

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state)

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x


def keeping(persistent: bool = True) -> Any:
    return nn.Sequential(Keeper(persistent), nn.Linear(4, 3))


def trained(build: Callable[[], Any], sigma: float = 50.0) -> tuple[Private, Any]:
    run = private(build=build, sigma=sigma)
    recorder = record(*run.parts, dataset="made-up", run="r")
    run.train()
    return run, recorder


def test_a_buffer_that_holds_a_private_row_does_not_go_out(tmp_path: Path) -> None:
    """Recorded with σ = 50 it had ε = 0.06 at δ = 1e-5, proved, and a row of the data in model.safetensors."""
    run, recorder = trained(keeping)
    rows = examples().tensors[0]
    assert (rows == run.module._module[0].kept).all(1).any()
    with pytest.raises(TrainingError, match=r"^'0\.kept': changed since recording began.*leave_out=\['0\.kept'\]\)$"):
        recorder.save(tmp_path / "a")
    with pytest.raises(TrainingError, match=r"'0\.kept'"):
        recorder.record()
    assert not (tmp_path / "a").exists()
    folder = recorder.save(tmp_path / "a", leave_out=["0.kept"])
    assert load_file(folder / "model.safetensors").keys() == {"0.constant", "1.weight", "1.bias"}
    held = Record.load(folder / "record.json")
    assert isinstance(held.mechanism, DpSgd) and held.mechanism.left_out == ["0.kept"]
    rule = Joint(Portfolio((Model("a", held),)).weights({"a": 1.0}))
    said = "model 'a': no loss was computed with '0.kept', which changed without noise and were left out"
    assert said in rule.guarantee(delta=1e-5).assumptions
    again = recorder.save(tmp_path / "b")  # what was left out once stays out
    assert load_file(again / "model.safetensors").keys() == {"0.constant", "1.weight", "1.bias"}


def test_a_buffer_that_is_not_saved_can_still_enter_the_loss() -> None:
    _, recorder = trained(lambda: keeping(persistent=False))
    with pytest.raises(TrainingError, match=r"^'0\.kept': changed"):
        recorder.record()


def test_a_module_without_changes_has_nothing_left_out(tmp_path: Path) -> None:
    _, recorder = trained(network)
    assert "left_out" not in recorder.record().as_dict()["mechanism"]
    with pytest.raises(TrainingError, match="the module has no tensor 'odd'"):
        recorder.save(tmp_path / "a", leave_out=["odd"])


def frozen_average(run: Private) -> None:
    """An average of the weights, kept as a frozen parameter."""
    with torch.no_grad():
        run.module._module[0].weight.mul_(0.9).add_(0.1)


def second_optimizer(run: Private) -> None:
    """A part of the module that a second optimizer trains, without noise."""
    other = run.module._module[0]
    other.requires_grad_(True)
    torch.optim.SGD(other.parameters(), lr=0.1)
    other.bias.grad = torch.ones(5)
    torch.optim.SGD([other.bias], lr=0.1).step()
    other.requires_grad_(False)


def new_buffer(run: Private) -> None:
    run.module._module.register_buffer("late", examples().tensors[0][0].clone())


def new_layer(run: Private) -> None:
    """A trained layer is exchanged for one that the optimizer does not know."""
    run.module._module[2] = nn.Linear(5, 3)


def sign_of_zero(run: Private) -> None:
    run.module._module[0].bias.data.neg_()


def partly_frozen() -> Any:
    made = network()
    made[0].requires_grad_(False)
    made[0].bias.data.zero_()
    return made


@pytest.mark.parametrize(
    "change, names",
    [
        (frozen_average, "'0.weight': changed"),
        (second_optimizer, "'0.bias': changed"),
        (new_buffer, "'late': changed"),
        (new_layer, "'2.bias', '2.weight': changed"),
        (sign_of_zero, "'0.bias': changed"),
    ],
)
def test_whatever_else_changed_is_refused_by_name(change: Callable[[Private], None], names: str, tmp_path: Path) -> None:
    run, recorder = trained(partly_frozen)
    recorder.save(tmp_path / "before")
    change(run)
    with pytest.raises(TrainingError, match=f"^{names}"):
        recorder.save(tmp_path / "after")


def test_parameters_that_are_frozen_later_were_trained(tmp_path: Path) -> None:
    run, recorder = trained(network)
    run.module._module[0].requires_grad_(False)
    run.train()
    assert "0.weight" in load_file(recorder.save(tmp_path / "a") / "model.safetensors")


def test_state_of_the_modules_own_making(tmp_path: Path) -> None:
    _, recorder = trained(lambda: nn.Sequential(Counter(), nn.Linear(4, 3)))
    with pytest.raises(TrainingError, match=r"'0\._extra_state': changed"):
        recorder.save(tmp_path / "a")
    held = load_file(recorder.save(tmp_path / "a", leave_out="0._extra_state") / "model.safetensors")
    assert held.keys() == {"1.weight", "1.bias"}


def test_what_was_left_out_stays_out_of_a_resumed_run(tmp_path: Path) -> None:
    """The module may hold a private row when the run goes on: that is no beginning to compare with."""
    run, recorder = trained(keeping)
    folder = recorder.save(tmp_path / "half", leave_out=["0.kept"])
    later = private(build=keeping, sigma=50.0)
    later.module._module.load_state_dict(run.module._module.state_dict())
    again = record(*later.parts, dataset="made-up", resume=folder)
    later.train()
    held = load_file(again.save(tmp_path / "whole") / "model.safetensors")
    assert held.keys() == {"0.constant", "1.weight", "1.bias"}
    whole, half = (Record.load(tmp_path / name / "record.json") for name in ("whole", "half"))
    assert isinstance(whole.mechanism, DpSgd) and whole.mechanism.left_out == ["0.kept"]
    Portfolio((Model("half", half), Model("whole", whole)))  # checkpoints of one run


def test_our_own_trainers_refuse_buffers() -> None:
    inputs, labels = examples().tensors
    recipe = LabRecipe(steps=1, rate=0.5, learning_rate=0.1, clip=1.0, noise_multiplier=1.0)
    with pytest.raises(TrainingError, match=r"keeps '0\.kept' beside its parameters"):
        private_sgd.train(keeping(), inputs, labels, recipe, "d", "r")


def overwritten(run: Private) -> None:
    with torch.no_grad():
        run.module._module[0].weight[0].copy_(examples().tensors[0][0])


def written_unseen(run: Private) -> None:
    """Past torch's count of writes."""
    run.module._module[0].weight.data[0] = examples().tensors[0][0]


def loaded(run: Private) -> None:
    inner = run.module._module
    inner.load_state_dict({name: value + 1 for name, value in inner.state_dict().items()})


def stepped_without_noise(run: Private) -> None:
    """The inner optimizer, on what is left of the last gradient."""
    run.module._module[0].weight.grad = torch.ones(5, 4)
    run.optimizer.original_optimizer.step()


@pytest.mark.parametrize("change", [overwritten, written_unseen, loaded, stepped_without_noise])
def test_trained_parameters_are_as_the_private_steps_left_them(change: Callable[[Private], None], tmp_path: Path) -> None:
    """A private row written over a trained weight went out with ε = 0.0149, proved; so did weights of a second optimizer."""
    run, recorder = trained(network)
    recorder.save(tmp_path / "before")
    change(run)
    for named in ((), ("0.weight",)):
        with pytest.raises(
            TrainingError, match=r"'0\.weight'.*: trained by the private optimizer, and changed by something else"
        ):
            recorder.save(tmp_path / "after", leave_out=named)
    with pytest.raises(TrainingError, match=r"'0\.weight'.*: trained by"):
        run.train()


def test_a_hook_that_writes_into_a_trained_parameter_is_seen_at_the_step() -> None:
    run = private()
    record(*run.parts, dataset="d")

    def write(module: Any, inputs: Any, _: Any) -> None:
        module.weight.data[0] = inputs[0].sum(0)

    run.module._module[0].register_forward_hook(write)
    with pytest.raises(TrainingError, match=r"'0\.weight': trained by"):
        run.train()


def test_weights_changed_between_recording_and_the_first_step_are_seen() -> None:
    run = private(build=partly_frozen)
    record(*run.parts, dataset="d")
    overwritten(run)
    run.module._module[0].requires_grad_(True)
    with pytest.raises(TrainingError, match=r"'0\.weight': trained by"):
        run.train()


def test_weights_that_are_exchanged_for_an_evaluation_and_put_back_are_fine(tmp_path: Path) -> None:
    run, recorder = trained(network)
    inner = run.module._module
    kept = {name: value.clone() for name, value in inner.state_dict().items()}
    loaded(run)
    inner.load_state_dict(kept)
    run.train()
    recorder.save(tmp_path / "a")


def test_a_scheduler_made_after_recording_began() -> None:
    run = private()
    record(*run.parts, dataset="d")
    rates = [torch.optim.lr_scheduler.StepLR(one, 5) for one in (run.optimizer, run.optimizer.original_optimizer)]
    run.train(*rates)


def test_a_buffer_that_is_put_back_before_saving_was_still_in_the_loss() -> None:
    run, recorder = trained(keeping)
    run.module._module[0].kept.zero_()
    with pytest.raises(TrainingError, match=r"^'0\.kept': changed"):
        recorder.record()


class Mean(nn.Module):
    """Keeps a mean of the data as a plain attribute, and subtracts it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, x: Any) -> Any:
        self.mean = self.mean + x.detach().sum(0)
        return x - self.mean


def test_tensors_that_are_plain_attributes_can_enter_the_loss_too(tmp_path: Path) -> None:
    _, recorder = trained(lambda: nn.Sequential(Mean(), nn.Linear(4, 3)))
    with pytest.raises(TrainingError, match=r"^'0\.mean': changed.*first forward pass makes it, run one on public input"):
        recorder.record()
    held = load_file(recorder.save(tmp_path / "a", leave_out=["0.mean"]) / "model.safetensors")
    assert held.keys() == {"1.weight", "1.bias"}


class Odd(nn.Module):
    """Constant buffers whose memory is not simply their numbers."""

    def __init__(self, **buffers: Any) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Any) -> Any:
        return x


def test_sparse_conjugate_and_empty_buffers_can_be_followed(tmp_path: Path) -> None:
    turns = torch.polar(torch.ones(3), torch.arange(3.0))
    odd = {"sparse": torch.eye(3).to_sparse(), "conj": turns.conj(), "neg": turns.conj().imag, "empty": torch.zeros(0)}
    run, recorder = trained(lambda: nn.Sequential(Odd(**odd), nn.Linear(4, 3)))
    recorder.save(tmp_path / "a")
    run.module._module[0].sparse = torch.eye(3).mul(2).to_sparse()
    with pytest.raises(TrainingError, match=r"^'0\.sparse': changed"):
        recorder.record()


def test_a_tensor_that_cannot_be_read_or_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"tensor '0\.meta' .*cannot be read"):
        trained(lambda: nn.Sequential(Odd(meta=torch.zeros(2, device="meta")), nn.Linear(4, 3)))
    run = private()
    run.module._module.register_buffer("sparse", torch.eye(2).to_sparse())
    recorder = record(*run.parts, dataset="d")
    run.train()
    with pytest.raises(TrainingError, match=r"'sparse' is torch\.sparse_coo; it cannot be saved"):
        recorder.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
