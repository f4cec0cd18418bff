"""Gradient checkpointing: examples' gradients against a loop over examples where it is recorded, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from dpmerge.errors import TrainingError

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dpmerge.training import noise_alone, record, recorder_randomness  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, as_a_new_process, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)  # the same hash, made cheap
    as_a_new_process()


class Blocks(nn.Module):
    """Two blocks, perhaps checkpointed, perhaps one and the same; `inside` repeats a block within its checkpointed part."""

    def __init__(self, tied: bool = False, inside: int = 1, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.a = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout))
        self.b = self.a if tied else nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout))
        self.inside, self.options = inside, options

    def forward(self, inputs: Any) -> Any:
        hidden = self.first(inputs)
        for block in (self.a, self.b):
            part = nn.Sequential(*[block] * self.inside)
            hidden = checkpoint(part, hidden, **self.options) if self.options else part(hidden)
        return self.last(hidden)


def error(mode: str, **options: Any) -> float:
    """How far three recorded steps without noise are from clipped gradients that are computed example by example."""
    clip = 0.3
    run = private(mode, batch=20, sigma=0.0, clip=clip, build=lambda: Blocks(**options))
    record(*run.parts, dataset="d")
    inner, worst = run.module._module, 0.0
    parameters = list(inner.parameters())
    for inputs, labels in run.loader:
        plain = Blocks(**{key: value for key, value in options.items() if key in ("tied", "inside")})
        plain.load_state_dict(inner.state_dict())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for x, y in zip(inputs, labels, strict=True):
            loss = nn.functional.cross_entropy(plain(x[None]), y[None])
            gradient = torch.autograd.grad(loss, list(plain.parameters()))
            norm = torch.stack([one.norm() for one in gradient]).norm()
            for one, whole in zip(gradient, total, strict=True):
                whole += one * min(1.0, clip / (float(norm) + 1e-6))
        before = [parameter.detach().clone() for parameter in parameters]
        run.step(inputs, labels)
        moves = zip(before, parameters, total, strict=True)
        worst = max(worst, *(float((old - new - 0.1 * whole / 20).detach().abs().max()) for old, new, whole in moves))
    return worst


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_reentrant_checkpointing_is_right_and_recorded(mode: str) -> None:
    assert error(mode) < 1e-7
    assert error(mode, use_reentrant=True) < 1e-7


def test_a_block_repeated_within_one_part_is_right_and_recorded() -> None:
    assert error("hooks", inside=2) < 1e-7
    assert error("hooks", inside=2, use_reentrant=True) < 1e-7


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_checkpointing_that_is_not_reentrant_is_refused(mode: str) -> None:
    with pytest.raises(TrainingError, match="not reentrant"):
        error(mode, use_reentrant=False)


@pytest.mark.parametrize("reentrant", [False, True])
def test_expanded_weights_are_refused(reentrant: bool) -> None:
    assert error("ew") < 1e-7
    with pytest.raises(TrainingError, match="mode ew"):
        error("ew", use_reentrant=reentrant)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_parameter_in_several_parts_is_refused(mode: str) -> None:
    with pytest.raises(TrainingError, match="several checkpointed parts"):
        error(mode, tied=True, use_reentrant=True)


def test_other_dropout_in_the_second_pass_of_ghost_mode_is_refused() -> None:
    with pytest.raises(TrainingError, match="preserve_rng_state"):
        error("ghost", dropout=0.5, use_reentrant=True, preserve_rng_state=False)


def test_a_parameter_without_gradients_is_named() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, inputs: Any) -> Any:
            return self.used(inputs)

    run = private(build=Unused)
    record(*run.parts, dataset="d")
    with pytest.raises(TrainingError, match=r"'other.weight', 'other.bias': there is no gradient of examples"):
        run.train()


def test_transformers_says_it_before_the_first_step() -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3
    )

    def build(**options: Any) -> Any:
        model = transformers.BertForSequenceClassification(config).train()
        model.bert.embeddings.position_embeddings.requires_grad_(False)
        model.gradient_checkpointing_enable(**options)
        return model

    run = private(build=build)
    with pytest.raises(TrainingError, match="not reentrant"):
        record(*run.parts, dataset="d")
    run = private(build=lambda: build(gradient_checkpointing_kwargs={"use_reentrant": True}))
    recorder = record(*run.parts, dataset="d")
    for inputs, labels in run.loader:
        run.optimizer.zero_grad()
        if not len(labels):  # in one run of 16; Transformers takes no empty batch
            noise_alone(run.optimizer)
        else:
            tokens = (inputs.abs() * 10).long().clamp(max=29)
            run.module(input_ids=tokens, labels=labels).loss.backward()
        run.optimizer.step()
    assert recorder.steps == 12
