"""The ledger's two tables, on SQLite or PostgreSQL, and how transactions on them exclude each other."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    NullPool,
    Table,
    Text,
    create_engine,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dpmerge.errors import LedgerError, MissingLedger
from dpmerge.files import canonical
from dpmerge.records import looks_like
from dpmerge.release.entries import Entry, Row

metadata = MetaData()
header = Table(
    "dpmerge_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("schema", Integer, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("adjacency", Text, nullable=False),
    Column("epsilon", Text, nullable=False),  # floats as hexadecimal digits
    Column("delta", Text, nullable=False),
    Column("created", Text, nullable=False),
    Column("entries", Integer, nullable=False),
    Column("head", Text, nullable=False),
)
entries = Table(
    "dpmerge_entries",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
)

export_key = Table(
    "dpmerge_export_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False),  # as private as the entries: it stays here
)

_PATIENCE = 600  # seconds to wait for a release that is being accounted for; that takes minutes where models are many
_LOCK = int.from_bytes(b"dpmerge")
# By database, and whether the transaction is to be alone. PostgreSQL's own locks need a table; an advisory one does not, so
# it guards the making of a ledger too. A later statement then sees all that was committed before the lock was had.
_BEGIN = {
    ("sqlite", False): ("BEGIN",),
    ("sqlite", True): ("BEGIN IMMEDIATE",),
    ("postgresql", False): ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",),
    ("postgresql", True): (
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET LOCAL lock_timeout = '{_PATIENCE}s'",
        # Those of a role are for other uses: whoever waits here waits for that long, and may count in between.
        "SET LOCAL statement_timeout = 0",
        "SET LOCAL idle_in_transaction_session_timeout = 0",
        # Where the server does not wait for its disk, a release could outlive its entry; who asks for more gets more.
        "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply' "
        "THEN 'remote_apply' ELSE 'on' END, true)",
        f"SELECT pg_advisory_xact_lock({_LOCK})",
    ),
}


def engine_for(where: str, *, new: bool = False) -> tuple[Engine, str]:
    """The database, and its name without a password. An SQLite file must be there already, or must not if `new`.

    Every transaction has a connection of its own, which is closed with it: none is left open, or shared by a fork.
    """
    if "://" not in where:
        return _sqlite(where, new), where
    try:
        url = make_url(where)
        if url.get_backend_name() == "sqlite" and url.database:
            return _sqlite(url.database, new), url.database
        if url.get_backend_name() in ("postgresql", "postgres"):
            name = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
            driver = url.set(drivername="postgresql+psycopg")
            # A prepared statement would stay behind on a connection that a pooler gives to others.
            how = {"client_encoding": "utf8", "prepare_threshold": None}
            return create_engine(driver, poolclass=NullPool, connect_args=how), name
    except ImportError:
        raise LedgerError("a ledger on PostgreSQL needs psycopg: install dpmerge[postgresql]") from None
    except (ArgumentError, ValueError):
        pass  # the fault would show the URL, and the URL a password
    scheme = where.partition("://")[0]
    raise LedgerError(f"{scheme}://…: not a ledger's URL; give a file, or postgresql://user@host/database")


def _sqlite(path: str, new: bool) -> Engine:
    if new and not Path(path).parent.is_dir():
        raise LedgerError(f"{path}: there is no folder {Path(path).parent}; make it first")
    if not new and not Path(path).is_file():
        seen = looks_like(Path(path))
        if seen:
            raise LedgerError(f"{path}: is {seen}, not a ledger")
        raise MissingLedger(f"{path}: no such ledger; make one first")
    if new:
        try:
            # SQLite's other files get the mode of this one.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise LedgerError(f"{path}: exists already; a ledger is never overwritten: choose another name") from None
        except OSError as fault:
            raise LedgerError(f"{path}: cannot be made a ledger: {fault.strerror}") from None
    uri = _uri(path)

    def connect() -> sqlite3.Connection:
        # No BEGIN of the driver's own: it is deferred, and two readers would both try to write.
        connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
        # The default syncs no folder: after a power cut the journal could be there again, and take a commit back.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection

    where = {"file": Path(path).absolute()}
    return create_engine("sqlite://", creator=connect, poolclass=NullPool, execution_options=where)


def _uri(path: str) -> str:
    return f"{Path(path).absolute().as_uri()}?mode=rw"


@contextmanager
def transaction(engine: Engine, name: str, *, alone: bool) -> Iterator[Connection]:
    """Exclusive transaction, or (`alone=False`) a non-blocking read snapshot."""
    try:
        with engine.begin() as connection:
            for statement in _BEGIN[engine.dialect.name, alone]:
                connection.exec_driver_sql(statement)
            if alone and engine.dialect.name == "sqlite":
                _require_locks(engine, name)
            elif alone:
                _require_server(connection, name)
            yield connection
    except (SQLAlchemyError, UnicodeDecodeError) as fault:
        if isinstance(getattr(fault, "orig", None), sqlite3.DatabaseError) and "not a database" in str(fault):
            raise LedgerError(f"{name}: is {looks_like(Path(name)) or 'a file'}, not a ledger") from None
        what = " ".join(str(getattr(fault, "orig", None) or fault).split())
        raise LedgerError(f"{name}: the ledger cannot be used: {what}") from None


def _require_server(connection: Connection, name: str) -> None:
    """Refuse a server that could lose what it is given."""
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
        raise LedgerError(f"{name}: the server is a standby, which takes no entries: use the primary")
    stated = connection.exec_driver_sql("SELECT current_setting('dpmerge.durable', true), current_database()").one()
    if connection.exec_driver_sql("SHOW fsync").scalar() == "off" and stated[0] != "yes":
        raise LedgerError(
            f"{name}: the server runs with fsync = off, so entries could be lost; turn it on, or, if its storage keeps what it "
            f"is given all the same (some hosted servers), say so: ALTER DATABASE {stated[1]} SET dpmerge.durable = 'yes'"
        )
    kept = "SELECT relname FROM pg_class WHERE oid IN (to_regclass('{}'), to_regclass('{}')) AND relpersistence <> 'p'"
    if table := connection.exec_driver_sql(kept.format(header.name, entries.name)).scalar():
        raise LedgerError(
            f"{name}: a crash of the server would empty the table {table}, which is not logged: ALTER TABLE {table} SET LOGGED"
        )


_PROBE = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], uri=True, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    print("had by two")
except sqlite3.OperationalError as fault:
    print(fault)
"""


