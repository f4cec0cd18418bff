"""Settings for the whole suite, the tool's tests and the laboratory's."""

import os
import pkgutil
import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, event

# One thread for each test process: vectors and networks are small, and the suite already uses every core.
for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
# So a test that leaves the number of processes open gets one more, not one for each core: starting them costs most.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")
# Numbers are computed, not remembered; the tests of the cache turn it on.
os.environ["DPMERGE_CACHE"] = "off"
# No test is about a power cut: what the operating system holds is there, also where a process was killed.
os.fsync = os.fstat  # type: ignore[assignment]
# Ledgers of tests are remembered in a folder of this run.
if "DPMERGE_TESTED" not in os.environ:  # the workers of one run share it
    os.environ["DPMERGE_TESTED"] = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpmerge-state-")
# How long an example takes says how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Fixtures that take seconds to make: the tests that share one run in one worker, so that it is made once.
COSTLY = {
    *("papers_result", "full_batch_result", "replace_one_result", "checkpoints_result", "result", "means", "composed"),
    *("cluster", "attack", "checkpoint", "job", "three", "client", "folders", "ranks", "database", "offline"),
}

# How the names of the tests begin whose lines are counted (pyproject.toml: tool.coverage.run): tests of profiles, rules and
# release that together run nearly every line of these rooms. Counting makes a test up to twice as slow; in others it is off.
MEASURED = (
    *("absorption", "adaptive", "arithmetic", "gaussian", "hidden", "ladder", "ledger", "release", "rules", "shifts"),
    *("sweep_cost", "tuning_cost", "verify", "publishing"),
)


@event.listens_for(Engine, "connect")
def without_syncs(connection: object, _: object) -> None:
    """SQLite's own, as those above."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def measured(item: pytest.Item) -> bool:
    if item.path.parent.parent.name == "lab" or item.get_closest_marker("uncounted") is not None:
        return False
    return item.path.stem.removeprefix("test_").startswith(MEASURED)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "chromium" in fixtures:  # two groups for the page, so that no worker is left alone with it
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{'server' in fixtures}"))
        elif COSTLY & fixtures:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@contextmanager
def uncounted() -> Iterator[None]:
    """No lines are counted meanwhile. In a worker pytest-cov starts two counters, and its own `no_cover` stops only one."""
    stopped: list[Coverage] = []
    while (counter := Coverage.current()) is not None:
        counter.stop()
        stopped.append(counter)
    try:
        yield
    finally:
        for counter in reversed(stopped):
            counter.start()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Count the lines that an import runs in the three rooms, and none of what else the tests import."""
    if hasattr(session.config, "workerinput"):
        for room in ("profiles", "rules", "release"):
            for module in pkgutil.iter_modules(import_module(f"dpmerge.{room}").__path__, f"dpmerge.{room}."):
                import_module(module.name)
        with uncounted():
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count lines in the measured tests alone."""
    if measured(item):
        return (yield)
    with uncounted():
        return (yield)
