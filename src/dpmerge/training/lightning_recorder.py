"""`LightningRecorder`: a callback that records a private training which Lightning's Trainer runs, and saves it.

    module, optimizer, loader = engine.make_private(...)
    recorder = LightningRecorder(engine, module, optimizer, loader, dataset="mine", out="portfolio/a")
    lightning.Trainer(callbacks=[recorder], ...).fit(lit, loader)

`lit` is a LightningModule that holds `module`, and whose `configure_optimizers` returns `optimizer`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.batch_memory_manager import BatchSplittingSampler

from dpmerge.errors import TrainingError
from dpmerge.training.recorder import Recorder, record
from dpmerge.training.so_far import guarantee_so_far


class LightningRecorder(Callback):
    """Starts to record when fitting starts, shows ε so far after every epoch, and saves into the new folder `out` at the end.

    `engine`, `module`, `optimizer`, `loader` and further `options` are those of `record`. With `checkpoints` the model is also
    saved after every epoch, into `OUT@STEP`. With `delta`, ε at this δ of the steps so far is logged as "epsilon".
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
        delta: float | None = None,
        checkpoints: bool = False,
        **options: Any,
    ) -> None:
        self._parts, self._options = (engine, module, optimizer, loader), {"dataset": dataset, **options}
        self._optimizer, self._loader = optimizer, loader
        self._out, self._delta, self._checkpoints = Path(out), delta, checkpoints
        self._recorder: Recorder | None = None
        if self._out.exists():
            raise TrainingError(f"{self._out}: exists; a run is saved into a new folder")

    @property
    def recorder(self) -> Recorder:
        """What is recorded; there from the start of the fit on."""
        if self._recorder is None:
            raise TrainingError("recording starts when the Trainer's fit starts; it has not")
        return self._recorder

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """After a checkpoint is loaded and before a batch is drawn."""
        why = self._why_not(trainer, pl_module)
        if why is not None:
            raise TrainingError(f"this training cannot be recorded: {why}")
        self._recorder = record(*self._parts, **self._options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.train_dataloader is not self._loader:
            raise TrainingError(
                "the Trainer trains on another loader than the recorded one: pass the loader that make_private returned to "
                "fit, and let the Trainer change nothing about it (use_distributed_sampler=False)"
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._delta is not None:
            pl_module.log("epsilon", guarantee_so_far(self.recorder, self._delta).epsilon, prog_bar=True)
        if self._checkpoints:
            self.recorder.save(self._out.with_name(f"{self._out.name}@{self.recorder.steps}"))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.recorder.save(self._out)

    def _why_not(self, trainer: Any, pl_module: Any) -> str | None:
        """Settings of the Trainer under which steps would not be those that are recorded, or not as private."""
        if trainer.world_size != 1:
            return f"it runs in {trainer.world_size} processes; use devices=1"
        if not any(one is self._optimizer for one in trainer.optimizers):
            return "configure_optimizers returns another optimizer than make_private did; return that one"
        if isinstance(self._optimizer, DPOptimizerFastGradientClipping) and pl_module.automatic_optimization:
            return (
                "in ghost mode the criterion returns no tensor, which Lightning's automatic steps need; set "
                "automatic_optimization = False, and call backward and step in training_step"
            )
        if trainer.accumulate_grad_batches != 1:
            return (
                f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, and a step would be made of several batches, "
                "in each of which a record may be; ask for larger batches"
            )
        if isinstance(self._loader.batch_sampler, BatchSplittingSampler):
            return (
                "its loader splits batches (BatchMemoryManager). Lightning ends an epoch after as many parts as are expected, "
                "which may be amid a batch, and the next step would be made of two; split in a loop of your own"
            )
        if trainer.gradient_clip_val:
            return "gradient_clip_val is set: gradients are clipped by make_private's max_grad_norm; leave it out"
        if str(trainer.precision).startswith("16"):
            return f"precision {trainer.precision} scales the loss and leaves out steps by what is in a batch; use 32-true"
        return None
