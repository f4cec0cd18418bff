"""The HTTP API: thin routes over the portfolio's state, jobs and releases. Errors are sent as problem+json."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import LifoQueue
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Path as InPath, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

import dpmerge
from dpmerge.explorer import answers, requests, work
from dpmerge.explorer.computing import Caller, Lane
from dpmerge.explorer.jobs import Job, Jobs, unattended
from dpmerge.explorer.pages import add_pages, handle_errors
from dpmerge.explorer.plans import TARGETS
from dpmerge.explorer.portfolio_state import Asked, PortfolioState
from dpmerge.explorer.releases import Releases, check_folder
from dpmerge.explorer.security import Door, Guard
from dpmerge.explorer.telling import guarantee_answer, landscape_answer
from dpmerge.explorer.workers import AccountingInTurn, Worker
from dpmerge.files import finite_or_null
from dpmerge.planning import Utilities
from dpmerge.rules import DEFAULT_ACCOUNTING, GLOSSARY, Accounting, Guarantee, Target, require_wanted

R = TypeVar("R")
DELTA = 1e-5  # plans for this δ are computed from the start
_THREADS = 1  # that compute for everybody, and as many for the token: more would hold up the event loop
_WORKERS, _OWN_WORKERS = 2, 1  # processes that account for merges
_NICE, _OWN_NICE, _PLANNING_NICE = 5, 0, 10  # of these processes: the server's own answers come first
_LISTENERS, _OWN_LISTENERS = 32, 8
_PROBLEM = {
    "description": "A problem (RFC 9457)",
    "content": {"application/problem+json": {"schema": answers.Problem.model_json_schema()}},
}
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"description": "Events", "content": {"text/event-stream": {}}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 403, 404, 409, 413, 415, 421, 422, 429), _PROBLEM)
DeltaQuery = Annotated[float, Query(ge=requests.SMALLEST_DELTA, lt=1, description="δ", allow_inf_nan=False)]
AnyDeltaQuery = Annotated[bool, Query(description="accept a δ above 0.01")]
ModelsQuery = Annotated[Sequence[str], Query(max_length=3, description="two or three models; by default chosen by the server")]
JobId = Annotated[str, InPath(max_length=64)]
Who = Annotated[Caller, Depends(Caller.of)]


@dataclass(frozen=True)
class Explorer:
    """The server's settings. Releases are written to `releases`, by default `.releases` in the portfolio.

    `delta` is the one to begin with: by default the ledger's, so that its budget and the page speak of the same.
    """

    portfolio: Path
    door: Door = field(default_factory=Door)
    ledger: str | None = None
    utility: str | None = None
    accounting: Accounting = DEFAULT_ACCOUNTING
    allow_release: bool = False
    releases: Path | None = None
    delta: float | None = None
    targets: int = TARGETS

    def app(self) -> Guard:
        """The ASGI application with its access checks; raises if portfolio, utilities or ledger are invalid."""
        server = _Server(self)

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            server.state.plans(server.delta)
            yield
            server.jobs.cancel_all()
            server.state.close()
            for worker in server.workers:
                worker.kill()
            await unattended(server.jobs.finish_lasting)

        app = FastAPI(
            title="dpmerge explorer",
            version="1",
            description="Guarantees of merged models. A null ε means no finite ε.",
            lifespan=lifespan,
            responses=_PROBLEMS,
            docs_url=None,
            redoc_url=None,
        )
        handle_errors(app)
        for routes in (_reading, _jobs, _releasing):
            app.include_router(routes(server))
        add_pages(app)
        guard = Guard(app, self.door)
        server.relieve(lambda: guard.busy)
        return guard


class _Server:
    """State shared by all routes."""

    def __init__(self, explorer: Explorer) -> None:
        portfolio = dpmerge.Portfolio(explorer.portfolio)
        utility = Utilities.asked(portfolio, explorer.utility, None)
        self.explorer = explorer
        self.state = PortfolioState(portfolio, utility, explorer.accounting, explorer.targets)
        folder = explorer.releases or explorer.portfolio / ".releases"
        check_folder(folder, explorer.allow_release)
        self.releases = Releases(self.state, folder, explorer.ledger)
        self.delta = explorer.delta or self.releases.delta or DELTA
        self.jobs = Jobs()
        self.listeners = {False: 0, True: 0}
        self._computing, self._reading = (Lane([None] * _THREADS, [None] * _THREADS) for _ in range(2))
        everybodys, own = [Worker(_NICE) for _ in range(_WORKERS)], [Worker(_OWN_NICE) for _ in range(_OWN_WORKERS)]
        self._accounting = Lane(everybodys, own)
        self._planning = [Worker(_PLANNING_NICE) for _ in range(_WORKERS)]
        self.workers = [*everybodys, *own, *self._planning]

    def relieve(self, busy: Callable[[], bool]) -> None:
        """While the server is busy, its threads account in other processes."""
        workers: LifoQueue[Worker] = LifoQueue()
        for worker in self._planning:
            workers.put(worker)
        self.state.planning = AccountingInTurn.of(self.state.accounting, busy, workers)

    async def compute(self, who: Caller, function: Callable[..., R], *arguments: Any) -> R:
        """Run the function in a thread, a few at a time; the arguments say what is asked."""
        return await self._computing.run(who, (function, *arguments), lambda _: function(*arguments))

    async def consult(self, who: Caller, function: Callable[..., R], *arguments: Any) -> R:
        """Like `compute`, with its own places: another process may lock the ledger, and accounting must not wait for it."""
        return await self._reading.run(who, object(), lambda _: function(*arguments))

    async def account(self, who: Caller, asked: Asked) -> Guarantee:
        """The guarantee of a merge: known, or computed in another process and kept, also if nobody waits for it any more."""
        state = self.state
        if (known := state.known(asked)) is not None:
            return known

        def compute(worker: Worker) -> Guarantee:
            return state.keep(asked, worker.guarantee(asked.built(state.portfolio), asked.accounting, asked.target))

        return await self._accounting.run(who, asked, compute)

    def listen(self, job: Job, who: Caller) -> AsyncIterator[str]:
        """A job's events. The number of listeners is limited, to leave room for other requests."""
        if self.listeners[who.owner] >= (_OWN_LISTENERS if who.owner else _LISTENERS):
            raise HTTPException(429, "too many clients are following jobs; poll the job's state instead")
        self.listeners[who.owner] += 1

        async def events() -> AsyncIterator[str]:
            try:
                async for event in job.events():
                    yield event
            finally:
                self.listeners[who.owner] -= 1

        return events()

    def job(self, name: str) -> Job:
        found = self.jobs.get(name)
        if found is None:
            raise HTTPException(404, "no job with this id; only the most recent finished jobs are kept")
        return found


