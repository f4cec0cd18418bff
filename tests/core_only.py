"""A pytest plugin for an environment that has the core alone (`make test-oldest`): what needs more is skipped, with a reason.

Only an import of something that an extra brings skips a test, or an error in which dpmerge itself says what to install, also
where an assertion quotes it. In other environments a missing package fails, so no test is lost unseen.
"""

import re
from collections.abc import Generator
from itertools import chain

import pytest

from dpmerge.errors import DpmergeError
from tools.lock import groups

# Import names of what the extras bring: those of the packages, but for two, and two that other packages bring.
_ASKED = chain(*(asked for group, asked in groups().items() if group != "core"))
MORE = {re.split(r"[^\w-]", asked)[0].replace("-", "_") for asked in _ASKED} - {"dpmerge"}
MORE |= {"dpmerge_lab", "sklearn", "mlflow", "requests", "nbformat"}
ASKS_FOR_MORE = re.compile(r"install dpmerge\[\w+\]|more come with the laboratory")


def _needs(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name in MORE:
        return f"needs {error.name}, which is no part of the core"
    if isinstance(error, (DpmergeError, AssertionError)) and (asked := ASKS_FOR_MORE.search(str(error))):
        return f"needs more than the core: {asked[0]}"
    return None


def _skipping() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        if reason := _needs(error):
            pytest.skip(reason, allow_module_level=True)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that imports more than the core at its top."""
    report = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and (reason := _needs(call.excinfo.value.__cause__ or call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    return report
