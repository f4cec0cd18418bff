"""Models and weights in, a new model's folder out: combination, other methods, and the copy of one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TypedDict, Unpack

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint
from dpmerge.tensors.folder import new_folder, require_absent
from dpmerge.tensors.opening import open_model
from dpmerge.tensors.path import Noise
from dpmerge.tensors.plan import LoraForm, MergePlan, plan_copy, plan_merge
from dpmerge.tensors.stream import Progress, Stream
from dpmerge.tensors.writing import MergeReport, Surveyed, write_plan

# Called with the temporary folder and the report before the folder gets its name: what it writes appears with the rest.
ExtraFiles = Callable[[Path, MergeReport], None]


class Options(TypedDict, total=False):
    """How models are merged.

    `lora` says how adapters are combined: `factors` averages A and B, `exact` adds the updates BA (tensors/lora.py).
    `take_from` names the model whose integer tensors are kept where they differ. `method` replaces the sum by `ties`, `slerp`
    or a user's `module:function`, with `base` on differences from a public base model. `keep_metadata` names what is kept of
    the files' metadata beside their format, and of configurations beside the fields by which they are loaded. `noise` is added
    to every parameter of the average (tensors/path.py).
    """

    lora: LoraForm
    take_from: str | None
    method: str | None
    base: Path | None
    keep_metadata: Sequence[str]
    noise: Noise | None


def merge_models(
    models: Mapping[str, Path],
    weights: Mapping[str, float],
    out: Path,
    *,
    extra_files: ExtraFiles | None = None,
    digests: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
    into: Path | None = None,
    surveyed: Surveyed | None = None,
    **options: Unpack[Options],
) -> MergeReport:
    """Write the combination Σ wᵢ·xᵢ of the models as the new folder `out`, which appears whole or not at all.

    `models` are folders by name, and their order is the order of summation; models without weight are not even opened.
    `into` is a temporary folder that the caller renames to `out`. `surveyed` are digests of files that were read before.
    """
    require_absent(out)
    with ExitStack() as stack:
        checkpoints, plan = open_plan(stack, models, weights, **options)
        return _write(plan, checkpoints, plan.stream(threads, progress), out, into, digests, extra_files, surveyed)


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
    with open_model(Path(folder), name) as checkpoint:
        plan = plan_copy(checkpoint, keep_metadata)
        return _write(plan, [checkpoint], plan.stream(), out, into, digests, extra_files)


def _write(
    plan: MergePlan,
    checkpoints: Sequence[Checkpoint],
    stream: Stream,
    out: Path,
    into: Path | None,
    digests: bool,
    extra_files: ExtraFiles | None,
    surveyed: Surveyed | None = None,
) -> MergeReport:
    with new_folder(out) if into is None else nullcontext(into) as folder:
        report = write_plan(plan, checkpoints, folder, stream, digests, surveyed or {})
        if extra_files is not None:
            extra_files(folder, report)
    return report


def open_plan(
    stack: ExitStack, models: Mapping[str, Path], weights: Mapping[str, float], **options: Unpack[Options]
) -> tuple[list[Checkpoint], MergePlan]:
    """Open the models that have weight, until `stack` is closed, and plan their merge."""
    used = _used(list(models), weights)
    take_from, method, base = options.get("take_from"), options.get("method"), options.get("base")
    if take_from is not None and take_from not in used:
        raise CheckpointError(f"integer tensors cannot be taken from {take_from!r}: no model of that name has weight")
    if base is not None and method is None:
        raise CheckpointError("a base model belongs to a method such as ties; a weighted sum needs none")
    if base is not None and "base" in used:
        raise CheckpointError("a model is named 'base', like the base model beside it; give it another name")
    checkpoints = [stack.enter_context(open_model(Path(models[name]), name)) for name in used]
    return checkpoints, plan_merge(
        checkpoints,
        list(used.values()),
        lora=options.get("lora", "factors"),
        take_from=take_from,
        method=method,
        base=stack.enter_context(open_model(Path(base), "base")) if base is not None else None,
        keep_metadata=options.get("keep_metadata", ()),
        noise=options.get("noise"),
    )


def _used(models: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """The models that have weight, in the models' order. Weights are never changed; a model that is not named has none."""
    for name, weight in weights.items():
        if name not in models:
            raise CheckpointError(f"no model named {name!r}; there are {', '.join(map(repr, models))}")
        if not math.isfinite(weight) or weight < 0:
            raise CheckpointError(f"the weight of {name!r} is {weight}; weights are finite and non-negative")
    used = {name: float(weights[name]) for name in models if weights.get(name, 0.0) > 0}
    if not used:
        raise CheckpointError("no model has weight; give at least one a positive weight")
    return used
