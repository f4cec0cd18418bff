"""Long work behind an HTTP call: a job in a thread of its own, followed by server-sent events, stopped between two pieces."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dpmerge.errors import DpmergeError, JobError, one_line
from dpmerge.files import json_text

T = TypeVar("T")
R = TypeVar("R")
_LOG = logging.getLogger("dpmerge.explorer")
_KEPT = 32  # finished jobs whose results can still be asked for
_LOOK_S = 0.1  # how soon listeners hear of progress
_BEAT_S = 10.0  # a comment goes out this often, so that a listener who has left is noticed


class Cancelled(Exception):
    """The job was asked to stop."""


@dataclass
class Job:
    """One piece of long work and how far it is. Whoever works calls `report`, which also is where a job stops."""

    kind: str
    question: object = None
    lasting: bool = False  # runs to its end even if the server leaves
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    label: str = ""
    done: int = 0
    total: int | None = None
    result: Any = None
    problem: str | None = None
    _version: int = 0
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def report(self, label: str | None = None, *, done: int | None = None, total: int | None = None) -> None:
        """Say how far the work is; raises `Cancelled` once the job was asked to stop."""
        if self._stop.is_set():
            raise Cancelled
        known = {"label": label, "done": done, "total": total}
        self._set(**{name: value for name, value in known.items() if value is not None})

    def map(self, function: Callable[[T], R], items: Sequence[T], *, keys: Sequence[str]) -> list[R]:
        """A `Mapper` that works through the items one by one and can be stopped between two of them."""
        results = []
        start = self.done
        self.report(total=start + len(items))
        for number, item in enumerate(items, start=1):
            results.append(function(item))
            self.report(done=start + number)
        return results

    def cancel(self) -> None:
        """Ask the job to stop at its next report; a lasting one goes on."""
        if not self.lasting:
            self._stop.set()

    def can_be_reused(self, keeps: bool) -> bool:
        """Whether the same question now is answered by this job: it runs, or it is done and its result `keeps`."""
        return (self.state == "running" and not self._stop.is_set()) or (keeps and self.state == "done")

    def run(self, work: Callable[[Job], Any]) -> None:
        """Do the work; an error of the library is kept as the one line the command line would print."""
        try:
            result = work(self)
        except Cancelled:
            self._set(state="cancelled", label="")
        except DpmergeError as error:
            self._set(state="failed", problem=one_line(error))
        except Exception:
            _LOG.exception("the job %r failed", self.kind)
            self._set(state="failed", problem="the job failed unexpectedly; the terminal of the server says why")
        else:
            stopped = self._stop.is_set()
            self._set(label="", **({"state": "cancelled"} if stopped else {"state": "done", "result": result}))

    def status(self, *, with_result: bool = True) -> dict[str, Any]:
        names = ("id", "kind", "state", "label", "done", "total", "problem", *(("result",) if with_result else ()))
        return {name: getattr(self, name) for name in names}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: `progress` whenever something changes, and one `end` with the last state. Results are fetched."""
        seen, quiet = -1, 0.0
        while True:
            with self._lock:
                version, state, shown = self._version, self.state, self.status(with_result=False)
            if version != seen:
                seen, quiet = version, 0.0
                name = "progress" if state == "running" else "end"
                yield f"event: {name}\ndata: {json_text(shown, indent=None)}\n\n"
                if state != "running":
                    return
            elif quiet >= _BEAT_S:
                quiet = 0.0
                yield ": still running\n\n"
            await asyncio.sleep(_LOOK_S)
            quiet += _LOOK_S

    def _set(self, **changes: Any) -> None:
        with self._lock:
            for name, value in changes.items():
                setattr(self, name, value)
            self._version += 1


class Jobs:
    """The jobs of one server: few at a time, the latest finished ones kept."""

    def __init__(self, at_once: int = 2) -> None:
        self._at_once = at_once
        self._jobs: dict[str, Job] = {}
        self._lasting: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(
        self, kind: str, work: Callable[[Job], Any], question: object = None, *, keeps: bool = False, lasting: bool = False
    ) -> Job:
        """Begin a job, or give the one that answers the same question; refused while too many run."""
        job = Job(kind, question, lasting)
        with self._lock:
            for one in self._jobs.values():
                if question is not None and (one.kind, one.question) == (kind, question) and one.can_be_reused(keeps):
                    return one
            finished = [one.id for one in self._jobs.values() if one.state != "running"]
            running = len(self._jobs) - len(finished)
            if running >= self._at_once:
                raise JobError(f"{running} jobs are running already; wait for one to end, or cancel it")
            self._jobs[job.id] = job
            for old in finished[: max(0, len(finished) - _KEPT)]:
                del self._jobs[old]
            thread = threading.Thread(target=job.run, args=(work,), name=f"explorer-{kind}", daemon=not lasting)
            self._lasting = [*(one for one in self._lasting if one.is_alive()), *([thread] if lasting else [])]
            thread.start()
        return job

    def finish_lasting(self) -> None:
        for thread in [one for one in self._lasting if one.is_alive()]:
            _LOG.warning("a release is under way: leaving when it is finished")
            thread.join()

    def get(self, name: str) -> Job | None:
        with self._lock:
            return self._jobs.get(name)

    def cancel_all(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                job.cancel()


async def unattended(work: Callable[[], R]) -> R:
    """Work in a thread that nobody waits for when the server leaves; anyio's own would keep the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(tell: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            tell(outcome)

    def run() -> None:
        told: tuple[Callable[[Any], None], Any]
        try:
            told = (done.set_result, work())
        except Exception as error:
            told = (done.set_exception, error)
        with suppress(RuntimeError):  # the server has left
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=run, name="explorer-computing", daemon=True).start()
    return await done
