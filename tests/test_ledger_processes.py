"""Ledgers among processes: crashes, concurrent releases, and a real PostgreSQL server."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from sqlalchemy import event

from dpmerge.errors import BudgetExceeded, CheckpointError, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release, unfinished, verify
from tests import builders
from tests.ledger_builders import PRECISE, THREE, command, drawn, joint, names_in, new, planned, three, total, written
from tests.ledger_workers import DELTA, wait_for
from tests.postgresql_server import Server, sql, started_server

ROOT = Path(__file__).parent.parent
RELEASING = sys.modules[release.__module__]  # the module, whose name the package gives to its function
MAKING = sys.modules["dpmerge.release.making"]
ENTERING = sys.modules["dpmerge.release.entering"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# --- other processes --------------------------------------------------------------------------------------------------


def worker(verb: str, *arguments: str | Path, reached: Path | None = None) -> subprocess.Popen[str]:
    """Another process at work on a ledger (`tests/ledger_workers.py`)."""
    environment = {**os.environ, "REACHED": str(reached)}
    line = [sys.executable, "-m", "tests.ledger_workers", verb, *map(str, arguments)]
    return subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def results(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    found: list[str] = json.loads(said)
    return found


@pytest.mark.parametrize("point, state", [("stall-before-rename", "absent"), ("stall-after-rename", "present")])
def test_a_release_that_was_killed_is_voided_or_stands(tmp_path: Path, file: Path, point: str, state: str) -> None:
    """A folder that still has its temporary name is the proof that nothing was seen, whoever writes beside it meanwhile."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    folder, out = tmp_path / "p", tmp_path / "out"
    out.mkdir()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    with worker(point, file, folder, out, reached=tmp_path / "reached") as process:
        try:
            wait_for(tmp_path / "reached")
            left = {path.name.partition(".dpmerge-proof")[0] for path in out.iterdir()}
            assert left == ({".released-0"} if state == "absent" else {"released-0"})
            # It lives: nothing is to be recovered, and it counts already.
            assert ledger.recover() == []
            assert [entry.number for entry in unfinished(ledger.history())] == [1]
            assert total(ledger) == pytest.approx(joint("a"), rel=PRECISE)
            assert "entry 1 is under way; it counts" in command("ledger", "show", str(file))
            with pytest.raises(LedgerError, match="has its output at" if state == "present" else "entry 1 is still under way"):
                ledger.void(1, "nobody saw it")
        finally:
            process.kill()
        # Dead, but not yet looked after by its parent: a zombie.
        until = time.monotonic() + 20
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)
        shown = {
            "absent": "entry 1 was interrupted; it counts",
            "present": f"entry 1 was interrupted after its release had appeared at {out / 'released-0'}; it counts, and",
        }
        while "is under way" in (said := " ".join(command("ledger", "show", str(file)).split())):
            assert time.monotonic() < until  # its threads hold the lock until they end too
        assert shown[state] in said
        release(portfolio, choice, out / "beside")  # without the ledger: it clears away tensors, and leaves the proof
        notes = {
            "absent": "entry 1 was interrupted before anything of it was seen: it was voided",
            "present": "entry 1 was interrupted after its release had appeared: it was completed by the certificate there",
        }
        assert ledger.recover() == [notes[state]]
    assert process.returncode == -signal.SIGKILL
    assert ledger.recover() == []
    closing = ledger.history()[-1]
    assert (closing.kind, closing.content["of"]) == ("voided" if state == "absent" else "completed", 1)
    assert unfinished(ledger.history()) == []
    assert {path.name for path in out.iterdir()} == {"beside"} | ({"released-0"} if state == "present" else set())
    release(portfolio, choice, out / "next", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("a", "b") if state == "present" else joint("b"), rel=PRECISE)
    history = command("ledger", "history", str(file))
    told = {"absent": "voided entry 1: it was interrupted before", "present": "completed entry 1"}
    assert told[state] in " ".join(history.split())


