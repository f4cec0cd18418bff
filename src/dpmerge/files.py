"""Files that appear whole, and JSON that is strict: the one way to write each. Only `lossless` writes NaN."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import FigureError

_INFINITY = "\x00infinity"


def finite_or_null(value: Any, instead: str | None = None) -> Any:
    """Plain data with null (or something else) for what is not finite: strict JSON has no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return value if instead is not None and math.isnan(value) else instead
    if isinstance(value, Mapping):
        return {str(key): finite_or_null(item, instead) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item, instead) for item in value]
    return value


def json_text(value: Any, *, infinity: Literal["null", "1e999"] = "null", indent: int | None = 1) -> str:
    """Valid JSON. Infinity is null, or 1e999: every parser reads that as infinity or the largest number, never as small."""
    try:  # most documents are finite, and need no copy
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        told = finite_or_null(value, None if infinity == "null" else _INFINITY)
    text = json.dumps(told, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.replace(json.dumps(_INFINITY), "1e999")


def canonical(data: Any, *, indent: int | None = None) -> bytes:
    """What hashes are of: sorted keys, no spaces, floats by their shortest exact digits; NaN and infinities are refused.

    With an indent the same on many lines, for people.
    """
    separators = (",", ":" if indent is None else ": ")
    return json.dumps(data, sort_keys=True, separators=separators, indent=indent, ensure_ascii=False, allow_nan=False).encode()


def lossless(data: Any, *, sort_keys: bool = False) -> bytes:
    """What dpmerge alone reads back: NaN and infinities stay what they are, as Python writes and reads them."""
    return json.dumps(data, sort_keys=sort_keys).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def private_folder(path: Path) -> None:
    """Make a folder, and those around it that are missing, for their owner alone; one that is there keeps its mode."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():  # also where a parent may not be listed
            folder.mkdir(mode=0o700, exist_ok=True)
            sync(folder.parent)


def write_private(content: bytes, path: Path) -> None:
    """Write a new file that its owner alone may read, and that is on the disk then; one that is there is never overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def sync(path: Path) -> None:
    """A file's content, or a folder's names, are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Pipes and devices are not opened; every refusal is an OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def write_whole(content: bytes, path: Path) -> None:
    """The file appears complete or not at all."""
    temporary = path.with_name(f".dpmerge-{secrets.token_hex(6)}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise FigureError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """The document, infinities as null; the file appears whole."""
    write_whole(json_text(document).encode() + b"\n", path)
