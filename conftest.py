"""Settings for the whole suite, the tool's tests and the laboratory's."""

import os

import pytest

# One BLAS thread for each test process: vectors are short, and the suite already uses every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Numbers are computed, not remembered; the tests of the cache turn it on.
os.environ["DPMERGE_CACHE"] = "off"

# Fixtures that take seconds to make: the tests that share one run in one worker, so that it is made once.
COSTLY = {
    *("papers_result", "full_batch_result", "checkpoints_result", "result", "means", "composed"),
    *("cluster", "attack", "checkpoint", "job", "three"),
}

# Tests whose lines are counted (pyproject.toml: tool.coverage.run): those of profiles, rules and release. Counting costs time,
# and what the rest of the suite happens to run says nothing about what is tested.
MEASURED = {
    "test_adaptive_releases",
    "test_attacks",
    "test_cache",
    "test_gaussian",
    "test_ledger",
    "test_ledger_accounting",
    "test_loss_distributions",
    "test_moments",
    "test_provenance",
    "test_reference_values",
    "test_release",
    "test_releases",
    "test_rules",
    "test_run_identity",
    "test_shifts",
    "test_transport_poisson",
    "test_transport_refutations",
    "test_tuning_cost",
    "test_verify",
}


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem not in MEASURED:
            item.add_marker(pytest.mark.no_cover)
        if COSTLY.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
