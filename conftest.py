"""Settings for the whole suite, the tool's tests and the laboratory's."""

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# One BLAS thread for each test process: vectors are short, and the suite already uses every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# So a test that leaves the number of processes open gets one more, not one for each core: starting them costs most.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")
# Numbers are computed, not remembered; the tests of the cache turn it on.
os.environ["DPMERGE_CACHE"] = "off"
# How long an example takes says how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Fixtures that take seconds to make: the tests that share one run in one worker, so that it is made once.
COSTLY = {
    *("papers_result", "full_batch_result", "checkpoints_result", "result", "means", "composed"),
    *("cluster", "attack", "checkpoint", "job", "three", "client", "folders"),
}

# The tests of profiles, rules and release: their lines are counted (pyproject.toml: tool.coverage.run). Counting costs a third
# more time, and what other tests happen to run of these rooms says nothing about whether it is tested.
MEASURED = os.environ.get("H3", "").split()


def measured(item: pytest.Item) -> bool:
    return item.path.stem.removeprefix("test_") in MEASURED


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "chromium" in fixtures:  # two groups for the page, so that no worker is left alone with it
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{'server' in fixtures}"))
        elif COSTLY & fixtures:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Counts no lines of the other tests. pytest-cov's `no_cover` would still count those of their fixtures."""
    counting = item.config.pluginmanager.getplugin("_cov")
    if counting is None or counting.cov_controller is None or measured(item):
        return (yield)
    counting.cov_controller.pause()
    try:
        return (yield)
    finally:
        counting.cov_controller.resume()
