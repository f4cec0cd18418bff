"""The ledger's two tables, on SQLite or PostgreSQL, and how transactions on them exclude each other."""

from __future__ import annotations

import os
import secrets
import sqlite3
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

from dpmerge.errors import LedgerError
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
            return create_engine(driver, poolclass=NullPool, connect_args={"client_encoding": "utf8"}), name
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
        raise LedgerError(f"{path}: is {seen}, not a ledger" if seen else f"{path}: no such ledger; make one first")
    if new:
        try:
            # SQLite's other files get the mode of this one.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise LedgerError(f"{path}: exists already; a ledger is never overwritten: choose another name") from None
        except OSError as fault:
            raise LedgerError(f"{path}: cannot be made a ledger: {fault.strerror}") from None
    uri = f"{Path(path).absolute().as_uri()}?mode=rw"

    def connect() -> sqlite3.Connection:
        # No BEGIN of the driver's own: it is deferred, and two readers would both try to write.
        return sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)


@contextmanager
def transaction(engine: Engine, name: str, *, alone: bool) -> Iterator[Connection]:
    """Exclusive transaction, or (`alone=False`) a non-blocking read snapshot."""
    try:
        with engine.begin() as connection:
            for statement in _BEGIN[engine.dialect.name, alone]:
                connection.exec_driver_sql(statement)
            yield connection
    except (SQLAlchemyError, UnicodeDecodeError) as fault:
        if isinstance(getattr(fault, "orig", None), sqlite3.DatabaseError) and "not a database" in str(fault):
            raise LedgerError(f"{name}: is {looks_like(Path(name)) or 'a file'}, not a ledger") from None
        what = " ".join(str(getattr(fault, "orig", None) or fault).split())
        raise LedgerError(f"{name}: the ledger cannot be used: {what}") from None


def exist(connection: Connection) -> bool:
    """Whether this database holds any part of a ledger."""
    found = inspect(connection)
    return any(found.has_table(table.name) for table in (header, entries))


def read(connection: Connection) -> tuple[dict[str, Any], list[Row]] | None:
    """The header and the entries as they are written, or nothing if this is not a ledger."""
    found = inspect(connection)
    if not all(found.has_table(table.name) for table in (header, entries)):
        return None
    headers = connection.execute(header.select()).mappings().all()
    if len(headers) != 1:
        return None
    columns = [entries.c[name] for name in Row._fields]
    rows = connection.execute(select(*columns).order_by(entries.c.number)).all()  # at once: row by row takes longer
    return dict(headers[0]), [Row(*row) for row in rows]


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
