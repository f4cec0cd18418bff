"""Results kept on disk as they come, so that a run that was killed continues where it stopped."""

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
    """Finished pieces of work by key, one JSON line each, in a file that one process at a time holds open.

    A result is plain JSON data; NaN and infinities are kept too, and floats exactly. `put` returns only when the line is on
    the disk. Every line carries a checksum, so a line that is torn (killed while writing) or damaged is as good as absent:
    that piece is done again. Of two lines with one key the later counts.
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
                raise JobError(f"another run is using {path}; let it end, or name another file") from None
            except OSError as fault:
                raise self._unwritable(fault) from None
            stack.pop_all()

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str) -> Any:
        return self._results[key]

    def put(self, key: str, result: Any) -> None:
        """Keep a result, on the disk before this returns. `get` answers it as JSON data: tuples have become lists."""
        try:
            result = json.loads(lossless(result))
        except (TypeError, ValueError, RecursionError) as fault:
            raise JobError(f"the result of {key!r} cannot be kept in {self.path}: {fault}") from None
        line = lossless({"key": key, "result": result, "sum": _checksum(key, result)})
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as fault:
            raise self._unwritable(fault) from None
        self._results[key] = result

    def close(self) -> None:
        with contextlib.suppress(OSError):  # nothing is lost: what could not be written has been reported by `put`
            self._file.close()

    def __enter__(self) -> Finished:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[tuple[str, Any]]:
        self._file.seek(0)
        line = b"\n"
        for line in self._file:
            # RecursionError: damage can open more brackets than a reader has room for.
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                entry = json.loads(line)
                if entry["sum"] == _checksum(entry["key"], entry["result"]):
                    yield entry["key"], entry["result"]
        if not line.endswith(b"\n"):  # torn; the next line must not become its end
            self._file.write(b"\n")
            self._file.flush()

    def _unwritable(self, fault: OSError) -> JobError:
        return JobError(f"{self.path}: finished work cannot be kept there: {fault.strerror or fault}")


def _checksum(key: str, result: Any) -> str:
    return sha256(lossless([key, result], sort_keys=True))[:16]
