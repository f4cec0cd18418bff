"""Who is making a release: enough to know later whether it still is."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """This process, unlike any other of this machine's since it was started."""
    return {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "started": _started(os.getpid())}


def still_runs(process: Mapping[str, Any]) -> bool:
    """Whether that process still runs; taken to be so where that cannot be known (another machine)."""
    if process["host"] != socket.gethostname():
        return True
    return bool(process["boot"] == _boot() and _started(process["pid"]) == process["started"])


def same_boot(process: Mapping[str, Any]) -> bool:
    """Whether this machine has not been started anew since."""
    return bool(process["host"] == socket.gethostname() and process["boot"] == _boot())


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _started(pid: int) -> str | None:
    """When a process started; nothing if there is none, or only what is left of it until its parent looks (a zombie)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else fields[18]
