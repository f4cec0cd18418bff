"""Schemathesis against the explorer's own description: whatever is sent, no answer is a 5xx, and each is as described."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import ledger_builders
from tests.browser import Server, serving
from tests.effort import EFFORT
from tests.release_builders import WEIGHTS, runs
from tools.page import api_types

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BOUNDED = settings(
    max_examples=3 * EFFORT,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("schema")
    runs(folder)
    ledger_builders.new(folder / "ledger.db", epsilon=1000.0)
    with serving(folder, targets=2, allow_release=True, ledger=str(folder / "ledger.db")) as found:
        yield found


@pytest.fixture(scope="module")
def job(server: Server) -> str:
    """A job that has ended: what is made up would never be its id."""
    asked: dict[str, Any] = {"epsilons": [0.5, 1.0], "points": 2}
    with requests.Session() as session:
        started = session.post(f"{server.url}v1/frontier", json=asked, timeout=60).json()
        while (found := session.get(f"{server.url}v1/jobs/{started['id']}", timeout=60).json())["state"] == "running":
            time.sleep(0.05)
    assert found["state"] == "done"
    return str(found["id"])


def operations(server: Server) -> dict[str, Any]:
    """Every route of the description, by method and path."""
    schema = schemathesis.openapi.from_url(f"{server.url}openapi.json")
    found: dict[str, Any] = {}
    for one in schema.get_all_operations():
        assert isinstance(one, Ok), one
        found[one.ok().label] = one.ok()
    return found


def takes_something(operation: Any) -> bool:
    return bool(operation.body) or any(True for _ in operation.iter_parameters())


def fuzz(server: Server, operation: Any, mode: GenerationMode, *, token: bool, job: str | None = None) -> set[int]:
    """Send what fits the description, or what does not, and check every answer; the statuses that came back.

    With a job, ids and weights are replaced by real ones, and any δ is asked for, without which little would get past the
    first question.
    """
    seen: set[int] = set()
    strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
    headers = {"Authorization": f"Bearer {server.token}"} if token else {}
    with requests.Session() as session:

        @BOUNDED
        @given(strategy)
        def send(case: Any) -> None:
            if job is not None:
                _make_real(case, job)
            response = case.call(session=session, headers=headers, timeout=60)
            for _ in range(50):
                if response.status_code != 429:  # the queue is full: it empties while we wait
                    break
                time.sleep(0.1)
                response = case.call(session=session, headers=headers, timeout=60)
            case.validate_response(response, checks=CHECKS)
            seen.add(response.status_code)

        send()
    return seen


def _make_real(case: Any, job: str) -> None:
    if "job" in case.path_parameters:
        case.path_parameters["job"] = job
    if isinstance(case.body, dict) and "weights" in case.body:
        case.body = {**case.body, "weights": WEIGHTS}
        for settled in ("provenance", "assume_smoothness"):  # most rules take one provenance, and no smoothness
            case.body.pop(settled, None)
    if isinstance(case.body, dict) and "delta" in case.body:
        case.body = {**case.body, "any_delta": True}
    if isinstance(case.body, dict) and case.path.endswith("/account"):
        case.body = {**case.body, "delta": 1e-5, "epsilon": None}  # one of them is asked for
    if isinstance(case.body, dict) and case.path.endswith("/preview"):
        case.body["name"] = "never-released"


def test_what_fits_the_description_is_answered(server: Server, job: str) -> None:
    found = operations(server)
    assert {"GET /healthz", "POST /v1/plan", "POST /v1/releases", "GET /v1/jobs/{job}/events"} <= set(found)
    for label, operation in found.items():
        made_up = fuzz(server, operation, GenerationMode.POSITIVE, token=True)
        real = fuzz(server, operation, GenerationMode.POSITIVE, token=True, job=job)
        assert any(status < 300 for status in made_up | real), f"{label} was never reached: {made_up | real}"


def test_what_does_not_fit_is_refused(server: Server) -> None:
    for label, operation in operations(server).items():
        if takes_something(operation):
            seen = fuzz(server, operation, GenerationMode.NEGATIVE, token=True)
            if operation.body:  # elsewhere only a parameter that nobody knows may be too much, and is ignored
                assert min(seen) >= 400, f"{label} took what it should not"


def test_without_the_token_nothing_is_changed(server: Server, job: str) -> None:
    for label, operation in operations(server).items():
        seen = fuzz(server, operation, GenerationMode.POSITIVE, token=False, job=job)
        if label == "POST /v1/releases" or operation.method.upper() not in ("GET", "POST"):
            assert seen == {401}, label


def test_a_server_error_would_be_found(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dpmerge.explorer.releases.Releases.budget", fail)
    with pytest.raises(FailureGroup, match="Server error"):
        fuzz(server, operations(server)["GET /v1/budget"], GenerationMode.POSITIVE, token=True)


def test_the_page_is_checked_against_the_types_of_this_api() -> None:
    assert api_types.PLACE.read_text() == api_types.declarations(), "run python -m tools.page.api_types"
