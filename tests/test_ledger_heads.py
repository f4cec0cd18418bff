"""Entries that were made and are not there: restored backups, copies, locks that do nothing, servers that forget."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from dpmerge.errors import LedgerError
from dpmerge.release import Ledger, choose, release, tables, verify
from dpmerge.release.heads import Heads
from tests.ledger_builders import THREE, names_in, new, planned, written
from tests.ledger_workers import DELTA, race, release_one
from tests.postgresql_server import sql, started_server


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which ledgers are remembered."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def file(tmp_path: Path, state: Path) -> Path:
    (tmp_path / "ledgers").mkdir()
    return tmp_path / "ledgers" / "ledger.db"


def kept(folder: Path) -> list[int]:
    """The numbers of entries that were made, as they are kept there."""
    return sorted(int(path.name.partition("-")[0]) for path in folder.glob("*/*"))


def test_what_a_ledger_ends_with_is_kept_beside_it_and_at_home(file: Path, state: Path) -> None:
    ledger = new(file, epsilon=30.0)
    for number in range(1, 8):
        ledger.enter(planned(THREE, c=1.0))
        last = list(range(max(1, number - 3), number + 1))
        assert kept(file.with_name("ledger.db.heads")) == kept(state / "dpmerge" / "ledgers") == last
    assert len(Ledger(file).history()) == 7


@pytest.mark.parametrize("lost", ["neither", "beside", "home"])
def test_a_restored_backup_is_refused(file: Path, state: Path, lost: str) -> None:
    """Also one of the ledger's whole folder, or on a machine that never saw it."""
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(THREE, c=1.0))
    backup = file.parent.with_name("backup")
    shutil.copytree(file.parent, backup)
    ledger.enter(planned(THREE, b=1.0))
    newer = file.read_bytes()
    if lost == "beside":
        shutil.rmtree(file.parent)
        shutil.copytree(backup, file.parent)
    else:
        shutil.copy(backup / "ledger.db", file)
        shutil.rmtree(state) if lost == "home" else None
    refusal = r"ledger\.db: entry 2 was made in .*ledger\.db, and is not in this ledger: it ends with entry 1\. It is a backup"
    for use in (lambda: Ledger(file), ledger.history, lambda: ledger.enter(planned(THREE, c=1.0))):
        with pytest.raises(LedgerError, match=refusal):
            use()
    file.write_bytes(newer)
    assert len(Ledger(file).history()) == 2


def test_a_copy_that_was_written_to_is_the_ledger_from_then_on(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(THREE, c=1.0))
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    assert len(Ledger(copy).history()) == 1
    Ledger(copy).enter(planned(THREE, b=1.0))
    with pytest.raises(
        LedgerError, match=r"ledger\.db: entry 2 was made in .*copy\.db, and is not in this ledger: it ends with"
    ):
        ledger.enter(planned(THREE, b=1.0))
    shutil.copy(copy, file)
    assert ledger.enter(planned(THREE, b=1.0)).number == 3
    with pytest.raises(LedgerError, match=r"copy\.db: entry 3 was made in .*ledger\.db"):
        Ledger(copy)


def test_two_copies_that_went_their_own_ways_are_both_refused(file: Path, state: Path) -> None:
    ledger = new(file, epsilon=30.0)
    shutil.copy(file, file.with_name("copy.db"))
    other = Ledger(file.with_name("copy.db"))
    ledger.enter(planned(THREE, b=1.0))
    shutil.move(state, state.with_name("away"))  # on another machine
    other.enter(planned(THREE, c=1.0))
    shutil.copytree(state.with_name("away"), state, dirs_exist_ok=True)
    for one in (ledger, other):
        with pytest.raises(LedgerError, match=r"entry 1 was made in .*, and is not in this ledger: it has another one"):
            one.history()


