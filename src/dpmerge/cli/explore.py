"""`dpmerge explore`: the page where people turn the privacy knob, and the HTTP API under it."""

from __future__ import annotations

import errno
import json as json_format
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import (
    JsonOption,
    PortfolioArgument,
    ShuffleOption,
    ShuffleRateOption,
    UtilityOption,
    shuffle_treatment,
)
from dpmerge.errors import ExplorerError

if TYPE_CHECKING:
    import asyncio

    from dpmerge.explorer.security import Door

_CONNECTIONS = 512  # at once: more than the guard lets in, fewer than the files a process may usually open
_REQUEST_SECONDS = 10.0  # for a request to begin arriving, and for its headers to be complete


def explore(
    portfolio: PortfolioArgument,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Ledger to show and release into: a file, or a database URL.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8710,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; another than loopback needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="DPMERGE_EXPLORER_TOKEN",
            show_envvar=True,
            help="What callers must send to change something. Other users may see it here: prefer the variable.",
            show_default=False,
        ),
    ] = None,
    allow_release: Annotated[bool, typer.Option("--allow-release", help="Let the page release models.")] = False,
    releases: Annotated[
        Path | None,
        typer.Option("--releases", help="Folder for releases; by default .releases in the portfolio.", show_default=False),
    ] = None,
    utility: UtilityOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    json: JsonOption = False,
) -> None:
    """Explore a portfolio in the browser: targets, weights, guarantees, releases. On this machine only, unless told otherwise.

    On loopback, where no token is given, one is made and printed: the page asks for it before anything is changed.
    """
    from dataclasses import replace

    try:
        import uvicorn

        from dpmerge.explorer.api import Explorer
    except ModuleNotFoundError as missing:
        raise ExplorerError(f"{missing.name} is not installed: pip install 'dpmerge[explorer]'") from None

    door = _door(host, port, token)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    with _bound(host, port) as place, suppress(KeyboardInterrupt):  # which is how one leaves
        door = replace(door, port=place.getsockname()[1])
        app = Explorer(portfolio, door, ledger, utility, shuffle, allow_release, releases).app()
        _check_releases(releases or portfolio / ".releases", allow_release)
        # One parser whose limits are known, no other protocol, no header believed about who asks; and no access log: it would
        # tell who asked what.
        config = uvicorn.Config(
            app,
            http=_impatient(),
            ws="none",
            lifespan="on",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        config.load()
        server = uvicorn.Server(config)
        # Whoever leaves cuts off those who still listen to a job: no news, and no reason for a traceback.
        logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
        with _told(host, port):
            place.listen(_CONNECTIONS)
        made = None if token is not None else door.token
        url = f"http://{f'[{host}]' if ':' in host else host}:{door.port}/"
        _announce(url, made, json=json, allow_release=allow_release, ledger=ledger is not None)
        if browser and door.is_loopback:
            threading.Thread(target=_open, args=(url,), daemon=True).start()
        server.run(sockets=[place])


def _door(host: str, port: int, token: str | None) -> Door:
    """The door with the token given; on loopback, where none is, with one made now."""
    import secrets

    from dpmerge.explorer.security import Door

    made = Door(host, port, secrets.token_urlsafe(24))
    return made if token is None and made.is_loopback else Door(host, port, token)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket of this address that nobody can connect to yet."""
    with _told(host, port):
        # The name must mean this machine, whatever a resolver says: the door trusts it.
        name = "127.0.0.1" if host == "localhost" else host
        places = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = places[0]
        found = socket.socket(family, kind, protocol)  # with its protocol said, asyncio sends without delay (TCP_NODELAY)
    with found:
        with _told(host, port):
            if os.name == "posix":  # elsewhere it would let others listen on the same port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind(address)
        yield found


@contextmanager
def _told(host: str, port: int) -> Iterator[None]:
    """What the machine refuses, in words that say what to do."""
    try:
        yield
    except (socket.gaierror, UnicodeError):
        raise ExplorerError(f"{host!r} is no address of this machine: choose another --host") from None
    except OSError as refused:
        reasons = {
            errno.EADDRINUSE: f"port {port} is in use: choose another --port, or 0 for a free one",
            errno.EACCES: f"this user may not listen on port {port}: choose a --port from 1024 on, or 0 for a free one",
            errno.EADDRNOTAVAIL: f"{host!r} is no address of this machine: choose another --host",
        }
        cannot = f"cannot listen on port {port} of {host!r}: {refused.strerror or refused}"
        raise ExplorerError(reasons.get(refused.errno or 0, cannot)) from None


def _impatient() -> type[asyncio.Protocol]:
    """HTTP/1.1 that closes connections which are too many, or on which no request arrives in time: uvicorn would wait."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > _CONNECTIONS:
                transport.abort()
            self._look(None)

        def _look(self, before: object) -> None:
            seen = (self.conn.their_state, self.cycle)
            if seen == before and seen[0] is h11.IDLE:  # the same request is still to come
                self.transport.abort()
            if not self.transport.is_closing():
                self.loop.call_later(_REQUEST_SECONDS, self._look, seen)

    return Impatient


def _check_releases(folder: Path, allow_release: bool) -> None:
    """Refuse a place for releases that is none, before anyone has chosen what to release."""
    if folder.exists() and not folder.is_dir():
        raise ExplorerError(f"{folder}: releases go into a folder, and this is none; choose another with --releases")
    if allow_release:
        place = folder if folder.exists() else folder.parent
        if not place.is_dir():
            raise ExplorerError(f"{place}: no such folder; make it, or choose another with --releases")
        if not os.access(place, os.W_OK | os.X_OK):
            raise ExplorerError(f"{place}: this user may not write there; choose another folder with --releases")


def _announce(url: str, made: str | None, *, json: bool, allow_release: bool, ledger: bool) -> None:
    """Where the page is, and the token if it was made here: one that was given is nobody else's to read."""
    if json:
        line = {"url": url, "token": made, "allow_release": allow_release, "ledger": ledger}
        typer.echo(json_format.dumps(line))  # typer.echo flushes: whoever started the server can read where it is
    else:
        typer.echo(f"{url} (leave with Ctrl-C)")
        if made is not None:
            typer.echo(f"token for this session: {made}")


def _open(url: str) -> None:
    """The page in the user's browser, if there is one."""
    import webbrowser

    with suppress(Exception):
        webbrowser.open(url)
