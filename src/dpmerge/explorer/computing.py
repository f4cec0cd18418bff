"""Who computes when: a few at a time, with places kept for the token, and none for callers that hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dpmerge.explorer.jobs import unattended
from dpmerge.explorer.security import AUTHORISED, Receive
from dpmerge.explorer.workers import Worker

P = TypeVar("P")
R = TypeVar("R")
_WAITING = 256  # computations without the token that may be under way or wait for their turn, in each lane
_GRACE_S = 5.0  # for a computation whose callers hung up: most end sooner, and then the answer is kept


@dataclass(frozen=True)
class Caller:
    """Whoever waits for an answer: whether they sent the token, and how the server learns that they hung up."""

    owner: bool
    receive: Receive

    @classmethod
    async def of(cls, request: Request) -> Caller:
        return cls(bool(request.scope.get(AUTHORISED)), request.receive)

    async def hung_up(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


@dataclass
class _UnderWay:
    """One computation, and how many callers wait for it."""

    task: asyncio.Task[Any]
    callers: int = 0


class Lane(Generic[P]):
    """Places for one kind of work: some for everybody, others for the token alone.

    The same question is computed once for all who ask it meanwhile. What all its callers hung up on never begins; what has
    begun keeps its place until it ends, and a process is killed if that takes more than a few seconds.
    """

    def __init__(self, everybody: Sequence[P], owner: Sequence[P]) -> None:
        self._free: dict[bool, asyncio.LifoQueue[P]] = {}  # the last used first: it may still know what it needs
        for owned, places in ((False, everybody), (True, owner)):
            self._free[owned] = asyncio.LifoQueue()
            for place in places:
                self._free[owned].put_nowait(place)
        self._under_way: dict[tuple[bool, Hashable], _UnderWay] = {}

    async def run(self, caller: Caller, question: Hashable, work: Callable[[P], R]) -> R:
        """The answer to the question, which the work computes in a thread and at one of the places."""
        key = (caller.owner, question)
        shared = self._under_way.get(key)
        if shared is None:
            if not caller.owner and sum(not owned for owned, _ in self._under_way) >= _WAITING:
                raise HTTPException(429, "too many computations wait; try again, or send the token", {"retry-after": "1"})
            shared = self._under_way[key] = _UnderWay(asyncio.ensure_future(self._in_turn(caller.owner, work)))
            shared.task.add_done_callback(lambda task: self._forget(key, task))
        shared.callers += 1
        gone = asyncio.ensure_future(caller.hung_up())
        try:
            await asyncio.wait((shared.task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not shared.task.done():
                raise ClientDisconnect
            found: R = shared.task.result()
            return found
        finally:
            gone.cancel()
            shared.callers -= 1
            if shared.callers == 0 and not shared.task.done():
                shared.task.cancel()
                self._forget(key, shared.task)  # whoever asks now must not get what is being cancelled

    async def _in_turn(self, owned: bool, work: Callable[[P], R]) -> R:
        places = self._free[owned]
        place = await places.get()
        running = asyncio.ensure_future(unattended(partial(work, place)))

        def free(task: asyncio.Task[R]) -> None:
            places.put_nowait(place)
            if not task.cancelled():  # at the server's end
                task.exception()  # somebody has seen it, or nobody waits for it any more

        running.add_done_callback(free)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if isinstance(place, Worker):
                asyncio.get_running_loop().call_later(_GRACE_S, lambda: running.done() or place.kill())
            raise

    def _forget(self, key: tuple[bool, Hashable], task: asyncio.Task[Any]) -> None:
        shared = self._under_way.get(key)
        if shared is not None and shared.task is task:
            del self._under_way[key]
