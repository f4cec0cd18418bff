"""`PrivateTrainer`: Transformers' Trainer with Opacus' optimizer and Poisson batches, recorded and saved.

    module, optimizer, loader = engine.make_private(module=model, ...)
    trainer = PrivateTrainer(engine, module, optimizer, loader, dataset="mine", out="portfolio/a", args=TrainingArguments(...))
    trainer.train()

What the Trainer does by itself and a private training must not have, is refused, or done otherwise here (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from opacus.data_loader import CollateFnWithEmpty
from opacus.grad_sample import GradSampleHooks, GradSampleModule
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

from dpmerge.errors import TrainingError
from dpmerge.training.empty_batches import noise_alone
from dpmerge.training.recorder import Recorder, record
from dpmerge.training.so_far import guarantee_so_far

_IGNORED = -100  # Transformers' mark of a token without a label
_OF_PRIVATE_DATA = ("loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen")  # sizes of batches are secret


class PrivateTrainer(Trainer):
    """Trains on every Poisson batch of `loader`, and saves model and record into the new folder `out` at the end.

    `engine`, `module`, `optimizer` and `loader` are as for `record`, whose other arguments `recording` holds; `args` and
    `options` are the Trainer's. Wherever the Trainer saves a checkpoint, model and record are also saved as `OUT@STEP`. With
    `delta` every line of the log has ε so far. Losses, gradient norms and counts of tokens, which come from private data
    without noise, are left out of the log unless `log_private`.
    """

    def __init__(
        self,
        engine: Any,
        module: Any,
        optimizer: Any,
        loader: Any,
        *,
        dataset: str,
        out: str | Path,
        args: TrainingArguments,
        delta: float | None = None,
        log_private: bool = False,
        recording: Mapping[str, Any] | None = None,
        scheduler: Any = None,
        **options: Any,
    ) -> None:
        why = _why_not(module, loader, args, options)
        if why is not None:
            raise TrainingError(f"this training cannot be recorded: {why}")
        self._parts, self._recording = (engine, module, optimizer, loader), {"dataset": dataset, **(recording or {})}
        self._out, self._delta, self._log_private = Path(out), delta, log_private
        self._recorder: Recorder | None = None
        if self._out.exists():
            raise TrainingError(f"{self._out}: exists; a run is saved into a new folder")
        callbacks = [*(options.pop("callbacks", None) or ()), _Follow(self)]
        # The plain model: Opacus' hooks are on its layers, and the Trainer looks at its arguments.
        super().__init__(model=module._module, args=args, optimizers=(optimizer, scheduler), callbacks=callbacks, **options)

    @property
    def recorder(self) -> Recorder:
        """What is recorded; there from the start of the training on."""
        if self._recorder is None:
            raise TrainingError("recording starts when the training starts; it has not")
        return self._recorder

    def begin(self) -> None:
        """Start to record, before the first batch is drawn."""
        # The Trainer has just seeded torch with `args.seed`, 42 by default: whoever knows that could take the noise off.
        torch.seed()
        self._recorder = record(*self._parts, **self._recording)

    def keep(self, folder: Path) -> None:
        """As Transformers and PEFT do, with the record; a module of other kinds by its tensors."""
        if hasattr(self.model, "save_pretrained"):
            self.recorder.save_pretrained(folder, self.processing_class)
        else:
            self.recorder.save(folder)

    def keep_checkpoint(self) -> None:
        self.keep(self._out.with_name(f"{self._out.name}@{self.recorder.steps}"))

    def finish(self) -> None:
        self.keep(self._out)

    def get_train_dataloader(self) -> Any:
        """The private loader as it is. An empty batch has the form of others, also if it is the first."""
        loader = self._parts[3]
        if isinstance(loader.collate_fn, CollateFnWithEmpty) and loader.collate_fn.first_batch is None:
            loader.collate_fn([loader.dataset[0]])
        return loader

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """As the Trainer's, with sums of the last step cleared by the private optimizer, which alone knows them."""
        private = self._parts[2]
        private.zero_grad()
        if not len(next(value for value in inputs.values() if isinstance(value, torch.Tensor))):
            noise_alone(private, torch.bfloat16 if self.args.bf16 else None)
            return torch.zeros((), device=self.args.device)
        return super().training_step(model, inputs, None)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """The mean over examples of each one's own loss.

        The mean over all tokens of a batch, which is the Trainer's, scales each example's gradient by how many tokens the
        others have: one record then changes the clipped gradients of all, and no clip bounds what it does (docs/theory.md §0).
        """
        labels = inputs.get("labels")
        if labels is None and model.training:
            raise TrainingError(
                "batches have no labels, and whether the model's own loss is the mean over examples of each one's is not known "
                "here (that of question answering is not: it leaves out positions beyond a text); override compute_loss"
            )
        if labels is None or labels.dim() < 2 or labels.is_floating_point():
            if labels is not None and (labels == _IGNORED).any():
                raise TrainingError(f"a label is {_IGNORED}: the loss would be a mean over a number that depends on the data")
            return super().compute_loss(model, inputs, return_outputs, None)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = outputs["logits"]
        if self._loss_shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none", ignore_index=_IGNORED)
        loss = (each.sum(dim=1) / (labels != _IGNORED).sum(dim=1).clamp(min=1)).mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if not self._log_private:
            logs = {name: value for name, value in logs.items() if name not in _OF_PRIVATE_DATA}
        if self._delta is not None and self._recorder is not None and self._recorder.steps:
            logs = {**logs, "epsilon": guarantee_so_far(self._recorder, self._delta).epsilon}
        super().log(logs, *args, **options)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing: a generator that comes back to a state draws the same noise again."""


class _Follow(TrainerCallback):
    """Tells the trainer when its training begins, is saved and ends."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.begin()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.keep_checkpoint()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.finish()


def _why_not(module: Any, loader: Any, args: TrainingArguments, options: Mapping[str, Any]) -> str | None:
    """What the Trainer would do that a private training must not have."""
    if type(module) not in (GradSampleModule, GradSampleHooks):
        return (
            f"its module is a {type(module).__name__}; pass what make_private returned, in the mode hooks or functorch: "
            "in others the Trainer, which computes the loss itself, would not be private"
        )
    if args.world_size != 1 or args.n_gpu > 1:
        return "it runs in several processes or on several devices; use one"
    if args.gradient_accumulation_steps != 1:
        return (
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, and a step would be made of several batches, "
            "in each of which a record may be; ask for larger batches"
        )
    if isinstance(loader.batch_sampler, BatchSplittingSampler):
        return (
            "its loader splits batches (BatchMemoryManager). The Trainer ends an epoch after as many parts as are expected, "
            "which may be amid a batch, and the next step would be made of two"
        )
    if args.fp16:
        return "fp16 scales the loss and leaves out steps by what is in a batch; use bf16 or neither"
    if args.load_best_model_at_end:
        return (
            "load_best_model_at_end puts back a checkpoint that was chosen by its score: save checkpoints with their records, "
            "and choose among them as among the models of a portfolio"
        )
    if args.label_smoothing_factor or options.get("compute_loss_func") is not None:
        return (
            "label_smoothing_factor and compute_loss_func: whether their loss is the mean over examples of each one's own is "
            "not known here; override compute_loss, with such a mean"
        )
    if args.push_to_hub:
        return (
            "push_to_hub publishes checkpoints with the state of the noise generator, from which the noise can be drawn again; "
            "publish a release"
        )
    if args.auto_find_batch_size:
        return "auto_find_batch_size begins again with other batches; choose their size beforehand"
    return None
