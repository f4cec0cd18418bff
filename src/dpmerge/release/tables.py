"""The ledger's two tables, on SQLite or PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dpmerge.errors import LedgerError

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


def engine_for(where: str) -> tuple[Engine, str]:
    """An engine whose transactions exclude each other from their first statement on, and its name without a password."""
    try:
        url = make_url(where if "://" in where else f"sqlite:///{where}")
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() != "sqlite":
            return create_engine(url), url.render_as_string(hide_password=True)
        engine = create_engine(url, connect_args={"timeout": 120})
    except (ArgumentError, NoSuchModuleError, ImportError) as fault:
        raise LedgerError(f"{where}: not a ledger's file or URL: {fault}") from None

    # SQLAlchemy's recipe: the driver's own BEGIN is deferred, and two readers would both try to write.
    @event.listens_for(engine, "connect")
    def _no_implicit_begin(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin_immediate(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine, where


def lock(connection: Connection) -> None:
    """Wait until no other transaction holds the ledger. On SQLite, BEGIN IMMEDIATE has done that already."""
    if connection.dialect.name != "sqlite" and has_header(connection):
        connection.execute(select(header.c.id).with_for_update())


def has_header(connection: Connection) -> bool:
    """Whether there is a ledger in this database."""
    if not inspect(connection).has_table(header.name):
        return False
    return connection.execute(select(header.c.id)).first() is not None


def read_header(connection: Connection) -> dict[str, Any]:
    """The declared budget, and the length and end of the chain."""
    return dict(connection.execute(select(header)).mappings().one())
