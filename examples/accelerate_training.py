"""A private training in a loop of one's own with accelerate, recorded and saved.

pip install "dpmerge[transformers]"
python examples/accelerate_training.py portfolio/a
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from dpmerge.training import guarantee_so_far, noise_alone, record

DELTA = 1e-5


def texts(count: int = 60, length: int = 12) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(5, 50, (count, length))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 2} for row in ids]


def main(out: Path, epochs: int = 2) -> Any:
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config).train()
    model.bert.embeddings.requires_grad_(False)  # positions are looked up once for a batch: no gradient of each example
    data, engine, accelerator = texts(), PrivacyEngine(), Accelerator(cpu=True)
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5),
        data_loader=DataLoader(data, batch_size=5),  # type: ignore[arg-type]  # a list is a dataset
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    loader.collate_fn(data[:1])  # so that an empty batch has the form of others, also if it is the first
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    recorder = record(engine, module, optimizer, loader, dataset="made-up-60")
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            if len(batch["labels"]):
                accelerator.backward(module(**batch).loss)
            else:
                noise_alone(optimizer)  # Transformers' models cannot be called with no examples; the step is made all the same
            optimizer.step()
    recorder.save(out)
    print(guarantee_so_far(recorder, DELTA))
    return recorder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
