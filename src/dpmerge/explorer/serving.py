"""Local HTTP server: binds its address first; slow clients, and many of them, cannot block it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpmerge.errors import ExplorerError
from dpmerge.explorer.security import SECURITY_HEADERS, App, problem

_CONNECTIONS = 1024  # more than Guard admits requests, so that there is always a waiting one to close for a new one
_BACKLOG = 4096  # that wait to be accepted: those that hung up meanwhile are among them, and must not fill it
_OTHER_FILES = 256  # that the server may have open besides
_REQUEST_SECONDS = 10.0  # until a request starts, until its headers are complete, and until its answer was taken
_SWITCH_SECONDS = 0.001  # a thread that computes gives way to the event loop after so long; Python's own 5 ms add up


class Serving:
    """A bound address: nobody can connect before `listen`."""

    def __init__(self, host: str, bound: socket.socket) -> None:
        self._host = host
        self.socket = bound

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The page's URL, without the token."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    def listen(self, app: App) -> uvicorn.Server:
        """Accept connections; they are answered once the server runs.

        One HTTP parser with known limits and no other protocol; proxy headers are ignored; no access log, for privacy.
        """
        config = uvicorn.Config(
            app,
            http=_TimedProtocol,
            ws="none",
            lifespan="on",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        config.load()
        server = uvicorn.Server(config)
        # Shutdown closes open event streams; that is no reason for a traceback.
        logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
        with _explained(self._host, self.port):
            self.socket.listen(_BACKLOG)
        return server

    def run(self, server: uvicorn.Server) -> None:
        """Serve until stopped (Ctrl-C)."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        _allow_open_files(_CONNECTIONS + _OTHER_FILES)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[self.socket])


@contextmanager
def taking(host: str, port: int) -> Iterator[Serving]:
    """Bind an address of this machine, and keep it for the server."""
    with _explained(host, port):
        # Door trusts localhost to be this machine, so a resolver must not decide it.
        name = "127.0.0.1" if host == "localhost" else host
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        found = socket.socket(family, kind, protocol)  # with an explicit protocol, asyncio sets TCP_NODELAY
    with found:
        with _explained(host, port):
            if os.name == "posix":  # elsewhere it would let other processes use the port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind(address)
        yield Serving(host, found)


@contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    """Turn an error of the operating system into a message that says what to do."""
    try:
        yield
    except (socket.gaierror, UnicodeError):
        raise ExplorerError(f"{host!r} is not an address of this machine: choose another host") from None
    except OSError as refused:
        reasons = {
            errno.EADDRINUSE: f"port {port} is in use: choose another port, or 0 for a free one",
            errno.EACCES: f"no permission to listen on port {port}: choose a port from 1024 on, or 0 for a free one",
            errno.EADDRNOTAVAIL: f"{host!r} is not an address of this machine: choose another host",
        }
        cannot = f"cannot listen on port {port} of {host!r}: {refused.strerror or refused}"
        raise ExplorerError(reasons.get(refused.errno or 0, cannot)) from None


def _allow_open_files(many: int) -> None:
    """Raise this process's limit where it may be raised; without that, connections are accepted as files are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < many:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (many if hard == resource.RLIM_INFINITY else min(many, hard), hard))


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes excess connections, those on which no request arrives in time, and those of clients that do not
    take their answer. uvicorn would wait."""

    connections: set[_TimedProtocol]  # type: ignore[assignment]
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0  # when this connection began to wait for a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > _CONNECTIONS:
            # The one that waited longest for a request, not the newest: that may be the owner's.
            longest = min((one for one in self.connections if one.waits), key=lambda one: one._since)
            longest.transport.abort()
            self.connections.discard(longest)  # now: more may be accepted before the event loop tells of its end
        self._close_if_stuck(None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """Whether there is no request to be answered: none has arrived, or the last one was answered."""
        return bool(getattr(self.cycle, "response_complete", True))

    def send_400_response(self, msg: str) -> None:
        """Malformed HTTP is answered in the same error format."""
        body = json.dumps(problem(400, msg)).encode()
        headers = [*SECURITY_HEADERS, (b"content-type", b"application/problem+json"), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _close_if_stuck(self, before: object) -> None:
        """Close the connection if it waits for the client, and still for the same as the last time."""
        seen = (self.conn.their_state, self.cycle)
        # No complete header has arrived; the request was answered before its whole body arrived; the answer is not taken.
        incomplete = self.conn.their_state is h11.IDLE or self.waits
        if seen == before and (incomplete or self.transport.is_closing() or self.transport.get_write_buffer_size() > 0):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(_REQUEST_SECONDS, self._close_if_stuck, seen)
