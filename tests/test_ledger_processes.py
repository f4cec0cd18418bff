"""Ledgers among processes: crashes, concurrent releases, and a real PostgreSQL server."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from dpmerge.errors import BudgetExceeded, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release
from dpmerge.release.chain import unfinished
from tests import builders
from tests.ledger_builders import PRECISE, THREE, command, drawn, joint, new, planned, three, total, written
from tests.ledger_workers import DELTA, wait_for

ROOT = Path(__file__).parent.parent


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
def test_a_release_that_was_killed_stands_and_is_recovered(tmp_path: Path, file: Path, point: str, state: str) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    folder, out = tmp_path / "p", tmp_path / "out"
    out.mkdir()
    with worker(point, file, folder, out, reached=tmp_path / "reached") as process:
        try:
            wait_for(tmp_path / "reached")
            left = {path.name.partition(".dpmerge-tmp")[0] for path in out.iterdir()}
            assert left == ({".released-0"} if state == "absent" else {"released-0"})
            # It lives: nothing is to be recovered, and it counts already.
            assert ledger.recover() == []
            assert [entry.number for entry in unfinished(ledger.history())] == [1]
            assert total(ledger) == pytest.approx(joint("a"), rel=PRECISE)
            assert "entry 1 is under way; it counts" in command("ledger", "show", str(file))
        finally:
            process.kill()
        # Dead, but not yet looked after by its parent: a zombie.
        until = time.monotonic() + 20
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)
        assert "entry 1 was interrupted; it counts" in command("ledger", "show", str(file))
        assert ledger.recover() == [f"entry 1 was interrupted (its output is {state}); it stands and counts"]
    assert process.returncode == -signal.SIGKILL
    assert ledger.recover() == []
    closing = ledger.history()[-1]
    assert (closing.kind, closing.content["of"], closing.content["output"]) == ("recovered", 1, state)
    assert unfinished(ledger.history()) == []
    assert (out / "released-0").exists() == (state == "present")
    assert total(ledger) == pytest.approx(joint("a"), rel=PRECISE)
    # The next release goes on from there, and clears away what was left.
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    release(portfolio, choice, out / "next", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("a", "b"), rel=PRECISE)
    assert {path.name for path in out.iterdir()} == {"next"} | ({"released-0"} if state == "present" else set())
    assert f"recovered entry 1: output {state}" in command("ledger", "history", str(file))


def test_the_next_release_says_what_was_interrupted(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "pid": ended.pid})
    ledger.enter(planned(portfolio, a=1.0))
    monkeypatch.undo()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert "entry 1 was interrupted (its output is absent); it stands and counts" in made.notes
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


# --- SQLite and PostgreSQL, and many processes ------------------------------------------------------------------------


def server_programs() -> Path | None:
    """Where PostgreSQL's server is, if it is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].partition(".")[0]))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def installed_server() -> Path | None:
    """The server's programs, from Debian's packages if they are not there and can be had."""
    programs = server_programs()
    if programs is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        line = ["timeout", "90", "apt-get", "install", "--yes", "--no-install-recommends", "postgresql"]
        subprocess.run(line, env=environment, capture_output=True, check=False)
        programs = server_programs()
    return programs


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server of this session's own, on a Unix socket; its URL but for the database's name."""
    pytest.importorskip("psycopg")
    programs = installed_server()
    if programs is None:
        pytest.skip("no PostgreSQL server here, and none could be installed (Debian: apt-get install postgresql)")
    # The server refuses to run as root.
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = None if os.geteuid() else "postgres" if "postgres" in known else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="dpmerge-pg-", dir="/tmp"))  # short: a socket's path has at most 107 characters
    try:
        if user is not None:
            shutil.chown(folder, user)
        run: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # Without a locale the server does not know its text's encoding, which is the hardest case.
        subprocess.run(
            [programs / "initdb", "--pgdata=data", "--auth=trust", "--username=tester", "--locale=C", "--no-sync"],
            check=True,
            **run,
        )
        settings = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "max_connections=60"]
        line = [str(programs / "postgres"), "-D", "data", *(part for setting in settings for part in ("-c", setting))]
        with subprocess.Popen(line, **run) as process:
            try:
                yield url_of_server(folder)
            finally:
                process.send_signal(signal.SIGINT)
    finally:
        shutil.rmtree(folder)


def url_of_server(folder: Path) -> str:
    import psycopg

    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(host=str(folder), user="tester", dbname="postgres").close()
            return f"postgresql://tester@/DATABASE?host={folder}"
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def sql(url: str, *statements: str) -> None:
    """Behind the ledger's back."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def postgresql(server: str, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    name = f"test_{abs(hash(request.node.nodeid))}"
    sql(server.replace("DATABASE", "postgres"), f"CREATE DATABASE {name}")
    return server.replace("DATABASE", name)


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
    portfolio, fitting, count = many(8), 3, 8
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