def test_a_proof_from_before_a_power_failure_is_none(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that was seen may be lost with the power."""
    ledger = new(file)
    proof = tmp_path / f".out.dpmerge-proof-1-{'0' * 16}"
    proof.mkdir()
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "boot": "before"})
    ledger.enter(replace(planned(THREE, c=1.0), temporary=str(proof)))
    assert "it stands and counts (void it, with the reason, if nothing of it was ever seen)" in ledger.recover()[0]
    assert ledger.history()[-1].kind == "recovered"
    assert proof.exists()


def test_recovery_removes_only_folders_of_its_own(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, precious = new(file), tmp_path / "precious"
    precious.mkdir()
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "started": "1"})
    ledger.enter(replace(planned(THREE, c=1.0), temporary=str(precious)))
    assert "stands" in ledger.recover()[0]
    assert precious.exists()


def test_nobody_removes_the_folder_of_a_maker_that_has_just_made_it(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is locked a folder looks abandoned; whoever takes it for that must not remove it once its maker has begun."""
    portfolio, ledger, beside = written(tmp_path / "p"), new(file, epsilon=30.0), Ledger(file)
    looked, begun, flock, history, enter = threading.Event(), threading.Event(), fcntl.flock, beside.history, ledger.enter

    def asked() -> list[Any]:
        looked.set()
        begun.wait(0.5)
        return history()

    other = threading.Thread(target=lambda: ENTERING._remove_left(beside, tmp_path))

    def lock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not looked.is_set():
            other.start()
            assert looked.wait(20)
        flock(descriptor, operation)

    def entering(*arguments: Any) -> Any:
        begun.set()
        other.join(20)
        return enter(*arguments)

    monkeypatch.setattr(beside, "history", asked)
    monkeypatch.setattr(ledger, "enter", entering)
    monkeypatch.setattr("dpmerge.tensors.folder.fcntl.flock", lock)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert looked.is_set() and not other.is_alive()
    assert verify(made.folder, portfolio=portfolio, ledger=ledger).broken == []
    assert [path.name for path in tmp_path.iterdir() if "dpmerge-proof" in path.name] == []


# --- releases that failed ---------------------------------------------------------------------------------------------

LIMITED = """
import resource, signal, sys
from pathlib import Path
from dpmerge.errors import DpmergeError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release
portfolio, ledger = Portfolio(sys.argv[1]), Ledger(sys.argv[2])
choice = choose(portfolio, "joint", delta=1e-5, weights=portfolio.weights({"b": 0.5, "c": 0.5}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # the ledger fits, the tensors do not
try:
    release(portfolio, choice, Path(sys.argv[3]), ledger=ledger)
except DpmergeError as fault:
    print(fault)
"""


def test_a_merge_that_does_not_fit_on_the_disk_spends_nothing(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    for name in portfolio.names:
        save_file({"weight": np.ones(1 << 19, dtype=np.float32)}, tmp_path / "p" / name / "model.safetensors")
    line = [sys.executable, "-c", LIMITED, str(tmp_path / "p"), str(file), str(tmp_path / "out")]
    said = subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "out: cannot be written: File too large; nothing was released; entry 1 of" in said
    assert said.rstrip().endswith("was voided, and nothing was spent")
    assert [entry.kind for entry in ledger.history()] == ["release", "voided"]
    assert ledger.history()[1].content["by"] == "proof"
    assert ledger.cumulative() is None
    assert ledger.recover() == []
    assert names_in(tmp_path) == {"p", "ledger.db"}
    assert ledger.summary(ledger.history())["releases"] == 0


def failing(monkeypatch: pytest.MonkeyPatch, what: BaseException) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise what

    monkeypatch.setattr(MAKING, "seal", fail)


def test_a_draw_that_failed_is_done_again_and_not_drawn_again(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the models that can be written would be drawn more often than their weights say."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"a": 0.2, "b": 0.3, "c": 0.5}))
    picks = iter("abcabc")
    monkeypatch.setattr(RELEASING, "draw", lambda _: next(picks))
    with monkeypatch.context() as patched:
        failing(patched, KeyboardInterrupt())
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt) as stopped:
                release(portfolio, choice, tmp_path / "one", ledger=ledger)
            assert "nothing was released" in stopped.value.__notes__[0]
    assert release(portfolio, choice, tmp_path / "one", ledger=ledger).certificate.drawn == "a"
    assert release(portfolio, choice, tmp_path / "two", ledger=ledger).certificate.drawn == "a"  # the fourth pick
    other = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 0.5, "c": 0.5}))
    assert release(portfolio, other, tmp_path / "three", ledger=ledger).certificate.drawn == "b"
    assert total(ledger) == pytest.approx(drawn(choice.weights, choice.weights, other.weights), rel=PRECISE)


