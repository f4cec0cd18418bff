"""Answers kept on disk under the hash of their question: a second plan on the same portfolio is not computed again.

An entry's name is the SHA-256 of the question *and* of the code that answers it, so a new version never reads old
numbers. Entries are written to a temporary name and renamed, so processes may share the folder; one that is damaged or
cannot be read is computed again. The cache is a convenience: whoever may write to it may change what is printed, and
whatever rechecks a certificate does not use it.

`DPMERGE_CACHE` names the folder, or says `off`; the default is `dpmerge` in the user's cache folder. It holds at
most `DPMERGE_CACHE_FILES` answers and `DPMERGE_CACHE_MB` megabytes: a new answer removes those that were not read for longest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpmerge.errors import JobError
from dpmerge.files import lossless, private_folder, sha256

_FILES, _MEGABYTES = 20_000, 256
# Hashes spread entries evenly over these folders, and each keeps to its part of the limits: a write looks at its own folder
# alone (78 files by default), and no count is shared between processes.
_FOLDERS = 256
_BLOCK = 4096  # a file takes whole blocks
_LIBRARIES = ("numpy", "scipy", "dp-accounting")
_DISABLED: ContextVar[bool] = ContextVar("disabled", default=False)


def remembered(question: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """The answer to a question, from disk if it was asked before. Question and answer are plain JSON data."""
    folder = cache_folder()
    if folder is None:
        return compute()
    limits = cache_limits()  # before the work: a wrong number is no reason to lose it
    name = sha256(lossless({"code": code_fingerprint(), **question}, sort_keys=True))
    path = folder / name[:2] / name[2:]
    try:
        return _read(path)
    except (OSError, ValueError):
        answer = compute()
    with contextlib.suppress(OSError):  # a cache that cannot be written is no cache
        _write(path, answer)
        _evict(path.parent, *limits)
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


def cache_limits() -> tuple[int, int]:
    """How many files and bytes the folder may hold."""
    files = _whole_number("DPMERGE_CACHE_FILES", _FILES, least=_FOLDERS)
    return files, _whole_number("DPMERGE_CACHE_MB", _MEGABYTES, least=16) * 10**6


def _whole_number(variable: str, usual: int, *, least: int) -> int:
    stated = os.environ.get(variable, "") or str(usual)
    if not (stated.isascii() and stated.isdigit() and int(stated) >= least):
        raise JobError(f"the environment variable {variable} is {stated!r}: give a whole number, at least {least}")
    return int(stated)


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
    with contextlib.suppress(OSError):  # file systems note the time of a read late, or never
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return json.loads(body)


def _write(path: Path, answer: Any) -> None:
    body = lossless(answer, sort_keys=True)
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sha256(body).encode() + b"\n" + body)
            file.flush()
            os.utime(file.fileno(), ns=(time.time_ns(),) * 2)  # a file system's own clock may tick in milliseconds
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _evict(folder: Path, files: int, size: int) -> None:
    """Remove what was not read for longest, until the folder keeps to its part of the limits."""
    found: list[tuple[int, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                stat = entry.stat(follow_symlinks=False)
                found.append((stat.st_atime_ns, -(-stat.st_size // _BLOCK) * _BLOCK, entry.path))
    many, taken = len(found), sum(one for _, one, _ in found)
    for _, one, path in sorted(found):
        if many <= files // _FOLDERS and taken <= size // _FOLDERS:
            return
        many, taken = many - 1, taken - one
        with contextlib.suppress(OSError):
            os.unlink(path)
