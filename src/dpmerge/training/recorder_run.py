"""One run with Opacus, followed step by step: what was done in each, and what the record says of all."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, FullPhase, NoiseGenerator, Record, Sampling
from dpmerge.training.pretrained import save_pretrained
from dpmerge.training.randomness import together
from dpmerge.training.recipe import dp_sgd_record
from dpmerge.training.recorder_advice import RecordingWarning, changing, message
from dpmerge.training.recorder_batches import Batches
from dpmerge.training.recorder_head import HeadWatch
from dpmerge.training.recorder_randomness import is_secure, noise_generator, noise_state, note_use
from dpmerge.training.recorder_ranks import Ranks
from dpmerge.training.recorder_start import saved
from dpmerge.training.recorder_steps import StepReader
from dpmerge.training.recorder_tensors import ModuleTensors
from dpmerge.training.saving import save_torch_model


@dataclass
class Said:
    """What the record says of the run as a whole."""

    dataset: str
    run: str
    noise_fingerprint: str | None
    sampler_fingerprint: str | None
    noise_generator: NoiseGenerator | None
    smoothness: float | None
    convex: str | None
    starts_from: dict[str, Any] | None = None
    shard: dict[str, Any] | None = None
    data_fingerprint: dict[str, Any] | None = None


class Recorder:
    """Follows one run; made by `record`."""

    def __init__(
        self,
        engine: Any,
        tensors: ModuleTensors,
        optimizer: Any,
        batches: Batches,
        steps: StepReader,
        said: Said,
        before: DpSgd | None = None,
        part_size: float | None = None,
        watch: HeadWatch | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._part_size = part_size
        self._ranks = Ranks(optimizer) if ranks is None else ranks
        self._engine, self._tensors, self._batches, self._steps = engine, tensors, batches, steps
        self._said, self._before, self._watch = said, before, watch
        self._phases: list[FullPhase] = [] if before is None else [*before.settings()]
        self._taken = counted(engine)
        self._told: set[str] = set()  # what changes without noise, of which the user was told
        self._saved: set[int] = set()  # the steps after which this recorder wrote a folder
        self.advice: list[str] = []  # what another set-up would make better
        self._build([self.next_phase()], [])  # what the record could not hold is refused now, not after the training
        self._follow(optimizer)

    @property
    def steps(self) -> int:
        """The steps of the run, including those before it was resumed."""
        return sum(phase.steps for phase in self._phases)

    def switch_loader(self, loader: Any) -> None:
        """Go on with another loader over the same data: another batch size, say."""
        batches = Batches(loader)
        self._ranks.require_parts(batches)
        if batches.examples != self._batches.examples:
            raise TrainingError(
                f"the new loader has {batches.examples} examples, the one before {self._batches.examples}: a record is about "
                "one dataset"
            )
        self._batches.require_every_batch()
        self._batches = batches

    def record(self, *, leave_out: Collection[str] = ()) -> Record:
        """What was run up to now.

        `leave_out` names tensors of the module that changed without noise. By naming one you say that no loss was computed
        with it; the record repeats that, and every guarantee from it.
        """
        if not self._phases:
            raise TrainingError("no step has been made yet, so there is nothing to record")
        self._batches.require_every_batch()
        return self._build(self._phases, self._tensors.left_out(leave_out))

    def save(self, folder: str | Path, *, leave_out: Collection[str] = ()) -> Path:
        """Write `model.safetensors` (the module's own names) and `record.json` into a new folder, or one without a model.

        Without the tensors that `leave_out` names, also in earlier calls; see `record`. The record says how many earlier
        checkpoints were written so. Of several processes the first writes, and the others do nothing.
        """
        return self._save(
            folder, leave_out, lambda path, names, record: save_torch_model(path, self._tensors.shown(names), record)
        )

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None, *, leave_out: Collection[str] = ()) -> Path:
        """Like `save`, for a model of Transformers (with config, and the tokenizer if given) or PEFT (the adapter alone)."""

        def write(path: Path, names: Collection[str], record: Record) -> None:
            save_pretrained(path, self._tensors, names, record, tokenizer)

        return self._save(folder, leave_out, write)

    def _save(
        self, folder: str | Path, leave_out: Collection[str], write: Callable[[Path, Collection[str], Record], None]
    ) -> Path:
        path, record = Path(folder), self.record(leave_out=leave_out)
        if self._ranks.first:
            assert isinstance(record.mechanism, DpSgd)
            write(path, record.mechanism.left_out or (), record)
            self._saved.add(self.steps)
            saved(self._tensors, path)
        return path

    def _follow(self, optimizer: Any) -> None:
        """Read every step before it is made, and what it left. The accountant's hook stays where it is."""
        original, inner = optimizer.pre_step, optimizer.original_optimizer
        update = inner.step
        generator, due = optimizer.generator, False
        self._tensors.trains(optimizer.params)

        def pre_step(closure: Any = None) -> Any:
            nonlocal due
            self._tensors.trains(optimizer.params)
            self._note_changes()
            self._batches.part(first=not self._steps.begun)
            self._steps.part()
            if self._watch is not None:
                self._watch.part()
            phase = self.next_phase()
            if optimizer.generator is not generator:
                raise TrainingError(
                    "the optimizer's noise generator was replaced during the training, so the fingerprint says nothing of its "
                    "noise; choose it before recording (make_private's noise_generator)"
                )
            state = noise_state(self._engine, optimizer)
            made = original(closure)
            if made:
                self._steps.require_finite()
                self._tensors.changed.update(self._ranks.agree(phase, self._tensors.changed))
                if phase.noise_multiplier and self._ranks.first:  # else nothing is drawn
                    note_use("noise", state)
                self._said.noise_generator = together([self._said.noise_generator, noise_generator(self._engine, optimizer)])
                self._made(phase)
                due = True
            return made

        @functools.wraps(update)
        def step(_: Any, *args: Any, **options: Any) -> Any:
            nonlocal due
            done = update(*args, **options)
            if due:  # else somebody calls the inner optimizer without noise
                self._tensors.stepped()
            due = False
            return done

        optimizer.pre_step = pre_step
        inner.step = types.MethodType(step, inner)  # a method, as torch's schedulers expect

    def advise(self, points: list[str], stacklevel: int = 2) -> None:
        """Say at once what will cost later."""
        self.advice += points
        if points and self._ranks.first:
            warnings.warn(message(points), RecordingWarning, stacklevel=stacklevel + 1)

    def _note_changes(self) -> None:
        """Tensors that change without noise are refused when a folder is saved; the first steps show which."""
        names = sorted(self._tensors.changed - self._told)
        if names:
            self._told.update(names)
            self.advise([changing(names)], stacklevel=4)

    def next_phase(self) -> FullPhase:
        """The settings of the step that would be made now."""
        now, sampling = self._steps.now(), self._batches.sampling()
        divisor, rate, decay = now.divisor, now.learning_rate, now.weight_decay
        # The theorems about averages take expected_batch for the mean batch size, rounded down unless it is the whole dataset
        # (theory.md §3.3). Where Opacus divides by less (loss_reduction="sum"), the same update is written with that size,
        # and learning rate and weight decay to match.
        size = self._batches.mean_size(sampling)
        if self._said.shard is not None:
            self._batches.require_constants(self._part_size, divisor)
        elif divisor < (size if sampling.scheme == "full-batch" else size - 1):
            divisor, rate, decay = size, rate * size / divisor, decay * divisor / size
        return FullPhase(
            steps=1,
            learning_rate=rate,
            noise_multiplier=now.noise_multiplier,
            clip=now.clip,
            sampling=sampling,
            expected_batch=divisor,
            weight_decay=decay,
        )

    def _made(self, phase: FullPhase) -> None:
        rows = self._steps.made()
        self._batches.step(self.steps + 1, rows)
        if phase.sampling != Sampling(scheme="full-batch") and not is_secure(self._engine, self._batches.generator):
            note_use("sampling", self._batches.started)
        self._taken += 1
        count = counted(self._engine)
        if count != self._taken:
            raise TrainingError(
                f"the engine's accountant has counted {count} steps, the recorder {self._taken}: the optimizer is another "
                "engine's, or its hook was displaced (attach_step_hook)"
            )
        last = self._phases[-1] if self._phases else None
        if last is not None and last.model_copy(update={"steps": 1}) == phase:
            self._phases[-1] = last.model_copy(update={"steps": last.steps + 1})
        else:
            self._phases.append(phase)

    def _build(self, phases: list[FullPhase], left_out: list[str]) -> Record:
        before, clipping, optimizer = self._before, self._steps.clipping, self._steps.kind
        if before is not None:
            if before.clipping != clipping:
                raise TrainingError(
                    f"run {before.run}: its clipping was {before.clipping}, now it is {clipping}; start a new run"
                )
            if before.optimizer != optimizer:
                optimizer = f"{before.optimizer}, then {optimizer}"
        mechanism = {
            **vars(self._said),
            "optimizer": optimizer,
            "clipping": clipping,
            **self._facts(phases),
            "left_out": left_out or None,
            "checkpoints_kept": self._kept_before() or None,
            "trained": self._trained(left_out),
        }
        dataset, found = mechanism.pop("dataset"), mechanism.pop("data_fingerprint")
        return dp_sgd_record(dataset, mechanism, phases, "recorded", found)

    def _trained(self, left_out: list[str]) -> list[str] | None:
        """The tensors that steps change, where a folder holds others as well."""
        before, now, there = self._before, self._tensors.trained, self._tensors.names - set(left_out)
        if before is not None:
            now |= set(before.trained or there)
        return sorted(now) or None if there - now else None

    def _facts(self, phases: list[FullPhase]) -> dict[str, Any]:
        """What was checked of the loss; nothing that the run's beginning does not share."""
        if self._watch is None:
            return {}
        found = self._watch.facts(min(phase.clip for phase in phases))
        before = self._before
        if before is not None and (found.smoothness, found.established) != (before.smoothness, before.established):
            return {}
        return vars(found)

    def _kept_before(self) -> int:
        """How many checkpoints of earlier steps there are; the one from which a run was resumed is among them."""
        before = self._before
        steps = self._saved if before is None else self._saved | {before.steps}
        earlier = 0 if before is None else before.checkpoints_kept or 0
        return earlier + sum(step < self.steps for step in steps)


def counted(engine: Any) -> int:
    """The steps that the engine's accountant knows of."""
    return sum(steps for _, _, steps in engine.accountant.history)
