"""Validation first: from opened models and weights to what every output tensor is made of. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, Tensor, TensorFile
from dpmerge.tensors.companions import companions, quoted, without_paths, without_private
from dpmerge.tensors.dtypes import Floats
from dpmerge.tensors.kernel import BLOCK
from dpmerge.tensors.noising import TensorNoise
from dpmerge.tensors.normals import Normals
from dpmerge.tensors.opening import ADAPTER_CONFIG, INDEX
from dpmerge.tensors.path import Noise
from dpmerge.tensors.stream import Keep, Output, Progress, Stream, Sum, Whole
from dpmerge.user_code import find_in

LoraForm = Literal["factors", "exact"]
Method = Callable[[str, list[Floats], list[float]], Floats]
_FORMATS = {"pt", "np", "tf", "flax", "mlx", "jax"}
_HEAD = 64  # elements by which tensors that may be equal are found
_EMBEDDINGS = ("embed", "lm_head", "wte", "output.weight", "shared.weight", "decoder.weight")


@dataclass(frozen=True)
class OutputFile:
    name: str
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class MergePlan:
    """Everything a merge will write."""

    files: tuple[OutputFile, ...]
    metadata: Mapping[str, str]
    sharded: bool
    companions: Mapping[str, bytes]
    notes: tuple[str, ...]
    base: Checkpoint | None = None
    by_method: bool = False
    # What earlier versions wrote beside the tensors: the very first all fields of configurations, later ones no paths.
    earlier: tuple[Mapping[str, bytes], Mapping[str, bytes]] = ({}, {})

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(output for file in self.files for output in file.outputs)

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that will be written, those with tensors first."""
        return (*(file.name for file in self.files), *([INDEX] if self.sharded else []), *sorted(self.companions))

    @property
    def size(self) -> int:
        """Bytes of tensors and of what goes with them; headers come on top."""
        return sum(output.nbytes for output in self.outputs) + sum(map(len, self.companions.values()))

    def stream(self, threads: int | None = None, progress: Progress | None = None) -> Stream:
        """One pass over the tensors; in one thread with a method, since a user's function need not be thread-safe."""
        return Stream(self.outputs, 1 if self.by_method else threads, progress)


def plan_merge(
    checkpoints: Sequence[Checkpoint],
    weights: Sequence[float],
    *,
    lora: LoraForm,
    take_from: str | None,
    method: str | None,
    base: Checkpoint | None,
    keep_metadata: Sequence[str],
    noise: Noise | None = None,
) -> MergePlan:
    """Check that the models belong together, and say what becomes of every tensor."""
    first = checkpoints[0]
    exact = lora == "exact"
    if lora not in ("factors", "exact"):
        raise CheckpointError(f"adapters are combined by their 'factors' or by an 'exact' sum, not by {lora!r}")
    if exact and first.layout != "lora":
        raise CheckpointError(f"model {first.model!r} is not a LoRA adapter: exact sums of updates are for adapters")
    if exact and method is not None:
        raise CheckpointError(f"an exact sum of adapters is linear: it cannot be combined with the method {method!r}")
    if noise is not None and (exact or method is not None):
        raise CheckpointError("noise is added to an average; a method, or an exact sum of adapters, is none")
    _check_layouts(checkpoints)
    _check_tensors([*checkpoints, base] if base else checkpoints, same_shapes=not exact)
    if noise is not None:
        for checkpoint in checkpoints:
            _require_stored_once(checkpoint, noise.without)
    make = _whole(load_method(method), list(weights), base) if method else _average(first, tuple(weights), noise)
    config: bytes | None = None
    differing: list[str] = []
    if first.layout == "lora":
        from dpmerge.tensors.lora import check_factors, exact_output, merged_config

        if exact:
            make = exact_output(checkpoints, weights)
        else:
            check_factors(checkpoints)
        config, notes = merged_config(checkpoints, exact=exact)
        differing += notes

    def output(inputs: tuple[Tensor, ...]) -> Output:
        return make(inputs) if inputs[0].dtype.floating else _kept(inputs, take_from, differing)

    plan = _plan(checkpoints, output, config, keep_metadata)
    return replace(plan, notes=(*plan.notes, *differing), base=base, by_method=method is not None)


def plan_copy(checkpoint: Checkpoint, keep_metadata: Sequence[str] = ()) -> MergePlan:
    """Every tensor of one model as it is, in new safetensors files: the old ones may hold more than the model.

    A pickle can hold an optimizer's state or a generator's, and the header of a safetensors file any text.
    """
    config = (checkpoint.folder / ADAPTER_CONFIG).read_bytes() if checkpoint.layout == "lora" else None
    return _plan([checkpoint], partial(Output.like_first, rule=Keep(0)), config, keep_metadata)


