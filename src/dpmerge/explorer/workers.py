"""Processes that account for merges: accounting keeps an interpreter busy, and the server's must answer others meanwhile."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from queue import LifoQueue
from typing import Any

from dpmerge.errors import DpmergeError, JobError
from dpmerge.rules import Accounting, Guarantee, Rule, Target

# Forks of the server itself could inherit a lock that one of its threads holds; those of a process without threads cannot.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
_LOG = logging.getLogger("dpmerge.explorer")


class Stopped(JobError):
    """A process was killed, or ran out of memory, before it answered."""


class Worker:
    """One process, started when it is first needed, and again after it was killed. It ends with the server."""

    def __init__(self, niceness: int) -> None:
        self.niceness = niceness
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None

    def guarantee(self, rule: Rule, accounting: Accounting, target: Target) -> Guarantee:
        """What `accounting.guarantee` answers; one question at a time."""
        if self._process is None or self._pipe is None or not self._process.is_alive():
            self._pipe, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=_serve, args=(theirs, self.niceness), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((rule, accounting, target))
            answer: Guarantee | DpmergeError | None = self._pipe.recv()
        except (EOFError, OSError):
            self._process = None  # it may seem alive for a moment
            raise Stopped("the process that accounted for this merge was stopped; ask again") from None
        if answer is None:
            raise RuntimeError("a worker failed; its traceback is above")
        if isinstance(answer, DpmergeError):
            raise answer
        return answer

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


@dataclass(frozen=True)
class AccountingInTurn(Accounting):
    """Accounting for the server's threads: in one of these processes while the server is busy, and else where it is called."""

    busy: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    workers: LifoQueue[Worker] = field(default_factory=LifoQueue, compare=False, repr=False)

    @classmethod
    def of(cls, accounting: Accounting, busy: Callable[[], bool], workers: LifoQueue[Worker]) -> AccountingInTurn:
        return cls(**_settings(accounting), busy=busy, workers=workers)

    def guarantee(self, rule: Rule, *, delta: float | None = None, epsilon: float | None = None) -> Guarantee:
        if self.busy():
            target, worker = Target(epsilon=epsilon, delta=delta), self.workers.get()
            with suppress(Stopped):
                try:
                    return worker.guarantee(rule, Accounting(**_settings(self)), target)
                finally:
                    self.workers.put(worker)
        return super().guarantee(rule, delta=delta, epsilon=epsilon)


def _settings(accounting: Accounting) -> dict[str, Any]:
    return {one.name: getattr(accounting, one.name) for one in fields(Accounting)}


def _serve(pipe: Connection, niceness: int) -> None:
    """Answer until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    os.nice(niceness)
    with suppress(EOFError, OSError):
        while True:
            rule, accounting, target = pipe.recv()
            answer: Guarantee | DpmergeError | None = None
            try:
                answer = accounting.guarantee(rule, delta=target.delta, epsilon=target.epsilon)
            except DpmergeError as error:
                answer = error
            except Exception:
                _LOG.exception("accounting for a merge failed")
            pipe.send(answer)
