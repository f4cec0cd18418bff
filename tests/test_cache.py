"""Answers kept on disk: the same numbers, found again, safely."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpmerge import cache
from dpmerge.cli import app
from dpmerge.errors import JobError
from dpmerge.files import sha256
from dpmerge.profiles import RevealedShiftLaw, ShuffleAsPoisson, run_profile
from dpmerge.profiles.laws import RenyiLaw
from dpmerge.rules import Combination, Guarantee, Joint, Rule, Selection, Tempered, Validated, Validation
from tests.builders import dp_sgd, model, weighted
from tests.release_builders import runs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPMERGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ask_often(question: str, times: int) -> int:
    calls = 0

    def compute() -> list[float]:
        nonlocal calls
        calls += 1
        return [0.1, float("inf"), 5e-324]

    for _ in range(times):
        assert cache.remembered({"q": question}, compute) == [0.1, float("inf"), 5e-324]
    return calls


def test_a_question_is_answered_once(folder: Path) -> None:
    assert ask_often("first", 3) == 1
    assert ask_often("second", 1) == 1
    assert len(cache.cache_entries(folder)) == 2


def test_damaged_and_foreign_entries_are_computed_again(folder: Path) -> None:
    ask_often("first", 1)
    (entry,) = cache.cache_entries(folder)
    for damage in (entry.read_bytes()[:-3], b"", b"garbage", entry.read_bytes().replace(b"0.1", b"0.2")):
        entry.write_bytes(damage)
        assert ask_often("first", 2) == 1


def test_no_answer_outlives_the_code_that_gave_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_often("first", 1)
    monkeypatch.setattr(cache, "code_fingerprint", lambda: "another version")
    assert ask_often("first", 1) == 1


def test_off_unwritable_and_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cache.without_cache():
        assert ask_often("first", 2) == 2
    folder.write_text("a file where the folder should be")
    assert ask_often("first", 2) == 2
    monkeypatch.setenv("DPMERGE_CACHE", "off")
    assert ask_often("first", 2) == 2


def test_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPMERGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/dpmerge")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "dpmerge"


def hammer(folder: str, worker: int) -> int:
    import os

    os.environ["DPMERGE_CACHE"] = folder
    computed = 0
    for round_ in range(200):
        expected = [round_, "x" * 5000]

        def compute(value: list[object] = expected) -> list[object]:
            nonlocal computed
            computed += 1
            return value

        assert cache.remembered({"round": round_}, compute) == expected
    return computed


def test_processes_share_the_folder(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        computed = pool.starmap(hammer, [(str(folder), worker) for worker in range(2)])
    assert 200 <= sum(computed) <= 400
    assert len(cache.cache_entries(folder)) == 200
    assert len(list(folder.glob("??/*"))) == 200  # nothing temporary is left


def kept(folder: Path) -> set[int]:
    return {json.loads(path.read_bytes().partition(b"\n")[2])[0] for path in cache.cache_entries(folder)}


def remember(numbers: Iterable[int], size: int = 10) -> None:
    for number in numbers:
        cache.remembered({"number": number}, lambda number=number: [number, "x" * size])  # type: ignore[misc]


def test_the_folder_is_bounded_and_what_was_read_last_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_FOLDERS", 1)  # all names below begin alike, so one folder has the whole limit
    monkeypatch.setattr(cache, "sha256", lambda data: "00" + sha256(data)[2:])
    monkeypatch.setattr(cache, "_FILES", 5)
    remember(range(5))
    remember([0])  # read again: number 1 is now the one not read for longest
    remember([5, 6])
    assert kept(folder) == {0, 3, 4, 5, 6}
    monkeypatch.setattr(cache, "_MEGABYTES", 16)
    remember([7], size=15_998_000)  # nothing fits beside it
    assert kept(folder) == {7}
    remember([8], size=16_100_000)  # larger than everything together may be
    assert kept(folder) == set()


def test_reads_are_noted_on_file_systems_that_do_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_often("first", 1)
    (entry,) = cache.cache_entries(folder)
    noted: list[tuple[object, int]] = []
    monkeypatch.setattr(os, "utime", lambda path, ns: noted.append((path, ns[0])))
    before = time.time_ns()
    assert ask_often("first", 1) == 0
    assert [path for path, at in noted if at >= before] == [entry]


def test_limits_hold_over_all_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPMERGE_CACHE_FILES", "512")
    remember(range(1500))
    assert 400 < len(list(folder.glob("??/*"))) <= 512
    assert {path.stat().st_mode & 0o777 for path in folder.glob("??/*")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700}


@pytest.mark.parametrize("stated", ["255", "-1", "1e6", "many", "²"])
def test_limits_that_are_no_limits_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    monkeypatch.setenv("DPMERGE_CACHE", "anywhere")
    monkeypatch.setenv("DPMERGE_CACHE_FILES", stated)
    with pytest.raises(JobError, match=f"DPMERGE_CACHE_FILES is '{stated}': give a whole number, at least 256"):
        cache.remembered({}, lambda: pytest.fail("computed"))


def evict_beside_others(folder: str, worker: int) -> None:
    os.environ.update(DPMERGE_CACHE=folder, DPMERGE_CACHE_FILES="256")
    remember(range(1000 * worker, 1000 * worker + 400))
    remember(range(100))


def test_processes_evict_at_the_same_time(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(evict_beside_others, [(str(folder), worker) for worker in range(2)])
    assert 100 < len(list(folder.glob("??/*"))) <= 256 + 2  # each may have written after the other looked


def rules() -> list[Rule]:
    a = dp_sgd("a", sigma=0.8, steps=6, sampling=0.02, batch=20, smoothness=0.2, convex="glm")
    b = dp_sgd("b", sigma=2.0, steps=6, sampling=0.02, batch=20, smoothness=0.2, convex="glm")
    weights = weighted((a, 0.1), (b, 0.9))
    return [
        Selection(weights),
        Selection(weights, ShuffleAsPoisson(0.5)),
        Joint(weights),
        Combination(weights),
        Combination(weights, 0.0),
        Combination(weights, 0.1),
        Combination(weighted((a, 0.1), (b, 0.9 + 1e-16)), 0.1),
        Combination(weighted((a, 0.2), (b, 0.8))),
        Tempered(weights, 0.5),
        Tempered(weights, 0.25),
        Validated(Tempered(weights, 0.25), Validation(100, True), 0.01),
        Validated(Tempered(weights, 0.25), Validation(100, False), 0.01),
        Validated(Tempered(weights, 0.5), Validation(100, True), 0.01),
        Validated(Joint(weights), Validation(100, True), 0.01),
    ]


def test_guarantees_come_back_as_they_were_and_no_two_rules_share_one(folder: Path) -> None:
    fresh: list[Guarantee] = []
    for rule in rules():
        with cache.without_cache():
            fresh.append(rule.guarantee(delta=1e-5))
        assert rule.guarantee(delta=1e-5) == fresh[-1]
    assert [rule.guarantee(delta=1e-5) for rule in rules()] == fresh
    assert len(cache.cache_entries(folder)) == len(fresh)  # the last bit of a weight makes another question


def test_cache_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_often("first", 1)
    (folder / "notes.txt").write_text("somebody else's")
    runner = CliRunner()
    before = json.loads(runner.invoke(app, ["tools", "cache", "--json"]).output)
    assert (before["folder"], before["entries"], before["cleared"]) == (str(folder), 1, False)
    assert before["limits"] == {"entries": 20_000, "bytes": 256_000_000}
    assert "1 answers" in runner.invoke(app, ["tools", "cache", "--clear"]).output
    assert cache.cache_entries(folder) == []
    assert (folder / "notes.txt").exists()
    monkeypatch.setenv("DPMERGE_CACHE", "off")
    assert "off" in runner.invoke(app, ["tools", "cache"]).output


def test_laws_say_everything_in_their_text() -> None:
    """Profiles are known to the cache by their text: nothing in it may be an address or cut short."""
    for adjacency in ("add-remove", "replace-one"):
        many = dp_sgd("m", sigma=1.0, steps=3, sampling=0.1, adjacency=adjacency)
        assert "at 0x" not in repr(run_profile(many).profile)
    rdp = model("r", {"kind": "rdp", "orders": [1.5 + k for k in range(2000)], "values": [0.1] * 2000})
    text = repr(run_profile(rdp).profile)
    assert "..." not in text
    assert isinstance(run_profile(rdp).profile.factors[0][0], RenyiLaw)
    assert "..." not in repr(RevealedShiftLaw(tuple(0.1 * k for k in range(2000)), tuple([1 / 2000] * 2000)))


def test_a_second_plan_computes_nothing(folder: Path, tmp_path: Path) -> None:
    runs(tmp_path, sampling=0.1, batch=100)
    command = [sys.executable, "-m", "dpmerge", "plan", str(tmp_path / "runs"), "--epsilon", "2", "--delta", "1e-5"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    entries = {path: path.stat().st_mtime_ns for path in cache.cache_entries(folder)}
    assert entries
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in cache.cache_entries(folder)} == entries


def test_the_code_of_a_room_that_is_not_there_cannot_count() -> None:
    assert cache.code_fingerprint("planning") != cache.code_fingerprint("tensors")
    with pytest.raises(LookupError, match="no room weights"):
        cache.code_fingerprint("weights")
