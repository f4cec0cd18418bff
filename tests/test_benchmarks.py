"""Benchmarks measure work: no run finds what an earlier one computed, in memory or on disk."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as program
from benchmarks.accounting import average_of_three
from benchmarks.report import best_time
from dpmerge.cache import cache_folder
from dpmerge.profiles import Profile, monotone_pmfs
from dpmerge.rules import Combination

FOLDER = Path(program.__file__).parent


def test_every_run_computes_its_guarantee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPMERGE_CACHE", str(tmp_path))
    first = average_of_three()
    assert list(tmp_path.rglob("*"))  # it is kept
    computed: list[int] = []
    original = Combination._guarantee

    def counted(self: Any, *arguments: Any) -> Any:
        computed.append(Profile.cumulants.cache_info().currsize + len(monotone_pmfs._held))
        assert cache_folder() is None
        return original(self, *arguments)

    monkeypatch.setattr(Combination, "_guarantee", counted)
    seconds, again = best_time(average_of_three, 3)
    assert computed == [0, 0, 0] and seconds > 0
    assert again == first


def test_benchmarks_are_processes_of_their_own_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, str]] = []

    class Done:
        returncode = 0

    def run(command: list[str], env: dict[str, str], check: bool) -> Done:
        started.append((command[-1], env["DPMERGE_CACHE"]))
        return Done()

    monkeypatch.setattr("subprocess.run", run)
    assert program.main([]) == 0
    assert started == [(name, "off") for name in program.ALL]


def test_what_is_timed_in_this_process_is_timed_with_empty_caches() -> None:
    """`best_time` alone reads the clock for dpmerge's functions; other readings are of processes, servers and pools."""
    allowed = {"report.py": {"best_time"}, "weights.py": {"_timed", "simplex_of_combinations", "second_plan"}}
    for path in FOLDER.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            elsewhere = path.name in ("explorer.py", "gpu.py", "merging.py", "training.py")
            if isinstance(function, ast.FunctionDef) and not elsewhere:
                reads = any(isinstance(node, ast.Attribute) and node.attr == "perf_counter" for node in ast.walk(function))
                assert not reads or function.name in allowed.get(path.name, set()), f"{path.name}: {function.name}"