def test_a_release_that_may_have_been_seen_stands_and_the_error_says_so(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))

    def moved_away(*_: Any) -> None:
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        raise LedgerError("the disk is gone")

    monkeypatch.setattr(Ledger, "complete", moved_away)
    with pytest.raises(LedgerError, match=r"the disk is gone; entry 1 of .* stands, for the release may have been seen: all"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("b"), rel=PRECISE)


def test_an_entry_that_cannot_be_voided_counts_until_the_next_release(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    with monkeypatch.context() as patched:
        failing(patched, OSError(28, "No space left on device"))
        patched.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "started": "1"})
        patched.setattr(Ledger, "void_unseen", lambda *_: (_ for _ in ()).throw(LedgerError("disk full")))
        with pytest.raises(CheckpointError, match=r"No space left.*could not be voided \(disk full\); it counts until"):
            release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("b"), rel=PRECISE)
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert made.notes == ("entry 1 was interrupted before anything of it was seen: it was voided",)
    assert names_in(tmp_path) == {"p", "ledger.db", "out"}


def test_voiding_by_hand(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    made = release(portfolio, choice, tmp_path / "one", ledger=ledger)
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "started": "1"})
    ledger.enter(replace(planned(portfolio, a=1.0), out=str(tmp_path / "two")))
    ledger.enter(replace(planned(portfolio, c=1.0), out=str(tmp_path / "three")))
    (tmp_path / "three").mkdir()
    refusals = {
        1: "was completed: its release is out",
        2: "entry 2 is not a release",
        9: "entry 9 is not a release",
        4: "has its output at",
    }
    for number, complaint in refusals.items():
        with pytest.raises(LedgerError, match=complaint):
            ledger.void(number, "nobody saw it")
    with pytest.raises(LedgerError, match="a release is voided for a reason"):
        ledger.void(3, "  ")
    ledger.recover()
    (tmp_path / "three").rmdir()
    with pytest.raises(LedgerError, match="left its output, which was there when it was recovered"):
        ledger.void(4, "nobody saw it")
    assert total(ledger) == pytest.approx(joint("a", "b", "c"), rel=PRECISE)
    shown = command("ledger", "void", str(file), "3", "--reason", "the machine was off the net")
    assert "2 releases" in shown
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)
    last = ledger.history()[-1].content
    assert (last["kind"], last["of"], last["by"], last["reason"]) == ("voided", 3, "user", "the machine was off the net")
    with pytest.raises(LedgerError, match="entry 3 was voided already"):
        ledger.void(3, "again")
    # A certificate of an entry that was voided all the same.
    with ledger._transaction(alone=True) as connection:
        entries = ledger._entries(connection)
        ledger._append(connection, entries, {"kind": "voided", "at": "now", "of": 1, "reason": "forged", "by": "user"})
    verdict = verify(made.folder, portfolio=portfolio, ledger=ledger)
    assert verdict.broken == ["entry 1 of the ledger was voided, so nothing counts this release: forged"]


def test_the_next_release_says_what_was_interrupted(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "pid": ended.pid})
    ledger.enter(planned(portfolio, a=1.0))
    monkeypatch.undo()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert made.notes[0].startswith("entry 1 was interrupted (its output is absent); it stands and counts (void it")
    assert [entry.kind for entry in ledger.history()] == ["release", "recovered", "release", "completed"]
    assert total(ledger) == pytest.approx(joint("a", "b"), rel=PRECISE)


