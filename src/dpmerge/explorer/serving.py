"""A server of one's own: the address is taken before anything is said, and nobody can keep it waiting."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpmerge.errors import ExplorerError
from dpmerge.explorer.security import SECURED, App, problem

_CONNECTIONS = 512  # at once: more than the guard lets in, fewer than the files a process may usually open
_REQUEST_SECONDS = 10.0  # for a request to begin arriving, and for its headers to be complete


class Serving:
    """An address that was taken: nobody can connect before `listen`."""

    def __init__(self, host: str, place: socket.socket) -> None:
        self._host = host
        self.place = place

    @property
    def port(self) -> int:
        port: int = self.place.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where the page is; the token is never part of it."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    def listen(self, app: App) -> uvicorn.Server:
        """Everything is ready: connections are accepted from now on, and answered once the server runs.

        One parser whose limits are known, no other protocol, no header believed about who asks; and no access log: it would
        tell who asked what.
        """
        config = uvicorn.Config(
            app,
            http=_Impatient,
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
        with _told(self._host, self.port):
            self.place.listen(_CONNECTIONS)
        return server

    def run(self, server: uvicorn.Server) -> None:
        """Answer until told to stop; Ctrl-C is how one leaves."""
        with suppress(KeyboardInterrupt):
            server.run(sockets=[self.place])


@contextmanager
def taking(host: str, port: int) -> Iterator[Serving]:
    """An address of this machine that nobody else can take meanwhile."""
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
        yield Serving(host, found)


@contextmanager
def _told(host: str, port: int) -> Iterator[None]:
    """What the machine refuses, in words that say what to do."""
    try:
        yield
    except (socket.gaierror, UnicodeError):
        raise ExplorerError(f"{host!r} is no address of this machine: choose another host") from None
    except OSError as refused:
        reasons = {
            errno.EADDRINUSE: f"port {port} is in use: choose another port, or 0 for a free one",
            errno.EACCES: f"this user may not listen on port {port}: choose a port from 1024 on, or 0 for a free one",
            errno.EADDRNOTAVAIL: f"{host!r} is no address of this machine: choose another host",
        }
        cannot = f"cannot listen on port {port} of {host!r}: {refused.strerror or refused}"
        raise ExplorerError(reasons.get(refused.errno or 0, cannot)) from None


class _Impatient(H11Protocol):
    """HTTP/1.1 that closes connections which are too many, or on which no request arrives in time: uvicorn would wait."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.abort()
        self._look(None)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered like everything that is refused."""
        body = json.dumps(problem(400, msg)).encode()
        headers = [*SECURED, (b"content-type", b"application/problem+json"), (b"connection", b"close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _look(self, before: object) -> None:
        seen = (self.conn.their_state, self.cycle)
        # The same request is still to come; or it was answered, and its body still is.
        waits = seen[0] is h11.IDLE or getattr(self.cycle, "response_complete", False)
        if seen == before and waits:
            self.transport.abort()
        if not self.transport.is_closing():
            self.loop.call_later(_REQUEST_SECONDS, self._look, seen)
