"""The work of the server's jobs: plan, frontier, release, verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import dpmerge
from dpmerge.explorer.jobs import Job
from dpmerge.explorer.plans import PLANNED, Plans
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.explorer.releases import Releases
from dpmerge.explorer.requests import FrontierRequest, PlanRequest, ReleaseRequest
from dpmerge.explorer.telling import line_point, plan_answer
from dpmerge.files import finite_or_null
from dpmerge.planning import Plan, frontier


def full_plan(state: PortfolioState, asked: PlanRequest, job: Job) -> dict[str, Any]:
    found = dpmerge.plan(
        state.portfolio,
        epsilon=asked.epsilon,
        delta=asked.delta,
        utility=state.utility,
        rules=PLANNED,
        accounting=state.planning,
        progress=job.report,
    )
    state.plans(asked.delta).learn(found.options)  # so that quick plans include it
    return with_progress(found, 1, 1)


def with_progress(found: Plan, done: int, total: int) -> dict[str, Any]:
    """A plan, with the progress of the precomputed plans it was chosen from."""
    plain: dict[str, Any] = finite_or_null({**plan_answer(found), "warming": {"done": done, "total": total}})
    return plain


def line(plans: Plans) -> dict[str, Any]:
    """The best known at every ε, and the progress of the knob's points."""
    # Before what is known: what is counted is among it.
    progress = {"done": plans.turned, "refined": plans.refined, "total": plans.knob.total}
    known = plans.known
    points, worst = [line_point(option) for option in known.front], min(known.utilities.values())
    found = {"delta": plans.delta, "range": plans.range, "worst": worst, "points": points}
    return {**found, **progress}


def draw_frontier(state: PortfolioState, asked: FrontierRequest, job: Job) -> Any:
    found = frontier(
        state.portfolio,
        delta=asked.delta,
        epsilons=asked.epsilons,
        accounting=state.planning,
        utility=state.utility,
        edge_points=asked.points,
        run=job.map,
        progress=job.report,
    )
    return finite_or_null(found.as_dict())


def release(releases: Releases, asked: ReleaseRequest, job: Job) -> dict[str, Any]:
    job.report("merging")
    made = releases.release(asked, lambda done, total: job.report(done=done, total=total))
    certificate = made.certificate.model_dump(mode="json", by_alias=True)
    return {"name": made.folder.name, "certificate": certificate, "notes": list(made.notes)}


def verify(releases: Releases, name: str, job: Job) -> dict[str, Any]:
    job.report("rechecking")
    found = releases.verify(name)
    return {"name": name, "code": found.code, "sentence": found.sentence, **asdict(found)}