def process_here() -> dict[str, Any]:
    from dpmerge.release.processes import this_process

    return this_process()


def test_what_lives_beside_what_was_interrupted_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(file)
    for other in ({"boot": "before"}, {}, {"boot": "before"}):
        monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda other=other: {**process_here(), **other})
        ledger.enter(planned(THREE, c=1.0))
    assert len(ledger.recover()) == 2
    assert [entry.content["of"] for entry in ledger.history()[3:]] == [1, 3]
    assert [entry.number for entry in unfinished(ledger.history())] == [2]


@pytest.mark.parametrize(
    "other, closed",
    [({"host": "another machine"}, False), ({"boot": "before"}, True), ({"started": "1"}, True), ({}, False)],
)
def test_whose_release_is_taken_for_interrupted(
    file: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str], closed: bool
) -> None:
    ledger = new(file)
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), **other})
    ledger.enter(planned(THREE, c=1.0))
    assert bool(ledger.recover()) == closed


# --- containers: other names for this machine, and other numbers for its processes --------------------------------------

ELSEWHERE = [{"started": "1"}, {"host": "container"}, {"namespace": "pid:[1]"}, {"host": "container", "namespace": "pid:[1]"}]


def meanwhile(monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """Do something when the tensors of a release are written, and it has no name yet."""
    seal = MAKING.seal

    def hook(*arguments: Any, **named: Any) -> Any:
        what()
        return seal(*arguments, **named)

    monkeypatch.setattr(MAKING, "seal", hook)


@pytest.mark.parametrize("other", ELSEWHERE)
def test_what_lives_is_told_by_its_lock(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    """Before: looked up in another namespace the maker was dead; its entry was voided, and its release appeared."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), **other})

    def look() -> None:
        assert Ledger(file).recover() == []
        assert "entry 1 is under way" in command("ledger", "show", str(file))
        with pytest.raises(LedgerError, match=r"entry 1 is still under way \(process .*end it first$"):
            Ledger(file).void(1, "nobody saw it", machine_is_gone=True)

    meanwhile(monkeypatch, look)
    assert release(portfolio, choice, tmp_path / "out", ledger=ledger).notes == ()
    assert [entry.kind for entry in ledger.history()] == ["release", "completed"]


@pytest.mark.parametrize("other", ELSEWHERE)
def test_what_was_killed_in_a_container_is_voided(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    """Before: under another name for the machine it counted for ever, and could not be voided by hand."""
    ledger, proof = new(file), tmp_path / f".out.dpmerge-proof-1-{'0' * 16}"
    proof.mkdir()
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), **other})
    ledger.enter(replace(planned(THREE, c=1.0), temporary=str(proof)))
    assert "entry 1 was interrupted" in command("ledger", "show", str(file))
    assert ledger.recover() == ["entry 1 was interrupted before anything of it was seen: it was voided"]
    assert not proof.exists()


def test_a_machine_that_is_gone_is_the_users_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(file)
    for other in ({"host": "another machine", "boot": "its own"}, {}):
        monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda other=other: {**process_here(), **other})
        ledger.enter(planned(THREE, c=1.0))
    line = ("ledger", "void", str(file), "1", "--reason", "the machine burnt")
    with pytest.raises(LedgerError, match=r"as far as can be known here .*say so"):
        ledger.void(1, "the machine burnt")
    assert "1 releases" in command(*line, "--machine-is-gone")
    said = ledger.history()[-1].content
    assert (said["reason"], said["by"], said["machine_is_gone"]) == ("the machine burnt", "user", True)
    with pytest.raises(LedgerError, match="entry 2 is still under way"):  # by this very process
        ledger.void(2, "nobody saw it", machine_is_gone=True)


def test_a_release_that_is_out_counts_though_it_was_voided(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: visible, and counted by nothing."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    meanwhile(monkeypatch, lambda: ledger.void_unseen(ledger.history()[0], "a mistake"))
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert made.notes[0].startswith("entry 1 was voided while this release was made: it is out, so it counts again")
    assert [entry.kind for entry in ledger.history()] == ["release", "voided", "completed"]
    assert total(ledger) == pytest.approx(joint("b"), rel=PRECISE)
    assert verify(made.folder, portfolio=portfolio, ledger=ledger).broken == []


# --- SQLite and PostgreSQL, and many processes ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server of this session's own."""
    with started_server() as started:
        yield started


@pytest.fixture
def postgresql(server: Server, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    return server.new_database(f"test_{abs(hash(request.node.nodeid))}")


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a ledger in each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    url: str = request.getfixturevalue("postgresql")
    return url


def many(count: int) -> Portfolio:
    """So many equal Gaussian mechanisms."""
    return Portfolio(tuple(builders.gaussian(f"m{i}", noise_std=1.0, run=f"run {i}") for i in range(count)))


def test_of_many_concurrent_releases_only_so_many_pass_as_fit(where: str, tmp_path: Path) -> None:
    portfolio, fitting, count = many(5), 3, 5
    written(tmp_path / "p", portfolio)
    (tmp_path / "out").mkdir()
    budget = joint(*portfolio.names[:fitting], portfolio=portfolio)
    ledger = new(where, epsilon=1.0001 * budget)
    said = results(worker("release", where, tmp_path / "p", tmp_path / "out", str(count)))
    assert said.count("released") == fitting, said
    refusals = [text for text in said if text != "released"]
    assert all(text.startswith("BudgetExceeded: ") and "would bring the total to" in text for text in refusals), said
    entries = Ledger(where).history()
    assert sorted(entry.kind for entry in entries) == ["completed"] * fitting + ["release"] * fitting
    assert unfinished(entries) == []
    assert total(ledger) == pytest.approx(budget, rel=PRECISE)
    passed = {f"released-{number}" for number, text in enumerate(said) if text == "released"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == passed
    assert {Path(entry.content["out"]).name for entry in entries if entry.kind == "release"} == passed


def test_of_many_who_make_the_same_ledger_one_does(where: str) -> None:
    said = results(worker("create", where, "6"))
    assert said.count("made") == 1, said
    others = [text for text in said if text != "made"]
    assert all(text.startswith("LedgerError: ") and "never overwritten" in text for text in others), said
    assert Ledger(where).budget.dataset == f"data {said.index('made')}"


def test_readers_do_not_wait_for_a_writer_and_writers_do(where: str, tmp_path: Path) -> None:
    ledger = new(where)
    ledger.enter(planned(THREE, c=1.0))
    entered: list[int] = []
    with worker("hold", where, tmp_path / "done", reached=tmp_path / "reached") as process:
        try:
            wait_for(tmp_path / "reached")
            start = time.monotonic()
            assert len(Ledger(where).history()) == 1
            assert time.monotonic() - start < 5
            writer = threading.Thread(target=lambda: entered.append(ledger.enter(planned(THREE, c=1.0)).number))
            writer.start()
            writer.join(0.3)
            assert entered == []
        finally:
            (tmp_path / "done").touch()
        writer.join(30)
    assert entered == [2]
    assert process.returncode == 0


def test_a_ledger_is_the_same_on_either_database(where: str, tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p", three(dataset="données ε"))
    ledger = new(where, epsilon=5.0, dataset="données ε")
    assert Ledger(where).budget == ledger.budget
    with pytest.raises(LedgerError, match="never overwritten"):
        new(where)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 0.1, "c": 0.9}))
    release(portfolio, choice, tmp_path / "one", ledger=ledger)
    assert total(Ledger(where)) == pytest.approx(drawn(choice.weights), rel=PRECISE)
    refusal = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"a": 1.0}))
    with pytest.raises(BudgetExceeded, match="c or b alone, or a selection with c="):
        release(portfolio, refusal, tmp_path / "two", ledger=ledger)
    assert [entry.kind for entry in Ledger(where).history()] == ["release", "completed"]
    assert json.loads(command("ledger", "export", where))["budget"]["dataset"] == "données ε"
    assert command("ledger", "show", where).startswith(ledger.name)


