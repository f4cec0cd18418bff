"""Processes that account for merges: accounting keeps an interpreter busy, and the server's must answer others meanwhile."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from dpmerge.errors import DpmergeError, JobError
from dpmerge.explorer.portfolio_state import Asked
from dpmerge.records import Portfolio
from dpmerge.rules import Guarantee

# Forks of the server itself could inherit a lock that one of its threads holds; those of a process without threads cannot.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
_LOG = logging.getLogger("dpmerge.explorer")


class Worker:
    """One process, started when it is first needed, and again after it was killed. It ends with the server."""

    def __init__(self, portfolio: Portfolio, niceness: int) -> None:
        self._portfolio, self._niceness = portfolio, niceness
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None

    def account(self, asked: Asked) -> Guarantee:
        """Wait for the answer; one question at a time."""
        if self._process is None or self._pipe is None or not self._process.is_alive():
            self._pipe, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._portfolio, self._niceness), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(asked)
            answer: Guarantee | DpmergeError | None = self._pipe.recv()
        except (EOFError, OSError):
            self._process = None  # it may seem alive for a moment
            raise JobError("the process that accounted for this merge was stopped; ask again") from None
        if answer is None:
            raise RuntimeError("a worker failed; its traceback is above")
        if isinstance(answer, DpmergeError):
            raise answer
        return answer

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _serve(pipe: Connection, portfolio: Portfolio, niceness: int) -> None:
    """Answer until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    os.nice(niceness)
    with suppress(EOFError, OSError):
        while True:
            asked: Asked = pipe.recv()
            answer: Guarantee | DpmergeError | None = None
            try:
                answer = asked.answer(portfolio)
            except DpmergeError as error:
                answer = error
            except Exception:
                _LOG.exception("accounting for a merge failed")
            pipe.send(answer)