def test_a_certificate_holds_what_the_ledger_ended_with(file: Path, state: Path, tmp_path: Path) -> None:
    """Also where nothing else remembers."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    backup = file.read_bytes()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    made = release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert verify(made.folder, ledger=ledger).broken == []
    shutil.rmtree(state)
    shutil.rmtree(file.with_name("ledger.db.heads"))
    file.write_bytes(backup)
    (fault,) = verify(made.folder, ledger=Ledger(file)).broken
    assert fault == "entry 1 of the ledger is not there: it ends with entry 0. It is a restored backup, or another one"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_entry_that_vanishes_while_its_release_is_made(
    file: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before the release has its name, nothing is released; afterwards its maker says that it may not be counted."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    backup = file.read_bytes()

    def restored(then: Callable[..., Any]) -> Callable[..., Any]:
        def first(*given: Any) -> Any:
            file.write_bytes(backup)
            shutil.rmtree(file.with_name("ledger.db.heads"))
            shutil.rmtree(state)
            return then(*given)

        return first

    name = "require_entered" if when == "before" else "complete"
    monkeypatch.setattr(Ledger, name, restored(getattr(Ledger, name)))
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    gone = "is not in the ledger any more, though it was made" if when == "before" else "was made, and is not in this ledger"
    with pytest.raises(LedgerError, match=f"entry 1 {gone}") as caught:
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert ("the release may be out" in str(caught.value)) == (when == "after")
    assert (tmp_path / "out").exists() == (when == "after")


def test_who_has_read_an_entry_misses_it_where_nothing_else_remembers(
    file: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the count of a release and its entry."""
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(THREE, c=1.0))
    backup = file.read_bytes()
    ledger.enter(planned(THREE, b=1.0))
    charge = Ledger._charge

    def restored(*given: Any) -> Any:
        found = charge(*given)
        file.write_bytes(backup)
        shutil.rmtree(file.with_name("ledger.db.heads"))
        shutil.rmtree(state)
        return found

    monkeypatch.setattr(Ledger, "_charge", restored)
    for use in (lambda: ledger.enter(planned(THREE, c=1.0)), ledger.history):
        with pytest.raises(LedgerError, match="entry 2 was made, and is not in this ledger: it ends with entry 1"):
            use()


def test_a_thread_counts_its_own_entries(file: Path) -> None:
    """Not those that another one counts meanwhile."""
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(THREE, c=1.0))
    fewer = ledger.account()

    class Racing(Ledger):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, ("another", fewer) if name == "_counted" and value else value)

    racing = Racing(file)
    racing.enter(planned(THREE, b=1.0))
    assert racing.account().total().guarantee.epsilon > fewer.total().guarantee.epsilon


def test_a_ledger_has_one_place_beside_it_under_any_name(file: Path, state: Path) -> None:
    ledger = new(file, epsilon=30.0)
    backup = file.read_bytes()
    other = file.parent.with_name("link.db")
    other.symlink_to(file)
    Ledger(other).enter(planned(THREE, c=1.0))
    shutil.rmtree(state)
    file.write_bytes(backup)
    with pytest.raises(LedgerError, match="entry 1 was made"):
        ledger.history()