def _plan(
    checkpoints: Sequence[Checkpoint],
    make: Callable[[tuple[Tensor, ...]], Output],
    adapter_config: bytes | None,
    keep_metadata: Sequence[str],
) -> MergePlan:
    first, by_model = checkpoints[0], [checkpoint.tensors for checkpoint in checkpoints]
    kept, notes = companions(checkpoints)
    if adapter_config is not None:
        kept[ADAPTER_CONFIG] = adapter_config
    written, field_notes, asked = without_private(kept, keep_metadata)
    metadata, metadata_notes = _metadata(checkpoints, keep_metadata, asked)
    files = tuple(
        OutputFile(name, tuple(make(tuple(tensors[tensor.name] for tensors in by_model)) for tensor in file.tensors))
        for name, file in zip(first.released_names, first.files, strict=True)
    )
    notes = [*(note for checkpoint in checkpoints for note in checkpoint.notes), *notes, *field_notes, *metadata_notes]
    earlier = (kept, without_paths(kept)[0])
    return MergePlan(files, metadata, first.layout == "sharded", written, tuple(notes), earlier=earlier)


def load_method(name: str) -> Method:
    """A method by its name here (`ties`, `slerp`), or a user's own as `module:function`."""
    from dpmerge.tensors.methods import METHODS

    return find_in(METHODS, name, "the method", CheckpointError)


def _average(first: Checkpoint, weights: tuple[float, ...], noise: Noise | None) -> Callable[[tuple[Tensor, ...]], Output]:
    """Outputs that are weighted sums, each with its own noise; tied tensors are one in the model, so they have one noise."""
    if noise is None:
        return partial(Output.like_first, rule=Sum(weights))
    unknown = sorted(noise.without - first.tensors.keys())
    if unknown:
        raise CheckpointError(
            f"model {first.model!r} has no tensor {unknown[0]!r}, which was to go without noise; check its name"
        )
    one_name = {name: min(tied) for tied in first.ties for name in tied}

    def make(inputs: tuple[Tensor, ...]) -> Output:
        name = one_name.get(inputs[0].name, inputs[0].name)
        added = None if inputs[0].name in noise.without else TensorNoise(noise, Normals(noise.path.seed, name))
        return Output.like_first(inputs, Sum(weights, added))

    return make


def _require_stored_once(model: Checkpoint, without: frozenset[str]) -> None:
    """Refuse numbers that are there twice: their two noises could be averaged (docs/theory.md §9.4), or one has none.

    No two tensors that were trained with noise are equal. Constants, of which nothing was trained, may be.
    """
    for tied in model.ties:
        if tied & without and not tied <= without:
            raise _two_noises(model, min(tied), max(tied))
    for names in model.overlaps:
        raise _two_noises(model, *names)
    copies = {name for tied in model.ties for name in tied - {min(tied)}}  # they have the noise of the first
    alike: dict[tuple[str, int, bytes], list[Tensor]] = {}
    for tensor in model.tensors.values():
        if not tensor.dtype.floating or tensor.name in copies:
            continue
        head = tensor.part(0, min(tensor.size, _HEAD))
        if np.all(head == head[:1]):
            continue
        same = alike.setdefault((tensor.dtype.name, tensor.size, head.tobytes()), [])
        for other in same:
            if not {other.name, tensor.name} <= without and _equal(other, tensor):
                raise _two_noises(model, other.name, tensor.name)
        same.append(tensor)


def _two_noises(model: Checkpoint, one: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"model {model.model!r}: tensors {one!r} and {other!r} hold the same numbers. Each would get noise of its own, and "
        "their average would have less than is stated: leave one of them out"
    )


def _whole(method: Method, weights: list[float], base: Checkpoint | None) -> Callable[[tuple[Tensor, ...]], Output]:
    """Outputs of a method on whole tensors; with a base, on the differences from it, which is added again at the end."""
    origins = base.tensors if base else {}

    def make(inputs: tuple[Tensor, ...]) -> Output:
        name = inputs[0].name

        def apply(tensors: list[Floats]) -> Floats:
            if not origins:
                return method(name, tensors, list(weights))
            origin = origins[name].values()
            return origin + method(name, [tensor - origin for tensor in tensors], list(weights))

        return Output.like_first(inputs, Whole(apply))

    return make


