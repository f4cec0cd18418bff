"""Small Transformers models from their configurations, and made-up texts, private by Opacus."""

from __future__ import annotations

from typing import Any

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

_BERT: Any = BertForSequenceClassification
_LLAMA: Any = LlamaForCausalLM
_SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Tokens with one class each, or with themselves as labels, of which each text has another number."""

    def __init__(self, count: int, language: bool) -> None:
        self._ids = torch.randint(5, 50, (count, 8), generator=torch.Generator().manual_seed(0))
        self._language = language

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self._ids[index]
        labels = torch.where(torch.arange(8) < 2 + index % 6, ids, -100) if self._language else ids[0] % 2
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def classifier() -> Any:
    """BERT. Its embeddings are frozen: positions are looked up once for all examples, so they have no gradient of each."""
    model = _BERT(BertConfig(**_SMALL))
    model.bert.embeddings.requires_grad_(False)
    return model.train()


def language_model() -> Any:
    """Llama with LoRA."""
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(_LLAMA(LlamaConfig(**_SMALL)), adapter).train()


def private_text(model: Any, *, count: int = 24, batch: int = 2, mode: str = "hooks") -> tuple[Any, Any, Any, Any]:
    """Engine, module, optimizer and loader; with two examples of 24 in a batch, one in eight is empty."""
    data, engine = Texts(count, language=not isinstance(model, BertForSequenceClassification)), PrivacyEngine()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(trained, lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.3,
        max_grad_norm=0.5,
        grad_sample_mode=mode,
        criterion=torch.nn.CrossEntropyLoss(),
    )
    return engine, made[0], made[1], made[-1]