_locking: set[int] = set()  # devices whose locks were seen to keep another process out


def _require_locks(engine: Engine, name: str) -> None:
    """Refuse a file system on which another process gets the lock that this one holds now."""
    path, program = engine.get_execution_options()["file"], sys.executable or "python3"
    if not os.access(path, os.W_OK):  # SQLite then begins without a lock
        raise LedgerError(f"{name}: may only be read here, by this user: let it be written to")
    try:
        device = os.stat(path).st_dev
        if device in _locking:
            return
        line = [program, "-I", "-S", "-c", _PROBE, _uri(path)]
        tried = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
        said = tried.stdout or tried.stderr
    except OSError as fault:
        said = str(fault.strerror)
    if "had by two" in said:
        raise LedgerError(
            f"{name}: the locks of its file system do nothing, so two releases could be entered at once: move the ledger to "
            "another one, or use PostgreSQL"
        )
    if "database is locked" not in said:
        raise LedgerError(
            f"{name}: whether its locks keep another process out could not be tried, because {program} did not run: "
            f"{' '.join(said.split()[-30:])}. Let it be started here, or use PostgreSQL"
        )
    _locking.add(device)


def remove_unused(engine: Engine) -> None:
    """Remove the new file of a ledger that could not be made: its name would be taken."""
    file = engine.get_execution_options().get("file")
    with contextlib.suppress(OSError):
        if file is not None and file.stat().st_size == 0:
            file.unlink()


def exist(connection: Connection) -> bool:
    """Whether this database holds any part of a ledger."""
    found = inspect(connection)
    return any(found.has_table(table.name) for table in (header, entries))


def read_header(connection: Connection) -> dict[str, Any] | None:
    """The header as it is written, or nothing if this is not a ledger."""
    found = inspect(connection)
    if not all(found.has_table(table.name) for table in (header, entries)):
        return None
    headers = connection.execute(header.select()).mappings().all()
    return dict(headers[0]) if len(headers) == 1 else None


def read_rows(connection: Connection, after: int | None) -> list[Row]:
    """The entries as they are written, in order: all, or those after this number."""
    chosen = select(*(entries.c[name] for name in Row._fields)).order_by(entries.c.number)
    if after is not None:
        chosen = chosen.where(entries.c.number > after)
    return [Row(*row) for row in connection.execute(chosen).all()]  # at once: row by row takes longer


def key_for_exports(connection: Connection) -> bytes | None:
    """The key of digests in exports; nothing in a ledger of an earlier version that was never exported."""
    if not inspect(connection).has_table(export_key.name):
        return None
    found = connection.execute(export_key.select()).mappings().first()
    try:
        return None if found is None else bytes.fromhex(found["key"])
    except (ValueError, TypeError):
        raise LedgerError("the ledger's key for exports was edited") from None


def make_key_for_exports(connection: Connection) -> bytes:
    """The key, made now if there is none."""
    found = key_for_exports(connection)
    if found is None:
        export_key.create(connection, checkfirst=True)
        found = secrets.token_bytes(32)
        connection.execute(export_key.insert().values(id=1, key=found.hex()))
    return found


def append(connection: Connection, entry: Entry) -> None:
    """Write an entry, and that the ledger ends with it."""
    row = {"number": entry.number, "content": canonical(entry.content).decode(), "previous": entry.previous, "hash": entry.hash}
    connection.execute(entries.insert().values(**row))
    connection.execute(header.update().values(entries=entry.number, head=entry.hash))
