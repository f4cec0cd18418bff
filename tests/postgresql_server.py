"""A PostgreSQL server of a test's own, on a Unix socket, which can be stopped as by a failure."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


def programs() -> Path | None:
    """Where PostgreSQL's server is, if it is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].partition(".")[0]))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def installed_programs() -> Path:
    """The server's programs, from Debian's packages if they are not there and can be had."""
    found = programs()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        line = ["timeout", "90", "apt-get", "install", "--yes", "--no-install-recommends", "postgresql"]
        subprocess.run(line, env=environment, capture_output=True, check=False)
        found = programs()
    if found is None:
        pytest.skip("no PostgreSQL server here, and none could be installed (Debian: apt-get install postgresql)")
    return found


@dataclass
class Server:
    """A folder with a cluster, and the process that serves it."""

    folder: Path
    settings: tuple[str, ...]
    _process: subprocess.Popen[Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = None if os.geteuid() else "postgres" if "postgres" in known else "nobody"  # the server refuses to run as root
        if user is not None:
            shutil.chown(self.folder, user)
        self._run: dict[str, Any] = {"user": user, "cwd": self.folder, "stdout": subprocess.DEVNULL}
        self._run["stderr"] = subprocess.DEVNULL
        # Without a locale the server does not know its text's encoding, which is the hardest case.
        made = ["--pgdata=data", "--auth=trust", "--username=tester", "--locale=C", "--no-sync"]
        subprocess.run([installed_programs() / "initdb", *made], check=True, **self._run)

    def start(self) -> None:
        import psycopg

        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "max_connections=60", *self.settings]
        line = [
            str(installed_programs() / "postgres"),
            "-D",
            "data",
            *(part for setting in settings for part in ("-c", setting)),
        ]
        self._process = subprocess.Popen(line, **self._run)
        until = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(host=str(self.folder), user="tester", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGQUIT: at once, and nothing more is written."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def url(self, database: str) -> str:
        return f"postgresql://tester@/{database}?host={self.folder}"

    def new_database(self, name: str, like: str = "template1") -> str:
        """The URL of a database of this name, empty or a copy."""
        sql(self.url("postgres"), f"CREATE DATABASE {name} TEMPLATE {like}")
        return self.url(name)


@contextmanager
def started_server(*settings: str) -> Iterator[Server]:
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="dpmerge-pg-", dir="/tmp"))  # short: a socket's path has at most 107 characters
    try:
        server = Server(folder, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def sql(url: str, *statements: str) -> None:
    """Behind a ledger's back."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
