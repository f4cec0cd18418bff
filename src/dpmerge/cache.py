"""Answers kept on disk under the hash of their question: a second plan on the same portfolio is not computed again.

An entry's name is the SHA-256 of the question *and* of the code that answers it, so a new version never reads old
numbers. Entries are written to a temporary name and renamed, so processes may share the folder; one that is damaged or
cannot be read is computed again. The cache is a convenience: whoever may write to it may change what is printed, and
whatever rechecks a certificate does not use it.

`DPMERGE_CACHE` names the folder, or says `off`; the default is `dpmerge` in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpmerge.files import lossless, sha256

_LIBRARIES = ("numpy", "scipy", "dp-accounting")
_DISABLED: ContextVar[bool] = ContextVar("disabled", default=False)


def remembered(question: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """The answer to a question, from disk if it was asked before. Question and answer are plain JSON data."""
    folder = cache_folder()
    if folder is None:
        return compute()
    name = sha256(lossless({"code": code_fingerprint(), **question}, sort_keys=True))
    path = folder / name[:2] / name[2:]
    try:
        return _read(path)
    except (OSError, ValueError):
        answer = compute()
    with contextlib.suppress(OSError):  # a cache that cannot be written is no cache
        _write(path, answer)
    return answer


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Compute everything afresh in this block."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


def cache_folder() -> Path | None:
    stated = os.environ.get("DPMERGE_CACHE", "")
    if _DISABLED.get() or stated == "off":
        return None
    if stated:
        return Path(stated)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "dpmerge"


def cache_entries(folder: Path) -> list[Path]:
    """Every entry in the folder, and nothing that merely lies there."""
    return [path for path in folder.glob("??/*") if path.is_file() and len(path.name) == 62]


@lru_cache
def code_fingerprint(*rooms: str) -> str:
    """A hash of the code in these rooms (the accounting's by default) and of the versions it computes with."""
    from importlib.metadata import PackageNotFoundError, version

    digest = hashlib.sha256()
    root = Path(__file__).parent
    for room in rooms or ("records", "profiles", "rules"):
        files = sorted((root / room).rglob("*.py"))
        if not files:
            raise LookupError(f"there is no room {room}, so its code would not count")
        for path in files:
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()


def _read(path: Path) -> Any:
    seal, _, body = path.read_bytes().partition(b"\n")
    if sha256(body).encode() != seal:
        raise ValueError(f"{path} is damaged")
    return json.loads(body)


def _write(path: Path, answer: Any) -> None:
    body = lossless(answer, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sha256(body).encode() + b"\n" + body)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
