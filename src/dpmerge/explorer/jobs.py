"""Long computations behind an HTTP call: each job has its own thread, reports server-sent events and can be cancelled."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from dpmerge.errors import DpmergeError, JobError, one_line
from dpmerge.files import json_text

T = TypeVar("T")
R = TypeVar("R")
_LOG = logging.getLogger("dpmerge.explorer")
_KEPT = 32  # finished jobs whose results are kept
_FORGOTTEN_S = 60.0  # a job without the token is cancelled if nobody asked for its state for so long
_LOOK_S = 0.1  # interval at which listeners check for progress
_BEAT_S = 10.0  # a comment is sent this often, to detect closed connections


class Cancelled(Exception):
    """The job was asked to stop."""


@dataclass
class Job:
    """One long computation and its progress. Workers call `report`; cancellation takes effect there."""

    kind: str
    question: object = None
    lasting: bool = False  # the server waits for it before it exits
    owner: bool = False  # started by someone with the token
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    label: str = ""
    done: int = 0
    total: int | None = None
    result: Any = None
    problem: str | None = None
    _version: int = 0
    _asked: float = field(default_factory=time.monotonic, repr=False)  # when somebody last asked for its state
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def report(self, label: str | None = None, *, done: int | None = None, total: int | None = None) -> None:
        """Update the progress; raises `Cancelled` if the job was asked to stop, or nobody with the token waits for it."""
        if not self.owner and time.monotonic() - self._asked > _FORGOTTEN_S:
            self.cancel()
        if self._stop.is_set():
            raise Cancelled
        known = {"label": label, "done": done, "total": total}
        self._set(**{name: value for name, value in known.items() if value is not None})

    def map(self, function: Callable[[T], R], items: Sequence[T], *, keys: Sequence[str]) -> list[R]:
        """A `Mapper` that processes the items one by one; the job can be cancelled between two items."""
        results = []
        start = self.done
        self.report(total=start + len(items))
        for number, item in enumerate(items, start=1):
            results.append(function(item))
            self.report(done=start + number)
        return results

    def cancel(self) -> None:
        """Ask the job to stop at its next report; a lasting job ignores this."""
        if not self.lasting:
            self._stop.set()

    def can_be_reused(self, reuse_finished: bool) -> bool:
        """Whether this job can be reused for the same question: it is running or, with `reuse_finished`, done."""
        return (self.state == "running" and not self._stop.is_set()) or (reuse_finished and self.state == "done")

    def run(self, work: Callable[[Job], Any]) -> None:
        """Do the work; a dpmerge error is stored as one line of text."""
        try:
            result = work(self)
        except Cancelled:
            self._set(state="cancelled", label="")
        except DpmergeError as error:
            self._set(state="failed", problem=one_line(error))
        except Exception:
            _LOG.exception("the job %r failed", self.kind)
            self._set(state="failed", problem="the job failed unexpectedly; the server's terminal shows the error")
        else:
            stopped = self._stop.is_set()
            self._set(label="", **({"state": "cancelled"} if stopped else {"state": "done", "result": result}))

    def status(self, *, with_result: bool = True) -> dict[str, Any]:
        self._asked = time.monotonic()
        names = ("id", "kind", "state", "label", "done", "total", "problem", *(("result",) if with_result else ()))
        return {name: getattr(self, name) for name in names}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: `progress` after each change, and one `end` with the final state, without the result."""
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
    """The jobs of one server: a few at a time, and one more with the token; the most recent finished ones are kept."""

    def __init__(self, at_once: int = 2, own: int = 1) -> None:
        self._at_once, self._own = at_once, own
        self._jobs: dict[str, Job] = {}
        self._lasting: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(
        self,
        kind: str,
        work: Callable[[Job], Any],
        question: object = None,
        *,
        reuse_finished: bool = False,
        lasting: bool = False,
        owner: bool = False,
    ) -> Job:
        """Start a job, or return a reusable one for the same question. Refused while too many jobs run."""
        job = Job(kind, question, lasting, owner)
        with self._lock:
            for one in self._jobs.values():
                if question is not None and (one.kind, one.question) == (kind, question) and one.can_be_reused(reuse_finished):
                    one.owner = one.owner or owner
                    return one
            finished = [one.id for one in self._jobs.values() if one.state != "running"]
            running = len(self._jobs) - len(finished)
            if running >= self._at_once + (self._own if owner else 0):
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
            _LOG.warning("a release is running: the server stops when it is finished")
            thread.join()

    def get(self, name: str) -> Job | None:
        with self._lock:
            return self._jobs.get(name)

    def cancel_all(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                job.cancel()


async def unattended(work: Callable[[], R]) -> R:
    """Run the work in a daemon thread: unlike anyio's threads, it does not delay the server's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(deliver: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            deliver(value)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = (done.set_result, work())
        except Exception as error:
            outcome = (done.set_exception, error)
        with suppress(RuntimeError):  # the event loop is closed: the server has stopped
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="explorer-computing", daemon=True).start()
    return await done
