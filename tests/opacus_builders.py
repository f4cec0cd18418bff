"""Small private trainings with Opacus, for the tests of the recorder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import recorder_randomness, recorder_start

# Opacus says these of every training; any other warning is an error.
OPACUS_WARNINGS = (
    "ignore:Secure RNG turned off:UserWarning",
    "ignore:Full backward hook is firing:UserWarning",
    "ignore:Optimal order is the largest alpha:UserWarning",
    "ignore::dpmerge.training.recorder_advice.RecordingWarning",  # test_recorder_advice.py looks at these
)


@dataclass
class Private:
    """What an Opacus user has after `make_private`."""

    engine: Any
    module: Any
    optimizer: Any
    loader: Any
    criterion: Any

    @property
    def parts(self) -> tuple[Any, Any, Any, Any]:
        """What `record` is given."""
        return self.engine, self.module, self.optimizer, self.loader

    def step(self, inputs: Any, labels: Any) -> None:
        """One call of the optimizer's step, on one batch."""
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), labels).backward()
        self.optimizer.step()

    def train(self, *schedulers: Any, epochs: int = 1, loader: Any = None) -> None:
        """Every batch of so many epochs; the schedulers go on after each step."""
        for _ in range(epochs):
            for inputs, labels in self.loader if loader is None else loader:
                self.step(inputs, labels)
                for scheduler in schedulers:
                    scheduler.step()


def as_a_new_process() -> None:
    """Forget what recorders of this process know of earlier trainings, accelerate of earlier settings, and torch's seed."""
    torch.seed()
    known = ("_SAVED", "_NAMED", "_FOLLOWED", "_ENDED", "_LEFT", "_BARE")
    for one in (*recorder_randomness._USED.values(), *(getattr(recorder_start, name) for name in known)):
        one.clear()
    if accelerate := sys.modules.get("accelerate.state"):  # whoever uses it next would train in the last one's precision
        accelerate.AcceleratorState._reset_state(True)
        accelerate.GradientState._reset_state()


def examples(count: int = 60) -> Any:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


def network() -> Any:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def private(
    mode: str = "hooks",
    *,
    batch: int = 5,
    count: int = 60,
    sigma: float = 1.0,
    clip: Any = 1.0,
    build: Callable[[], Any] = network,
    optimizer: Callable[[Any], Any] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    accountant: str = "rdp",
    loader: Any = None,
    engine: Any = None,
    **options: Any,
) -> Private:
    """A private training of a small network on made-up data."""
    engine = PrivacyEngine(accountant=accountant) if engine is None else engine
    module = build()
    criterion = nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
    made = engine.make_private(
        module=module,
        optimizer=optimizer(module.parameters()),
        data_loader=DataLoader(examples(count), batch_size=batch, shuffle=True) if loader is None else loader,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        grad_sample_mode=mode,
        criterion=criterion,
        **options,
    )
    if mode == "ghost":
        wrapped, inner, criterion, drawn = made
    else:
        wrapped, inner, drawn = made
    return Private(engine, wrapped, inner, drawn, criterion)
