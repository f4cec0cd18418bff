"""The recorder's own look at a linear head: what it establishes at every step, and what it leaves out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus")
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge import Portfolio, combination, merge, verify
from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Model
from dpmerge.training import record, recorder_randomness, same_start
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, private

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]
R = 2.0  # tanh of three features, and the bias


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    as_a_new_process()


def head(outputs: int = 3, bias: bool = True) -> Any:
    """A frozen body, and a head on it."""
    body = nn.Linear(4, 3)
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Tanh(), nn.Linear(3, outputs, bias=bias))


def data(kind: str, outputs: int = 3) -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 4, generator=generator)
    if kind == "classes":
        return TensorDataset(x, torch.randint(0, outputs, (40,), generator=generator))
    return TensorDataset(x, torch.randint(0, 2, (40, outputs), generator=generator).float())


def training(loss: Any, outputs: int = 3, kind: str = "classes", **options: Any) -> Private:
    bias = options.pop("bias", True)
    build = options.pop("build", lambda: head(outputs, bias))
    loader = DataLoader(data(kind, outputs), batch_size=8)
    made = private(build=build, loader=loader, **options)
    made.criterion = loss
    return made


def trained(made: Private, bound: float) -> Any:
    recorder = record(*made.parts, dataset="d", norm_bound=bound)
    made.train()
    return recorder


def mechanism(recorder: Any) -> DpSgd:
    found = recorder.record().mechanism
    assert isinstance(found, DpSgd)
    return found


@pytest.mark.parametrize(
    "loss, outputs, kind, clip, smoothness, convex",
    [
        (nn.CrossEntropyLoss(), 3, "classes", 2.9, R**2 / 2, "unclipped"),
        (nn.CrossEntropyLoss(), 3, "classes", 1.0, R**2 / 2, None),
        (nn.BCEWithLogitsLoss(), 1, "bits", 0.1, R**2 / 4, "glm"),
        (nn.BCEWithLogitsLoss(), 4, "bits", 1.01, R**2 / 16, "unclipped"),
        (nn.BCEWithLogitsLoss(), 4, "bits", 0.5, R**2 / 16, None),
    ],
)
def test_what_is_checked_is_written(loss: Any, outputs: int, kind: str, clip: float, smoothness: float, convex: Any) -> None:
    made = training(loss, outputs, kind, clip=clip)
    recorder = record(*made.parts, dataset="d", norm_bound=R)
    made.train(epochs=2)
    found = mechanism(recorder)
    assert found.smoothness == pytest.approx(smoothness) and found.convex == convex
    word = "cross-entropy" if kind == "classes" else "binary cross-entropy"
    assert found.established is not None and found.established.endswith(f"and the loss was {word}")
    assert "at most 2 (stated by the user; the bias counts as an input of 1)" in found.established
    assert "established" in recorder.record().as_dict()["mechanism"]
    if convex is not None:
        model = Model("a", recorder.record())
        bare = Model("b", model.record.model_copy(update={"mechanism": found.model_copy(update={"smoothness": None})}))
        told, before = (
            combination(Portfolio([one]), {one.name: 1.0}, noise=0.5).guarantee(delta=1e-4).epsilon for one in (model, bare)
        )
        assert told < 0.9 * before


def test_facts_are_true_of_the_losses() -> None:
    """The largest slope and its Lipschitz constant, by Opacus' per-example gradients at random points."""
    torch.manual_seed(0)
    for loss, outputs, smoothness, largest in (
        (nn.CrossEntropyLoss(), 3, R**2 / 2, math.sqrt(2) * R),
        (nn.BCEWithLogitsLoss(), 4, R**2 / 16, R / 2),
    ):
        layer = nn.Linear(3, outputs)
        x = torch.nn.functional.normalize(torch.randn(1, 3)) * math.sqrt(R**2 - 1)
        y = torch.tensor([1]) if outputs == 3 else torch.randint(0, 2, (1, 4)).float()

        def gradient(flat: Any, layer: Any = layer, x: Any = x, y: Any = y, loss: Any = loss) -> Any:
            torch.nn.utils.vector_to_parameters(flat, layer.parameters())
            return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(layer(x), y), list(layer.parameters()))])

        size = sum(p.numel() for p in layer.parameters())
        for _ in range(200):
            a = torch.randn(size) * 3
            b = a + torch.randn(size)
            ga, gb = gradient(a), gradient(b)
            assert ga.norm() <= largest + 1e-5 and (ga - gb).norm() <= smoothness * (a - b).norm() + 1e-5


@pytest.mark.parametrize(
    "why, options",
    [
        ("not that of cross-entropy", {"loss": lambda s, y: nn.functional.mse_loss(s, nn.functional.one_hot(y, 3).float())}),
        ("not that of cross-entropy", {"loss": lambda s, y: nn.functional.cross_entropy(2 * s, y)}),
        ("not that of cross-entropy", {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}),
        ("longer than norm_bound 1.01", {"norm_bound": 1.01}),
        ("what is trained is Linear, Linear", {"build": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))}),
        ("computed by GradSampleModuleFastGradientClipping", {"mode": "ghost"}),
    ],
)
def test_what_cannot_be_checked_is_left_out(why: str, options: dict[str, Any]) -> None:
    options = dict(options)
    bound, loss, mode = options.pop("norm_bound", R), options.pop("loss", None), options.pop("mode", "hooks")
    made = training(loss or nn.CrossEntropyLoss(), mode=mode, **options)
    if mode == "ghost":
        made = private("ghost", build=head, loader=DataLoader(data("classes"), batch_size=8))
    with pytest.warns(UserWarning, match=f"smoothness and convex are left out of the record: .*{why}"):
        recorder = trained(made, bound)
    found = mechanism(recorder)
    assert (found.smoothness, found.convex, found.established) == (None, None, None)


