"""Identifies the process that makes a release, so that others can tell later whether it still runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpmerge.tensors import abandoned, is_proof


def this_process() -> dict[str, Any]:
    """Identifies this process among all on this machine since it was booted."""
    own = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "started": _started(os.getpid())}
    return {**own, "namespace": _namespace()}


def under_way(release: Mapping[str, Any]) -> bool:
    """Whether the process that makes this release still runs, as far as can be known here."""
    with maker_gone(release) as gone:
        return gone is False or (gone is None and still_runs(release["by"]))


@contextmanager
def maker_gone(release: Mapping[str, Any]) -> Iterator[bool | None]:
    """Whether the lock of its temporary folder is free (it is then held here); None if there is no lock, or it proves nothing.

    It proves something only on the kernel that made the release: others may not see its locks, and a power failure may lose
    a rename.
    """
    temporary = Path(release.get("temporary", ""))
    if not is_proof(temporary):
        yield None
        return
    by = release["by"]
    with abandoned(temporary) as gone:
        if gone and can_be_seen(by) and still_runs(by):  # its maker could not lock it
            yield False
        else:
            yield gone if not gone or same_boot(by) else None


def can_be_seen(process: Mapping[str, Any]) -> bool:
    """Whether the process would be visible here if it still ran: it is of this machine and this container."""
    here = (socket.gethostname(), _namespace())
    return (process["host"], process.get("namespace", here[1])) == here and process["boot"] == _boot()


def still_runs(process: Mapping[str, Any]) -> bool:
    """Whether that process still runs; True where that cannot be known."""
    if can_be_seen(process):
        return bool(_started(process["pid"]) == process["started"])
    return bool(process["host"] != socket.gethostname() or process["boot"] == _boot())


def same_boot(process: Mapping[str, Any]) -> bool:
    """Whether it ran since this kernel was started; a container has its own name for the machine."""
    return bool(process["boot"]) and process["boot"] == _boot()


def _namespace() -> str:
    """The process namespace: within it a process id is unique."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _started(pid: int) -> str | None:
    """When a process started; None if there is none, or it is a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else fields[18]