def _kept(inputs: tuple[Tensor, ...], take_from: str | None, notes: list[str]) -> Output:
    """Integers and booleans are not averaged: they are equal, or taken from the model the user names."""
    first = inputs[0]
    index = 0
    for tensor in inputs[1:]:
        if _equal(first, tensor):
            continue
        if take_from is None:
            raise CheckpointError(
                f"models {first.model!r} and {tensor.model!r} differ in tensor {first.name!r}, which holds {first.dtype.name} "
                "and cannot be averaged; name the model to take it from (take_from)"
            )
        index = [tensor.model for tensor in inputs].index(take_from)
        notes.append(f"tensor {first.name!r} is that of model {take_from!r}: the models differ in it")
        break
    return Output.like_first(inputs, Keep(index))


def _equal(one: Tensor, other: Tensor) -> bool:
    parts = [(start, min(BLOCK, one.size - start)) for start in range(0, one.size, BLOCK)]
    return all(one.part(*part).tobytes() == other.part(*part).tobytes() for part in parts)


def _check_layouts(checkpoints: Sequence[Checkpoint]) -> None:
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if (other.layout == "lora") != (first.layout == "lora"):
            raise CheckpointError(
                f"models {first.model!r} and {other.model!r} do not merge: one is a LoRA adapter, the other a whole model"
            )
        if other.ties != first.ties:
            names = sorted(min(first.ties ^ other.ties, key=sorted))
            tied, untied = (first, other) if frozenset(names) in first.ties else (other, first)
            raise CheckpointError(
                f"tensors {', '.join(map(repr, names))} are tied in model {tied.model!r} but not in model {untied.model!r}; "
                "save both with the same ties"
            )


def _check_tensors(checkpoints: Sequence[Checkpoint], *, same_shapes: bool) -> None:
    first = checkpoints[0]
    reference = first.tensors
    if not reference:
        raise CheckpointError(f"model {first.model!r}: no tensors in its files")
    for other in checkpoints[1:]:
        tensors = other.tensors
        for name in sorted(reference.keys() ^ tensors.keys()):
            has, lacks = (first, other) if name in reference else (other, first)
            raise CheckpointError(
                f"model {lacks.model!r} lacks tensor {name!r}, which model {has.model!r} has; a merge needs the same tensors "
                "in every model (are weights tied in one and not in the other?)"
            )
        for name, tensor in tensors.items():
            expected = reference[name]
            if tensor.dtype != expected.dtype:
                raise CheckpointError(
                    f"models {first.model!r} and {other.model!r} hold tensor {name!r} as {expected.dtype.name} and "
                    f"{tensor.dtype.name}; convert one of them"
                )
            if same_shapes and tensor.shape != expected.shape:
                raise CheckpointError(
                    f"models {first.model!r} and {other.model!r} hold tensor {name!r} in shapes {list(expected.shape)} and "
                    f"{list(tensor.shape)}{_vocabulary_hint(expected, tensor)}"
                )


def _vocabulary_hint(one: Tensor, other: Tensor) -> str:
    if one.shape[1:] == other.shape[1:] and any(word in one.name for word in _EMBEDDINGS):
        return ": their vocabularies have different sizes; resize the embeddings to one size first"
    return "; they are not of one architecture"


def holds_only_tensors(file: TensorFile) -> bool:
    """Whether nothing but tensors can be read from a file: no pickle, no metadata."""
    return file.path.suffix == ".safetensors" and all(
        key == "format" and value in _FORMATS for key, value in file.metadata.items()
    )


def _metadata(
    checkpoints: Sequence[Checkpoint], keep: Sequence[str], elsewhere: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """The format, which loaders insist on, and what the user asks for by name where all files share it.

    What is asked for may be a field of a configuration, `elsewhere`. Metadata is whatever a training wrote there, the loss on
    private data for one: no guarantee covers it.
    """
    files = [file.metadata for checkpoint in checkpoints for file in checkpoint.files]
    shared = {key: value for key, value in files[0].items() if all(other.get(key) == value for other in files[1:])}
    kept = {key: shared[key] for key in keep if key in shared}
    dropped = sorted({key for file in files for key in file} - kept.keys() - {"format"})
    unlike = [key for key in keep if key not in shared and key not in elsewhere]
    notes = []
    if dropped:
        notes.append(
            f"metadata {quoted(dropped)} was left out: no guarantee covers what a training wrote there (if it is public and "
            "the same in every file, name it in keep_metadata)"
        )
    if unlike:
        notes.append(f"metadata {quoted(unlike)} was asked for, and is not the same in every file")
    written = shared.get("format")
    return {"format": written if written in _FORMATS else "pt", **kept}, notes
