"""A private fine-tuning of LoRA adapters with Transformers' Trainer, recorded and saved.

    pip install "dpmerge[transformers]"
    python examples/transformers_training.py portfolio/a

The model is made from its configuration, so nothing is downloaded; in earnest it is `from_pretrained`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from dpmerge.training import PrivateTrainer, guarantee_so_far

DELTA = 1e-5


def texts(count: int = 120, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """Made-up tokens, all padded to one length; the class is that of the first token."""
    ids = torch.randint(5, 50, (count, length))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 2} for row in ids]


def main(out: Path, epochs: int = 2) -> Any:
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")).train()
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5),
        data_loader=DataLoader(texts(), batch_size=10),  # type: ignore[arg-type]  # a list is a dataset
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    args = TrainingArguments(
        output_dir=str(out.with_name(f"{out.name}-trainer")),
        num_train_epochs=epochs,
        lr_scheduler_type="constant",
        logging_steps=12,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = PrivateTrainer(engine, module, optimizer, loader, dataset="made-up-120", out=out, args=args, delta=DELTA)
    trainer.train()
    print(guarantee_so_far(trainer.recorder, DELTA))
    return trainer.recorder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
