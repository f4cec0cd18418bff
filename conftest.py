"""Settings for the whole suite, the tool's tests and the laboratory's."""

import os

import pytest
from hypothesis import HealthCheck, settings

# One BLAS thread for each test process: vectors are short, and the suite already uses every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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

# Tests whose lines are not counted (pyproject.toml: tool.coverage.run). Counting costs time, and what these happen to run of
# profiles, rules and release says nothing about whether it is tested.
UNMEASURED = ("audit", "browser", "explor", "figures", "jobs", "record", "report", "tensors", "train", "violations", "watchdog")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.parent.name == "lab" or item.path.stem.removeprefix("test_").startswith(UNMEASURED):
            item.add_marker(pytest.mark.no_cover)
        if COSTLY.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