# --- accounting -------------------------------------------------------------------------------------------------------------


def _reading(server: _Server) -> APIRouter:
    router, state = APIRouter(), server.state

    @router.get("/healthz", response_model=answers.Health)
    async def healthz() -> Any:
        """Whether the server answers."""
        return {"status": "ok", "version": dpmerge.__version__}

    @router.get("/v1/portfolio", response_model=answers.PortfolioAnswer)
    async def portfolio() -> Any:
        """What this server is about, and the words of the page."""
        utility = state.utility
        return {
            "dataset": state.portfolio.models[0].record.dataset,
            "adjacency": state.portfolio.adjacency,
            "delta": server.delta,
            "provenance": "a-priori" if utility is None else utility.provenance,
            "models": state.portfolio.names,
            "may_release": server.explorer.allow_release,
            "has_ledger": server.releases.has_ledger,
            "glossary": GLOSSARY,
        }

    @router.get("/v1/line", response_model=answers.LineAnswer)
    async def line(who: Who, delta: DeltaQuery = DELTA, any_delta: AnyDeltaQuery = False) -> Any:
        """The best known release at every ε: what the slider moves along. Nothing is interpolated."""
        require_wanted(delta, any_delta)
        return JSONResponse(finite_or_null(await server.compute(who, work.line, state.plans(delta, who.owner))))

    @router.get("/v1/models", response_model=answers.ModelsAnswer)
    async def models(who: Who, delta: DeltaQuery = DELTA, any_delta: AnyDeltaQuery = False) -> Any:
        """Each model alone: ε at δ by PLD and RDP, utility, training, warnings."""
        require_wanted(delta, any_delta)
        return {"delta": delta, "models": finite_or_null(await server.compute(who, state.models, delta))}

    @router.post("/v1/account", response_model=answers.GuaranteeAnswer)
    async def account(asked: requests.AccountRequest, who: Who) -> Any:
        """The guarantee of one merge: ε at δ, or δ at ε."""
        require_wanted(asked.delta, asked.any_delta)
        target, how = Target(epsilon=asked.epsilon, delta=asked.delta), asked.accounting(state.accounting)
        merge = Asked(asked.rule, state.portfolio.weights(asked.weights).values, target, how, asked.provenance)
        return finite_or_null(guarantee_answer(await server.account(who, merge)))

    @router.get("/v1/simplex", response_model=answers.SimplexAnswer)
    async def simplex(who: Who, delta: DeltaQuery = DELTA, model: ModelsQuery = (), any_delta: AnyDeltaQuery = False) -> Any:
        """ε at every point of a grid over the weights of two or three models; later calls return more points."""
        require_wanted(delta, any_delta)
        found = await server.compute(who, state.landscape, delta, tuple(model), who.owner)
        return JSONResponse(finite_or_null({"delta": delta, **landscape_answer(found)}))

    @router.post("/v1/plan", response_model=answers.PlanAnswer, responses={202: {"model": answers.JobAnswer}})
    async def plan(asked: requests.PlanRequest, who: Who) -> Any:
        """What may be released for a target, in plain words first. `effort: full` starts a job (202) like `dpmerge plan`."""
        require_wanted(asked.delta, asked.any_delta)
        if asked.effort == "full":
            job = server.jobs.start("plan", partial(work.full_plan, state, asked), asked, owner=who.owner)
            return JSONResponse(job.status(), 202)
        plans = state.plans(asked.delta, who.owner)
        if asked.effort == "exact":
            await server.compute(who, plans.exactly, asked.epsilon)
        elif not plans.ready:
            await server.compute(who, plans.prepare)
        return Response(plans.told(asked.epsilon), media_type="application/json")

    return router


