"""Writing a planned model into a folder, and the report of what went in and what came out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, TensorFile
from dpmerge.tensors.digests import PassingDigest, file_digest, passing_digest, source_digest
from dpmerge.tensors.dtypes import Dtype
from dpmerge.tensors.opening import ADAPTER_CONFIG, INDEX
from dpmerge.tensors.plan import MergePlan, holds_only_tensors
from dpmerge.tensors.safetensors_file import FileState, header_bytes
from dpmerge.tensors.stream import Output, Stream

Surveyed = Mapping[str, Mapping[str, tuple[FileState, str]]]  # by model and file: the digest, and the file's state then


@dataclass(frozen=True)
class MergeReport:
    """What went in and what came out. Digests are SHA-256, by file name; there are none if none were asked for."""

    inputs: Mapping[str, Mapping[str, str]]  # by model ("base" for the base model): the files that decide the tensors
    outputs: Mapping[str, str]  # every file but those that the caller adds
    plain: frozenset[tuple[str, str]]  # (model, file): inputs that hold nothing but tensors
    parameters: int
    dtypes: Mapping[str, int]  # elements of each format
    notes: tuple[str, ...]


def write_plan(
    plan: MergePlan,
    checkpoints: Sequence[Checkpoint],
    folder: Path,
    stream: Stream,
    digests: bool,
    surveyed: Surveyed,
) -> MergeReport:
    """Stream every tensor into the folder, and write index, configuration and tokenizer beside them.

    Files that were hashed before, and are as they were then, are not hashed again.
    """
    known = _unchanged(checkpoints, surveyed)
    passing = _passing(plan, checkpoints, stream, known) if digests else {}
    writers = [_Writer(folder / file.name, file.outputs, plan.metadata, stream) for file in plan.files]
    places = [(writer, place) for writer in writers for place in range(len(writer.offsets))]

    def put(place: int, start: int, block: memoryview) -> None:
        writer, index = places[place]
        writer.put(index, start, block, digests)

    stream.run(put, {file.source: digest for file, digest in passing.items() if file.source})
    _write_small_files(plan, folder)
    report = _undigested(plan, checkpoints)
    if not digests:
        return report
    _require_unchanged(checkpoints, surveyed, known)
    known |= {file: digest.hexdigest() for file, digest in passing.items()}
    inputs = _input_digests([*checkpoints, plan.base] if plan.base else checkpoints, known)
    outputs = {writer.path.name: writer.digest.hexdigest() for writer in writers}
    outputs |= {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name not in outputs}
    return replace(report, inputs=inputs, outputs=outputs)


def _unchanged(checkpoints: Sequence[Checkpoint], surveyed: Surveyed) -> dict[TensorFile, str]:
    """The digests of files that are as they were when they were hashed."""
    held = {(checkpoint.model, file.name): file for checkpoint in checkpoints for file in checkpoint.files}
    return {
        held[model, name]: digest
        for model, files in surveyed.items()
        for name, (state, digest) in files.items()
        if (model, name) in held and getattr(held[model, name].source, "state", None) == state
    }


def _require_unchanged(checkpoints: Sequence[Checkpoint], surveyed: Surveyed, used: Mapping[TensorFile, str]) -> None:
    for file in used.keys() - _unchanged(checkpoints, surveyed).keys():
        raise CheckpointError(f"{file.path}: was written to while it was merged; merge it again when it is finished")


def _passing(
    plan: MergePlan, checkpoints: Sequence[Checkpoint], stream: Stream, known: Mapping[TensorFile, str]
) -> dict[TensorFile, PassingDigest]:
    """Digests for those files that will be read in their own order."""
    order = [output.name for output in plan.outputs]
    files = [file for checkpoint in checkpoints for file in checkpoint.files if file not in known]
    made = {file: passing_digest(file, order, stream.stop) for file in files}
    return {file: digest for file, digest in made.items() if digest is not None}


def _undigested(plan: MergePlan, checkpoints: Sequence[Checkpoint]) -> MergeReport:
    plain = frozenset((c.model, file.name) for c in checkpoints for file in c.files if holds_only_tensors(file))
    elements: Counter[Dtype] = Counter()
    for tensor in plan.outputs:
        elements[tensor.dtype] += tensor.size
    parameters = sum(count for dtype, count in elements.items() if dtype.floating)
    return MergeReport({}, {}, plain, parameters, {dtype.name: count for dtype, count in elements.items()}, plan.notes)


class _Writer:
    """One new safetensors file: its header is written first, then its blocks in any order."""

    def __init__(self, path: Path, outputs: Sequence[Output], metadata: Mapping[str, str], stream: Stream) -> None:
        self.path = path
        self._outputs = outputs
        header, self.offsets = header_bytes(outputs, metadata)
        self.digest = PassingDigest(header, len(header) + sum(output.nbytes for output in outputs), stream.stop)
        self._write(0, memoryview(header), os.O_CREAT | os.O_EXCL)

    def put(self, index: int, start: int, block: memoryview, digested: bool) -> None:
        offset = self.offsets[index] + start * self._outputs[index].dtype.size
        if digested:
            self.digest.update(offset, block)
        self._write(offset, block)

    def _write(self, offset: int, block: memoryview, how: int = 0) -> None:
        """Opened for each block: a model may have more files than a process may hold open."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | how, 0o666)
        try:
            while len(block):
                count = os.pwrite(descriptor, block, offset)
                offset, block = offset + count, block[count:]
        finally:
            os.close(descriptor)


def _write_small_files(plan: MergePlan, folder: Path) -> None:
    for name, content in plan.companions.items():
        (folder / name).write_bytes(content)
    if plan.sharded:
        total = sum(output.nbytes for output in plan.outputs)
        where = {output.name: file.name for file in plan.files for output in file.outputs}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _input_digests(checkpoints: Sequence[Checkpoint], known: Mapping[TensorFile, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for checkpoint in checkpoints:
        mine = {file.name: known.get(file) or source_digest(file) for file in checkpoint.files}
        if checkpoint.layout == "lora":
            mine[ADAPTER_CONFIG] = file_digest(checkpoint.folder / ADAPTER_CONFIG)
        found[checkpoint.model] = mine
    return found