def test_where_nobody_is_at_home_what_is_kept_beside_an_sqlite_file_is_enough(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    new(file, epsilon=30.0).enter(planned(THREE, c=1.0))
    assert kept(file.with_name("ledger.db.heads")) == [1]
    with pytest.raises(LedgerError, match="there is no folder in which to keep what this ledger ends with: set XDG_STATE_HOME"):
        Heads.of(Ledger(file).budget, "postgresql://tester@/ledger")


def test_heads_that_may_not_be_read_are_not_passed_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(file)

    def forbidden(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dpmerge.release.heads.os.listdir", forbidden)
    with pytest.raises(
        LedgerError, match=r"what it ends with is kept in .*ledger\.db\.heads.*: Permission denied\. Let whoever uses"
    ):
        Ledger(file)


def test_whoever_may_use_a_ledger_may_use_its_heads(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    beside = file.with_name("ledger.db.heads")
    for mode, expected in ((0o600, 0o700), (0o660, 0o770), (0o644, 0o755)):
        file.chmod(mode)
        ledger.enter(planned(THREE, c=1.0))
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in (beside, *beside.iterdir())} == {expected}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is there before the owner")
def test_root_keeps_nobody_out_of_a_ledger(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    os.chown(file, 4321, 4321)
    ledger.enter(planned(THREE, c=1.0))
    beside = file.with_name("ledger.db.heads")
    assert {folder.stat().st_uid for folder in (beside, *beside.iterdir())} == {4321}


def test_nothing_is_entered_where_it_could_not_be_kept(file: Path, tmp_path: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    file.with_name("ledger.db.heads").touch()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    with pytest.raises(LedgerError, match=r"ledger\.db: what it ends with is kept in .*File exists\. Let whoever uses [^:]*$"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert ledger.history() == []
    assert names_in(tmp_path) == {"ledgers", "p"}


def test_a_ledger_whose_name_is_not_text(file: Path) -> None:
    named = Path(os.fsdecode(bytes(file.with_name("l")) + b"\xff.db"))
    ledger, backup = new(named, epsilon=30.0), named.read_bytes()
    ledger.enter(planned(THREE, c=1.0))
    named.write_bytes(backup)
    with pytest.raises(LedgerError, match=f"entry 1 was made in {named}, and is not"):
        Ledger(named)


# --- locks that do nothing --------------------------------------------------------------------------------------------


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own way to a file system that has none."""
    plain = tables._uri
    monkeypatch.setattr(tables, "_uri", lambda path: f"{plain(path)}&vfs=unix-none")
    monkeypatch.setattr(tables, "_locking", set())


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_whose_locks_do_nothing_is_refused(file: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger\.db: the locks of its file system do nothing.*or use PostgreSQL"):
        new(file)


def test_locks_that_cannot_be_tried_are_not_called_broken(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file is left that would have to be removed first."""
    for program, why in ((tmp_path / "none", "No such file or directory"), ("/bin/false", "")):
        monkeypatch.setattr(tables, "_locking", set())
        monkeypatch.setattr("sys.executable", str(program))
        with pytest.raises(LedgerError, match=f"could not be tried, because {program} did not run: {why}.*Let it be started"):
            new(file)
        assert not file.exists()


def test_a_ledger_that_may_only_be_read_is_not_blamed_on_its_locks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(file)
    monkeypatch.setattr("os.access", lambda path, mode: path != file)
    assert ledger.history() == []
    with pytest.raises(LedgerError, match=r"ledger\.db: may only be read here, by this user: let it be written to"):
        ledger.enter(planned(THREE, c=1.0))


def test_locks_that_work_are_tried_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_locking", set())
    ledger = new(file, epsilon=30.0)
    assert tables._locking == {os.stat(file).st_dev}
    monkeypatch.setattr("subprocess.run", None)
    ledger.enter(planned(THREE, c=1.0))


def test_an_entry_over_another_is_refused_before_anything_is_seen(
    file: Path, tmp_path: Path, without_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions at once, of which the second to end overwrites the first: the first release is out."""
    tables._locking.add(os.stat(tmp_path).st_dev)  # as if they had been seen to work
    portfolio, ledger, other = written(tmp_path / "p"), new(file, epsilon=30.0), Ledger(file)
    choices = [choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({name: 1.0})) for name in "bc"]
    append = tables.append

    def meanwhile(connection: Any, entry: Any) -> None:
        append(connection, entry)
        monkeypatch.setattr(tables, "append", append)
        release(portfolio, choices[1], tmp_path / "first", ledger=other)

    monkeypatch.setattr(tables, "append", meanwhile)
    with pytest.raises(LedgerError):
        release(portfolio, choices[0], tmp_path / "second", ledger=ledger)
    assert names_in(tmp_path) & {"first", "second"} == {"first"}
    with pytest.raises(LedgerError):  # and nobody takes what is left for the whole
        Ledger(file)


@pytest.mark.usefixtures("without_locks")
def test_of_releases_that_race_without_locks_none_is_forgotten(file: Path, tmp_path: Path) -> None:
    """Whatever is out has its entry in the ledger, or the ledger is refused."""
    tables._locking.add(os.stat(tmp_path).st_dev)
    written(tmp_path / "p")
    refused = 0
    for trial in range(40):
        if refused == 3:
            break
        where, out = file.with_name(f"{trial}.db"), tmp_path / f"out-{trial}"
        out.mkdir()
        new(where, epsilon=30.0)
        race(3, partial(release_one, str(where), str(tmp_path / "p"), str(out)))
        published = {path.name for path in out.iterdir() if not path.name.startswith(".")}
        try:
            entries = Ledger(where).history()
        except LedgerError:
            refused += 1
            continue
        assert published <= {Path(one.content["out"]).name for one in entries if one.kind == "release"}
    assert refused, "no two of them were ever at once: nothing was tried"


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def test_an_entry_outlives_a_server_that_does_not_wait_for_its_disk(state: Path) -> None:
    with started_server("synchronous_commit=off", "wal_writer_delay=10s") as server:
        url = server.new_database("ledger")
        new(url, epsilon=30.0).enter(planned(THREE, c=1.0))
        server.stop(signal.SIGQUIT)
        server.start()
        ledger = Ledger(url)
        assert len(ledger.history()) == 1
        # A copy of the database, and one that lags behind
        copy = server.new_database("copy", like="ledger")
        assert len(Ledger(copy).history()) == 1
        ledger.enter(planned(THREE, b=1.0))
        with pytest.raises(LedgerError, match=r"copy.*: entry 2 was made in postgresql://tester@/ledger, and is not"):
            Ledger(copy)
        # A server that promises more is left alone, and one that promises nothing is refused
        more = f"{url}&options=-c%20synchronous_commit%3Dremote_apply"
        for one, setting in ((Ledger(url), "on"), (Ledger(more), "remote_apply")):
            with one._writing() as connection:
                assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == setting

        refused = {
            "SHOW fsync": ("SELECT 'off'", "runs with fsync = off, so entries could be lost; turn it on"),
            "SELECT pg_is_in_recovery()": ("SELECT true", "is a standby, which takes no entries: use the primary"),
        }
        for asked, (instead, refusal) in refused.items():
            one = Ledger(url)

            @event.listens_for(one._engine, "before_cursor_execute", retval=True)
            def answer(*given: Any, asked: str = asked, instead: str = instead) -> tuple[str, Any]:
                return (instead if given[2] == asked else given[2]), given[3]

            with pytest.raises(LedgerError, match=refusal):
                one.enter(planned(THREE, c=1.0))
            if "fsync" in asked:  # unless the storage is stated to keep what it is given
                sql(url, "ALTER DATABASE ledger SET dpmerge.durable = 'yes'")
                with one._writing():
                    pass
        # A crash would empty such a table
        for table in ("dpmerge_ledger", "dpmerge_entries"):
            sql(url, f"ALTER TABLE {table} SET UNLOGGED")
            with pytest.raises(LedgerError, match=f"would empty the table {table}, .*: ALTER TABLE {table} SET LOGGED"):
                ledger.enter(planned(THREE, c=1.0))
            sql(url, f"ALTER TABLE {table} SET LOGGED")
        # Where nothing can be kept, nothing is entered
        shutil.rmtree(state)
        state.touch()
        with pytest.raises(LedgerError, match=r"what it ends with is kept in .*File exists.*or set XDG_STATE_HOME to another"):
            Ledger(url).enter(planned(THREE, c=1.0))
        assert len(ledger.history()) == 2
