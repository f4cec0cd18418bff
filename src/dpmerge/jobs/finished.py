"""Results stored on disk as they complete, so that a killed run continues where it stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpmerge.errors import JobError
from dpmerge.files import lossless, sha256


class Finished:
    """Finished pieces of work by key, one JSON line each, in a file locked by one process at a time.

    A result is plain JSON data; NaN and infinities are allowed, and floats are exact. `put` returns once the line is on the
    disk. Every line has a checksum: a damaged or incomplete line is ignored, and its piece is done again. If a key occurs
    twice, the later line counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = stack.enter_context(path.open("a+b"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._results = dict(self._read())
            except BlockingIOError:
                raise JobError(f"another run is using {path}; wait until it ends, or choose another file") from None
            except OSError as fault:
                raise self._unwritable(fault) from None
            stack.pop_all()

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str) -> Any:
        return self._results[key]

    def put(self, key: str, result: Any) -> None:
        """Store a result; it is on the disk when this returns. `get` returns JSON data: tuples become lists."""
        try:
            result = json.loads(lossless(result))
        except (TypeError, ValueError, RecursionError) as fault:
            raise JobError(f"the result of {key!r} cannot be stored in {self.path}: {fault}") from None
        line = lossless({"key": key, "result": result, "sum": _checksum(key, result)})
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as fault:
            raise self._unwritable(fault) from None
        self._results[key] = result

    def close(self) -> None:
        with contextlib.suppress(OSError):  # nothing is lost: `put` has already reported write errors
            self._file.close()

    def __enter__(self) -> Finished:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[tuple[str, Any]]:
        self._file.seek(0)
        line = b"\n"
        for line in self._file:
            # RecursionError: a damaged line can have too many nested brackets.
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                entry = json.loads(line)
                if entry["sum"] == _checksum(entry["key"], entry["result"]):
                    yield entry["key"], entry["result"]
        if not line.endswith(b"\n"):  # incomplete; the next line must not be appended to it
            self._file.write(b"\n")
            self._file.flush()

    def _unwritable(self, fault: OSError) -> JobError:
        return JobError(f"{self.path}: finished work cannot be stored there: {fault.strerror or fault}")


def _checksum(key: str, result: Any) -> str:
    return sha256(lossless([key, result], sort_keys=True))[:16]
