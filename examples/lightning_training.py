"""A private training with Opacus that Lightning's Trainer runs, recorded and saved.

pip install "dpmerge[lightning]"
python examples/lightning_training.py portfolio/a
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import LightningRecorder, guarantee_so_far

DELTA = 1e-5


class Classifier(lightning.LightningModule):
    """Holds the private module, and hands the private optimizer to Lightning."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        super().__init__()
        self.module, self.private = module, optimizer

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.module(inputs), labels)  # not logged: a loss on private data is not covered

    def configure_optimizers(self) -> Any:
        return self.private


def main(out: Path, epochs: int = 3) -> Any:
    inputs = torch.randn(600, 8)
    data = TensorDataset(inputs, (inputs[:, :2].sum(dim=1) > 0).long())
    network, engine = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=60),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    recorder = LightningRecorder(engine, module, optimizer, loader, dataset="made-up-600", out=out, delta=DELTA)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,  # what ModelCheckpoint writes, no record counts
    )
    trainer.fit(Classifier(module, optimizer), loader)
    print(guarantee_so_far(recorder.recorder, DELTA))
    return recorder.recorder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