# --- jobs -------------------------------------------------------------------------------------------------------------------


def _jobs(server: _Server) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/frontier", status_code=202, response_model=answers.JobAnswer)
    async def start_frontier(asked: requests.FrontierRequest, who: Who) -> Any:
        """Start a job for utility against ε; its result is what `dpmerge frontier` writes as frontier.json."""
        require_wanted(asked.delta, asked.any_delta)
        draw = partial(work.draw_frontier, server.state, asked)
        return server.jobs.start("frontier", draw, asked, reuse_finished=True, owner=who.owner).status()

    @router.get("/v1/jobs/{job}", response_model=answers.JobAnswer)
    async def job_state(job: JobId) -> Any:
        """A job's progress, and its result once it is done."""
        return server.job(job).status()

    @router.get("/v1/jobs/{job}/events", response_class=StreamingResponse, responses=_EVENTS)
    async def job_events(job: JobId, who: Who) -> StreamingResponse:
        """Server-sent events: `progress` after each change, then one `end`."""
        return StreamingResponse(server.listen(server.job(job), who), media_type="text/event-stream")

    @router.delete("/v1/jobs/{job}", status_code=202, response_model=answers.JobAnswer)
    async def cancel_job(job: JobId) -> Any:
        """Ask a job to stop after its current piece of work. Needs the token."""
        found = server.job(job)
        if found.lasting:
            raise HTTPException(409, "a release that has started cannot be stopped")
        found.cancel()
        return found.status(with_result=False)

    return router


# --- releases ---------------------------------------------------------------------------------------------------------------


def _releasing(server: _Server) -> APIRouter:
    router, releases = APIRouter(), server.releases

    @router.get("/v1/releases", response_model=answers.ReleasesAnswer)
    async def history(who: Who) -> Any:
        """The ledger's entries, and the releases that can be verified here."""
        return finite_or_null(await server.consult(who, releases.listing)) | {"may_release": server.explorer.allow_release}

    @router.get("/v1/budget", response_model=answers.BudgetAnswer)
    async def budget(who: Who) -> Any:
        """What the ledger's budget still allows."""
        found = await server.consult(who, releases.budget)
        if found is None:
            raise HTTPException(404, "this server was started without a ledger")
        return finite_or_null(found)

    @router.post("/v1/releases/preview", response_model=answers.ReleasePreview)
    async def preview(asked: requests.ReleaseRequest, who: Who) -> Any:
        """What a release would write and spend; nothing is written."""
        return finite_or_null(await server.consult(who, releases.preview, asked))

    @router.post("/v1/releases", status_code=202, response_model=answers.JobAnswer)
    async def release(asked: requests.ReleaseRequest, who: Who) -> Any:
        """Start a release job; same code as `dpmerge merge`. Needs the token, and a server that allows releases."""
        if not who.owner:  # already checked by Guard; checked again before a change
            raise HTTPException(401, "this needs the server's token")
        if not server.explorer.allow_release:
            raise HTTPException(403, "this server does not allow releases")
        await server.consult(who, releases.check, asked)  # reject invalid requests before a job starts
        return server.jobs.start("release", partial(work.release, releases, asked), lasting=True, owner=True).status()

    @router.post("/v1/verify", status_code=202, response_model=answers.JobAnswer)
    async def verify(asked: requests.VerifyRequest, who: Who) -> Any:
        """Start a job that rechecks a release's certificate against its files, the portfolio and the ledger."""
        releases.require(asked.name)
        return server.jobs.start("verify", partial(work.verify, releases, asked.name), owner=who.owner).status()

    return router
