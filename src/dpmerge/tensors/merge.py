"""Models and weights in, a new model's folder out: combination, other methods, and the copy of one model."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from dpmerge.errors import CheckpointError
from dpmerge.tensors.folder import new_folder, require_absent
from dpmerge.tensors.opening import open_model
from dpmerge.tensors.plan import LoraForm, Plan, plan_copy, plan_merge, used_weights
from dpmerge.tensors.stream import Progress, Stream
from dpmerge.tensors.tensors import Checkpoint
from dpmerge.tensors.writing import MergeReport, write_plan

ExtraFiles = Callable[[Path, MergeReport], None]
_MANY, _MOST_FILES = 64, 1 << 16


def merge_models(
    models: Mapping[str, Path],
    weights: Mapping[str, float],
    out: Path,
    *,
    lora: LoraForm = "factors",
    take_from: str | None = None,
    method: str | None = None,
    base: Path | None = None,
    keep_metadata: Sequence[str] = (),
    extra_files: ExtraFiles | None = None,
    digests: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
    into: Path | None = None,
) -> MergeReport:
    """Write the combination Σ wᵢ·xᵢ of the models as the new folder `out`, which appears whole or not at all.

    `models` are folders by name, and their order is the order of summation; models without weight are not even opened.
    `lora` says how adapters are combined: `factors` averages A and B, `exact` adds the updates BA (`checkpoints/lora.py`).
    `take_from` names the model whose integer tensors are kept where they differ. `method` replaces the sum by `ties`, `slerp`
    or a user's `module:function`, with `base` on differences from a public base model. `keep_metadata` names what is kept of
    the files' metadata beside their format. `extra_files` is called with the temporary folder and the report before the folder
    gets its name: what it writes there appears with the rest. `into` is the temporary folder of someone who gives it the name
    `out` himself.
    """
    require_absent(out)
    with ExitStack() as stack:
        how: dict[str, Any] = {"lora": lora, "take_from": take_from, "method": method, "base": base}
        checkpoints, plan = open_plan(stack, models, weights, keep_metadata=keep_metadata, **how)
        stream = Stream(plan.outputs, 1 if method else threads, progress)  # a user's function need not be thread-safe
        with _folder(out, into) as folder:
            report = write_plan(plan, checkpoints, folder, stream, digests)
            if extra_files is not None:
                extra_files(folder, report)
    return report


def open_plan(
    stack: ExitStack,
    models: Mapping[str, Path],
    weights: Mapping[str, float],
    *,
    lora: LoraForm = "factors",
    take_from: str | None = None,
    method: str | None = None,
    base: Path | None = None,
    keep_metadata: Sequence[str] = (),
) -> tuple[list[Checkpoint], Plan]:
    """Open the models that have weight, until `stack` is closed, and plan their merge."""
    used = used_weights(list(models), weights)
    if take_from is not None and take_from not in used:
        raise CheckpointError(f"integer tensors cannot be taken from {take_from!r}: no model of that name has weight")
    if base is not None and method is None:
        raise CheckpointError("a base model belongs to a method such as ties; a weighted sum needs none")
    if base is not None and "base" in used:
        raise CheckpointError("a model is named 'base', like the base model beside it; give it another name")
    if len(used) > _MANY:
        _allow_open_files()
    checkpoints = [stack.enter_context(open_model(Path(models[name]), name)) for name in used]
    origin = stack.enter_context(open_model(Path(base), "base")) if base is not None else None
    values = list(used.values())
    how: dict[str, Any] = {"lora": lora, "take_from": take_from, "method": method, "base": origin}
    return checkpoints, plan_merge(checkpoints, values, keep_metadata=keep_metadata, **how)


def _folder(out: Path, into: Path | None) -> AbstractContextManager[Path]:
    return new_folder(out) if into is None else nullcontext(into)


def _allow_open_files() -> None:
    """Every model is open while they are merged, and the usual limit of 1024 files is less than a run's checkpoints may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def copy_model(
    folder: Path,
    out: Path,
    *,
    name: str | None = None,
    keep_metadata: Sequence[str] = (),
    extra_files: ExtraFiles | None = None,
    digests: bool = True,
    into: Path | None = None,
) -> MergeReport:
    """Write one model to the new folder `out`: the same tensors bit for bit, with its configuration and tokenizer."""
    require_absent(out)
    with open_model(Path(folder), name) as checkpoint, _folder(out, into) as target:
        plan = plan_copy(checkpoint, keep_metadata)
        report = write_plan(plan, [checkpoint], target, Stream(plan.outputs), digests)
        if extra_files is not None:
            extra_files(target, report)
    return report
