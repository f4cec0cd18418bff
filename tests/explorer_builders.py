"""Explorers for tests: a small portfolio in closed form behind a client that is this machine's browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dpmerge.explorer import Door, Explorer
from dpmerge.planning import simplex
from dpmerge.records import Portfolio
from tests.release_builders import runs

TOKEN = "a-token-for-tests-0123456789"
HOME = "http://127.0.0.1:8710"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
DELTA = 1e-5
USUAL = simplex._STEPS[3]


@contextmanager
def coarse() -> Iterator[None]:
    """Triangles of 66 points instead of 231: every explorer accounts for all of them, twice."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(simplex._STEPS, 3, 0.1)
        yield


@contextmanager
def explorer(folder: Path, *, door: Door | None = None, base: str = HOME, **options: Any) -> Iterator[TestClient]:
    """A client of an explorer over three full-batch runs."""
    if not (folder / "runs").exists():
        runs(folder)
    app = Explorer(folder / "runs", door or Door(token=TOKEN), **{"targets": 3, **options}).app()
    with coarse(), TestClient(app, base_url=base) as client:
        yield client


def portfolio(folder: Path) -> Portfolio:
    return Portfolio(folder / "runs")


def warm(client: TestClient, delta: float = DELTA) -> dict[str, Any]:
    """A plan once everything that is made beforehand is there."""
    for _ in range(600):
        found: dict[str, Any] = client.post("/v1/plan", json={"epsilon": 1.0, "delta": delta}).json()
        if found["warming"]["done"] == found["warming"]["total"]:
            return found
        time.sleep(0.05)
    raise AssertionError("plans in the background did not end")


def finished(client: TestClient, path: str, asked: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The result of a job that has to be done."""
    started = client.post(path, json=asked, headers=headers)
    assert started.status_code == 202, started.text
    job = ended(client, started.json())
    assert job["state"] == "done", job
    result: dict[str, Any] = job["result"]
    return result


def ended(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it runs no more."""
    for _ in range(600):
        found: dict[str, Any] = client.get(f"/v1/jobs/{job['id']}").json()
        if found["state"] != "running":
            return found
        time.sleep(0.05)
    raise AssertionError("the job did not end")
