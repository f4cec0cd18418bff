"""`dpmerge.training.record`: follows a private training with Opacus, and writes what really happened as a record.

    module, optimizer, loader = engine.make_private(...)
    recorder = dpmerge.training.record(engine, module, optimizer, loader, dataset="mnist-train-60000")
    ...                         # train as always
    recorder.save("runs/a")     # model.safetensors and record.json, at the end or at any checkpoint

Every step is read when it is made: noise, clip, learning rate, sampling rate, divisor. Virtual steps (BatchMemoryManager) are
not steps; steps on empty batches are. Steps and Opacus' accountant are counted against each other.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.records import Convex, DataFingerprint, Shard
from dpmerge.training.randomness import together
from dpmerge.training.recorder_advice import about_head, advice
from dpmerge.training.recorder_batches import Batches
from dpmerge.training.recorder_head import HeadWatch
from dpmerge.training.recorder_randomness import continued, noise_fingerprint, noise_generator
from dpmerge.training.recorder_ranks import Ranks
from dpmerge.training.recorder_run import Recorder as Recorder, Said, counted as steps_counted
from dpmerge.training.recorder_start import follow, resumable, start_of
from dpmerge.training.recorder_steps import StepReader
from dpmerge.training.recorder_tensors import ModuleTensors
from dpmerge.training.recorder_wrapped import module_of, optimizer_of


def record(
    engine: Any,
    module: Any,
    optimizer: Any,
    loader: Any,
    *,
    dataset: str,
    run: str | None = None,
    smoothness: float | None = None,
    convex: Convex | None = None,
    norm_bound: float | None = None,
    resume: str | Path | None = None,
    starts_from: str | Path | None = None,
    shard: Shard | None = None,
    part_size: float | None = None,
    delta: float | None = None,
    data_fingerprint: DataFingerprint | None = None,
) -> Recorder:
    """Start to record: `engine` is the PrivacyEngine, the others are what its `make_private` returned, before the first step.

    `dataset` identifies the private data, and so does `data_fingerprint`, if it is given, in a way that can be checked
    (`dpmerge.training.data_fingerprint`). `smoothness` and `convex` are the user's knowledge of the loss (docs/records.md); for
    a linear head give `norm_bound` instead, a public bound on the norm of its inputs: both are then checked at every step.
    `resume` names a folder that `Recorder.save` wrote: the run goes on from there, and the module must hold its tensors.
    `starts_from` names the folder of a private model that a new run begins with, if no recorder of this process wrote it.
    `shard` is the part of the data in the loader; rate and divisor then come from `part_size`, a public number, and never from
    how many records the part has (docs/records.md). What another set-up would make better is said at once, in one
    `RecordingWarning` (`Recorder.advice`); with `delta`, also whether that is small enough.
    """
    if norm_bound is not None and (smoothness is not None or convex is not None):
        raise TrainingError("norm_bound is for facts that the recorder checks; state smoothness and convex, or norm_bound")
    module, optimizer = module_of(module), optimizer_of(optimizer)
    batches, steps = Batches(loader), StepReader(module, optimizer)
    ranks = Ranks(optimizer)
    ranks.require_parts(batches)
    ranks.require_plain((norm_bound, shard))
    ranks.require_independent(engine, optimizer, batches.generator)
    watch = None if norm_bound is None else HeadWatch(module, optimizer, norm_bound)
    noise, generator = noise_fingerprint(engine, optimizer), noise_generator(engine, optimizer)
    sampler = None if batches.sampling().scheme == "full-batch" else ranks.fingerprint(engine, batches.generator)
    counted = steps_counted(engine)
    if resume is None:
        if counted:
            raise TrainingError(
                f"the engine's accountant has counted {counted} steps already; record from the first step on, with a new "
                "PrivacyEngine for every run, or resume from a folder that was saved"
            )
        identity = f"opacus-{secrets.token_hex(8)}" if run is None else run
        tensors = ModuleTensors(module)
        # Of several processes the first writes the record, and knows what it saved.
        named = None if starts_from is None else Path(starts_from)
        start = start_of(tensors, named, dataset, data_fingerprint, shard) if ranks.first else None
        follow(tensors)
        known = (None if one is None else one.model_dump(mode="json") for one in (start, shard, data_fingerprint))
        said = Said(dataset, identity, noise, sampler, generator, smoothness, convex, *known)
        recorder = Recorder(engine, tensors, optimizer, batches, steps, said, part_size=part_size, watch=watch, ranks=ranks)
        head = [] if norm_bound is None else about_head(norm_bound, recorder.next_phase(), delta)
        recorder.advise([*advice(engine, tensors.module, optimizer, batches, steps.kind, delta), *head])
        return recorder
    if starts_from is not None or shard is not None:
        raise TrainingError("a run that is resumed starts where it started and sees the part that it saw: leave these out")
    folder = Path(resume)
    before = resumable(folder, dataset, run, smoothness, convex, data_fingerprint)
    if counted not in (0, before.steps):
        raise TrainingError(
            f"the engine's accountant has counted {counted} steps, the record in {folder} {before.steps}; load the checkpoint "
            "that was saved at the same step"
        )
    tensors = ModuleTensors(module, folder, before.left_out or ())
    follow(tensors, folder)
    noise = continued(before.noise_fingerprint, before.steps, noise, "noise")
    first = before.sampler_fingerprint
    sampler = None if first is None else continued(first, before.steps, sampler, "sampling")
    drawn_by = together([before.noise_generator, generator])
    # Facts that were checked hold for the steps that were: they go on only if the rest is checked too.
    stated = before.established is None
    facts = (before.smoothness, before.convex) if stated else (None, None)
    known = (
        None if one is None else one.model_dump(mode="json") for one in (before.starts_from, before.shard, data_fingerprint)
    )
    said = Said(dataset, before.run, noise, sampler, drawn_by, *facts, *known)
    recorder = Recorder(engine, tensors, optimizer, batches, steps, said, before, part_size, None if stated else watch, ranks)
    recorder.advise(advice(engine, tensors.module, optimizer, batches, steps.kind, delta))
    return recorder