def test_a_server_that_serves_others_too(postgresql: str) -> None:
    """Behind a pooler, which gives one connection to many, and for a role whose statements must be short and need not last."""
    database = postgresql.partition("?")[0].rpartition("/")[2]
    for setting in ("statement_timeout = '200ms'", "synchronous_commit = off"):
        sql(postgresql, f"ALTER DATABASE {database} SET {setting}")
    ledger, held = new(postgresql, epsilon=30.0), threading.Event()

    def hold() -> None:
        with Ledger(postgresql)._transaction(alone=True):
            held.set()
            time.sleep(0.5)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    assert ledger.enter(planned(THREE, c=1.0)).number == 1
    other.join()
    with ledger._writing() as connection:
        for _ in range(8):
            ledger._header(connection)
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 0
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_tampering_on_postgresql_is_found_too(postgresql: str) -> None:
    ledger = new(postgresql, epsilon=30.0)
    for release_of in (planned(THREE, a=1.0), planned(THREE, b=1.0), planned(THREE, c=1.0)):
        ledger.enter(release_of)
    sql(postgresql, "UPDATE dpmerge_entries SET content = replace(content, 'run b', 'run x') WHERE number = 2")
    with pytest.raises(LedgerError, match="entry 2 was edited"):
        Ledger(postgresql)
    sql(postgresql, "UPDATE dpmerge_entries SET content = replace(content, 'run x', 'run b') WHERE number = 2")
    assert len(Ledger(postgresql).history()) == 3
    sql(postgresql, "DELETE FROM dpmerge_entries WHERE number = 3")
    with pytest.raises(LedgerError, match="entry 3 is missing"):
        ledger.enter(planned(THREE, c=1.0))
    sql(postgresql, "DROP TABLE dpmerge_ledger")
    with pytest.raises(LedgerError, match="holds no ledger"):
        Ledger(postgresql)
    with pytest.raises(LedgerError, match="holds a ledger already"):
        new(postgresql)


