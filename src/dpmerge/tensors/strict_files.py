"""Reading files that others wrote: strict JSON, and paths that may not leave the model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpmerge.errors import CheckpointError
from dpmerge.files import read_regular
from dpmerge.records import refuse_duplicates


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object; duplicate keys, NaN and infinities are refused. `where` names the file in errors."""
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{where}: not valid JSON: {fault}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: not a JSON object")
    return value


def read_object(path: Path, where: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        return parse_object(path.read_bytes(), where)
    except OSError as fault:
        raise CheckpointError(f"{where}: cannot be read: {fault.strerror}") from None


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """The content of a file of the folder, which may not lead elsewhere nor be larger than `most` bytes."""
    try:
        return read_regular(file_inside(folder, name, str(folder)), most)
    except OSError as fault:
        raise CheckpointError(f"{folder}: {name} cannot be read: {fault.strerror}") from None


def file_inside(folder: Path, name: str, where: str) -> Path:
    """A file of the folder by its plain name. Other folders, absolute paths and links that lead out are refused.

    Links of a hub's cache are followed: snapshots/REVISION/NAME leads to blobs/DIGEST in the same cache.
    """
    if Path(name).name != name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise CheckpointError(f"{where}: {name!r} is not the name of a file in the model's folder; it may not lead elsewhere")
    path = folder / name
    try:
        home, target = folder.resolve(strict=True), path.resolve(strict=True)
        inside = target.is_relative_to(home) or (home.parent.name, target.parent) == ("snapshots", home.parent.parent / "blobs")
    except (OSError, RuntimeError):
        raise CheckpointError(f"{where}: {name} is missing") from None
    if not inside:
        raise CheckpointError(f"{where}: {name} is a link out of the model's folder; copy the file itself there")
    if not path.is_file():
        raise CheckpointError(f"{where}: {name} is not a regular file")
    return path


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for text in (text for pair in pairs for text in pair if isinstance(text, str)):
        text.encode()  # half a surrogate pair, which JSON can spell and no file can hold again
    return refuse_duplicates(pairs)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")