def test_a_fact_that_ends_is_left_out_from_then_on(tmp_path: Path) -> None:
    """The earlier checkpoint keeps what held for its steps; both are models of one run."""
    made = training(nn.CrossEntropyLoss(), clip=2.9)
    recorder = record(*made.parts, dataset="d", norm_bound=R)
    made.train()
    recorder.save(tmp_path / "early")
    made.criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    with pytest.warns(UserWarning, match="left out of the record"):
        made.train()
    recorder.save(tmp_path / "late")
    found = {model.name: model.mechanism for model in Portfolio(tmp_path).models}
    assert [getattr(found[name], "convex", 0) for name in ("early", "late")] == ["unclipped", None]


def test_a_layer_used_twice_is_not_a_linear_model() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.layer(x) + self.layer(-x.flip(1))

    made = training(nn.CrossEntropyLoss(), build=Twice)
    with pytest.warns(UserWarning, match="left out of the record"):
        recorder = trained(made, 50.0)
    assert mechanism(recorder).smoothness is None


def test_a_resumed_run_is_checked_to_its_end(tmp_path: Path) -> None:
    for again, expected in ((R, "unclipped"), (None, None), (2 * R, None)):
        folder = tmp_path / str(again)
        made = training(nn.CrossEntropyLoss(), clip=2.9)
        recorder = record(*made.parts, dataset="d", norm_bound=R)
        made.train()
        recorder.save(folder)
        later = training(nn.CrossEntropyLoss(), clip=2.9)
        later.module._module.load_state_dict(made.module._module.state_dict())
        resumed = record(*later.parts, dataset="d", norm_bound=again, resume=folder)
        later.train()
        assert mechanism(resumed).convex == expected
    plain = training(nn.CrossEntropyLoss(), clip=2.9)
    recorder = record(*plain.parts, dataset="d")
    plain.train()
    recorder.save(tmp_path / "plain")
    later = training(nn.CrossEntropyLoss(), clip=2.9)
    later.module._module.load_state_dict(plain.module._module.state_dict())
    resumed = record(*later.parts, dataset="d", norm_bound=R, resume=tmp_path / "plain")
    later.train()
    assert mechanism(resumed).smoothness is None  # its beginning was not checked


def test_bounds_that_mean_nothing_are_refused() -> None:
    made = training(nn.CrossEntropyLoss())
    for bound in (0.0, math.inf, math.nan):
        with pytest.raises(TrainingError, match="norm_bound is"):
            record(*made.parts, dataset="d", norm_bound=bound)
    with pytest.raises(TrainingError, match="state smoothness and convex, or norm_bound"):
        record(*made.parts, dataset="d", norm_bound=1.0, smoothness=2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": 3.0, "optimizer": lambda params: torch.optim.SGD(params, lr=0.2)}, []),
        ({"clip": 1.0, "optimizer": lambda params: torch.optim.SGD(params, lr=0.2)}, ["a clip of 2.829 never binds"]),
        ({"clip": 3.0, "optimizer": lambda params: torch.optim.SGD(params, lr=2.0)}, ["learning rate 2 is above 0."]),
    ],
)
def test_limits_of_a_head_are_said_before_it_is_trained(options: dict[str, Any], words: list[str]) -> None:
    made = training(nn.CrossEntropyLoss(), **options)
    points = [point for point in record(*made.parts, dataset="d", norm_bound=R).advice if "seed" not in point]
    assert len(points) == len(words) and all(word in point for word, point in zip(words, points, strict=True))


def test_the_record_names_what_was_trained_where_other_tensors_never_change(tmp_path: Path) -> None:
    made = training(nn.CrossEntropyLoss(), clip=3.0)
    recorder = trained(made, R)
    assert mechanism(recorder).trained == ["2.bias", "2.weight"]
    recorder.save(tmp_path / "a")
    later = training(nn.CrossEntropyLoss(), clip=3.0)
    later.module._module.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    resumed = record(*later.parts, dataset="d", norm_bound=R, resume=tmp_path / "a")
    later.train()
    assert mechanism(resumed).trained == ["2.bias", "2.weight"]
    whole = private(build=lambda: nn.Sequential(nn.Linear(4, 3)))
    everything = record(*whole.parts, dataset="d")
    whole.train()
    assert mechanism(everything).trained is None


def test_noise_at_release_spares_the_frozen_body(tmp_path: Path) -> None:
    for name in "ab":
        made = training(nn.CrossEntropyLoss(), clip=3.0, build=lambda: same_start(head, seed=1))
        trained(made, R).save(tmp_path / "runs" / name)
    portfolio = Portfolio(tmp_path / "runs")
    merge(portfolio, {"a": 0.5, "b": 0.5}, rule="combination", delta=1e-3, noise=0.5, out=tmp_path / "out")
    body, out = (load_file(tmp_path / place / "model.safetensors") for place in ("runs/a", "out"))
    assert all(torch.equal(body[name], out[name]) for name in ("0.weight", "0.bias"))
    assert not any(torch.equal(body[name], out[name]) for name in ("2.weight", "2.bias"))
    assert verify(tmp_path / "out", portfolio=portfolio).code == 0