def test_the_servers_own_isolation_level_does_not_matter(postgresql: str) -> None:
    """Under repeatable read a writer that had to wait would see what was there before it waited."""
    stricter = f"{postgresql}&options=-c%20default_transaction_isolation%3Dserializable"
    ledger, other = new(stricter, epsilon=30.0), Ledger(stricter)
    failed: list[Exception] = []

    def enter(one: Ledger) -> None:
        try:
            for _ in range(5):
                one.enter(planned(THREE, c=1.0))
        except Exception as fault:
            failed.append(fault)

    threads = [threading.Thread(target=enter, args=(one,)) for one in (ledger, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(ledger.history()) == 10


def test_a_reader_sees_one_moment(postgresql: str) -> None:
    """An entry made while another process reads is wholly there for it or not at all, and not taken for tampering."""
    reader, writer = new(postgresql, epsilon=30.0), Ledger(postgresql)
    pending = [planned(THREE, c=1.0)]

    @event.listens_for(reader._engine, "after_cursor_execute")
    def enter_meanwhile(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "FROM dpmerge_ledger" in statement and pending:
            writer.enter(pending.pop())

    assert reader.history() == []
    assert pending == []
    assert len(reader.history()) == 1


def test_no_connection_is_left_open(postgresql: str) -> None:
    import psycopg

    ledger = new(postgresql, epsilon=5.0)
    ledger.enter(planned(THREE, c=1.0))
    with pytest.raises(BudgetExceeded):
        ledger.enter(planned(THREE, a=1.0))
    with pytest.raises(LedgerError):
        new(postgresql)
    with psycopg.connect(postgresql) as connection:
        query = b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        until = time.monotonic() + 10
        while (count := connection.execute(query).fetchone()) != (0,):
            assert time.monotonic() < until, f"{count} connections are open"
            time.sleep(0.05)
            connection.rollback()
