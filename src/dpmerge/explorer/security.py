"""Access checks: every request passes them before its body is read or anything is computed.

A website can make its visitor's browser send requests to loopback, and can make its own name resolve there (DNS rebinding). So
the Host header must be an address of this server; requests that a browser sends for another site are refused; and every change
needs a token, which no browser sends by itself.

Whoever sends the token also has a share of everything that is limited, so that a crowd without it cannot keep the owner out.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from dpmerge.errors import ExplorerError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_LIMIT = 64 * 1024
IN_FLIGHT, OWN_IN_FLIGHT = 832, 128  # requests at a time, without the token and with it
BODY_SECONDS = 10.0
WRONG_TOKENS, WRONG_TOKEN_SECONDS = 16, 0.5  # wrong tokens at a time, and how long each waits for its answer
_BUSY = 8  # more requests than one page makes
_BEGIN = 4  # requests without the token that begin in one pass of the event loop
HEALTH = "/healthz"
_TOKEN_LENGTH = 16
# On loopback these POSTs need no token: they change nothing. All else but GET and HEAD needs it, including unknown paths.
_POST_WITHOUT_TOKEN = frozenset({"/v1/account", "/v1/plan", "/v1/frontier", "/v1/releases/preview", "/v1/verify"})
AUTHORISED = "dpmerge.authorised"  # scope key: whether the request sent the token
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class Refused(Exception):
    """A rejected request."""

    def __init__(self, status: HTTPStatus, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class WrongToken(Refused):
    """A request with a token that is not the server's."""


@dataclass(frozen=True)
class Door:
    """Who may send requests: where the server listens, and the token that changes need."""

    host: str = "127.0.0.1"
    port: int = 8710
    token: str | None = None

    def __post_init__(self) -> None:
        if not self.is_loopback and self.token is None:
            raise ExplorerError(f"{self.host} can be reached from other machines: give a token, or use 127.0.0.1")
        if self.token is not None and not re.fullmatch(rf"[\x21-\x7e]{{{_TOKEN_LENGTH},}}", self.token):
            raise ExplorerError(f"the token must have at least {_TOKEN_LENGTH} characters, printable ASCII without spaces")

    @cached_property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or (self._address is not None and self._address.is_loopback)

    @cached_property
    def _address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @cached_property
    def hosts(self) -> frozenset[str] | None:
        """Allowed Host headers; None (unknown) if the server listens on all addresses."""
        if self._address is not None and self._address.is_unspecified:
            return None  # then every API call needs the token, which DNS rebinding cannot supply
        names = {"localhost", "127.0.0.1", "[::1]", f"[{self.host}]" if ":" in self.host else self.host.lower()}
        return frozenset({f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set()))

    def check(self, method: str, path: str, headers: dict[bytes, list[bytes]]) -> bool:
        """Refuse a wrong Host, another site, or a missing token; return whether the request sent the token."""
        if not re.fullmatch(r"[\x21-\x7e]+", path):  # routers treat a trailing newline differently
            raise Refused(HTTPStatus.BAD_REQUEST, "the path has characters that are not allowed")
        host = _single(headers, b"host")
        if host is None or (self.hosts is not None and host.lower() not in self.hosts):
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "the Host header is not an address of this server")
        origin = _single(headers, b"origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        reading = method in ("GET", "HEAD")
        site = _single(headers, b"sec-fetch-site")
        if site in ("cross-site", "same-site") and (not reading or path.startswith("/v1/")):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        if method == "POST":
            kind = (_single(headers, b"content-type") or "").split(";")[0].strip().lower()
            if kind != "application/json":  # another site's HTML form cannot send JSON
                raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json")
        given = _single(headers, b"authorization")
        if not self._needs_token(reading, method, path) and (given is None or self.token is None):
            return False
        self._check_token(given)
        return True

    def _needs_token(self, reading: bool, method: str, path: str) -> bool:
        if not self.is_loopback and path.startswith("/v1"):
            return True
        return not reading and not (method == "POST" and path in _POST_WITHOUT_TOKEN)

    def _check_token(self, given: str | None) -> None:
        if self.token is None:
            raise Refused(HTTPStatus.FORBIDDEN, "this server has no token, so it allows no changes")
        scheme, _, sent = (given or "").partition(" ")
        right = hmac.compare_digest(sent.strip().encode(errors="replace"), self.token.encode())
        if not (scheme.lower() == "bearer" and right):
            raise (Refused if given is None else WrongToken)(
                HTTPStatus.UNAUTHORIZED,
                "this needs the server's token, as Authorization: Bearer …",
                **{"www-authenticate": "Bearer"},
            )


class Guard:
    """ASGI middleware: access checks, limits on size, time and number of requests, and security headers."""

    def __init__(self, app: App, door: Door, in_flight: int = IN_FLIGHT, own_in_flight: int = OWN_IN_FLIGHT) -> None:
        self._app, self._door = app, door
        self._limits, self._inside = {False: in_flight, True: own_in_flight}, {False: 0, True: 0}
        self._wrong = 0
        self._begin = asyncio.Semaphore(_BEGIN)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no other protocol is supported
            return
        secured = _with_security_headers(send)
        try:
            headers: dict[bytes, list[bytes]] = {}
            for name, value in scope["headers"]:
                headers.setdefault(name.lower(), []).append(value)
            authorised = self._door.check(scope["method"], scope["path"], headers)
            if scope["path"] == HEALTH:  # answered however many others there are, and without waiting for a body
                await self._app(scope, receive, secured)
                return
            if self._inside[authorised] >= self._limits[authorised]:
                raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many requests at once; try again", **{"retry-after": "1"})
            self._inside[authorised] += 1
            try:
                if not authorised:
                    await self._in_turn()
                await self._app({**scope, AUTHORISED: authorised}, await _read_body(receive, headers), secured)
            finally:
                self._inside[authorised] -= 1
        except WrongToken as refusal:
            await _answer(secured, await self._slowed(refusal))
        except Refused as refusal:
            await _answer(secured, refusal)

    @property
    def busy(self) -> bool:
        """Whether so many requests are here that nothing should hold up the event loop."""
        return sum(self._inside.values()) > _BUSY

    async def _in_turn(self) -> None:
        """Let few requests begin in one pass of the event loop: what else there is to answer waits for these alone."""
        await self._begin.acquire()
        asyncio.get_running_loop().call_soon(self._begin.release)

    async def _slowed(self, refusal: Refused) -> Refused:
        """Who guesses tokens waits for every answer. The right one never does: others cannot keep its owner out."""
        if self._wrong >= WRONG_TOKENS:
            return Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens at once; try again", **{"retry-after": "1"})
        self._wrong += 1
        try:
            await asyncio.sleep(WRONG_TOKEN_SECONDS)
        finally:
            self._wrong -= 1
        return refusal


def problem(status: int, detail: str) -> dict[str, Any]:
    """An error in the format of RFC 9457; invalid Unicode is replaced."""
    text = " ".join(detail.split()).encode("utf-8", "replace").decode()
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": int(status), "detail": text}


async def _read_body(receive: Receive, headers: dict[bytes, list[bytes]]) -> Receive:
    """Read the whole body first, with limits on size and time; duplicate JSON keys are refused."""
    length = _single(headers, b"content-length")
    number = length is None or (length.isascii() and length.isdigit() and len(length) <= 12)
    if not number or (length is not None and int(length) > BODY_LIMIT):
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request is larger than {BODY_LIMIT} bytes")
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > BODY_LIMIT:
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request is larger than {BODY_LIMIT} bytes")
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time") from None
    with suppress(ValueError, RecursionError):  # invalid JSON is reported by the request parser
        json.loads(body or b"null", object_pairs_hook=_without_duplicates)
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "a JSON object has the same key twice")
    return found


def _with_security_headers(send: Send) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", []) if name.decode().lower() not in _HEADERS]
            message = {**message, "headers": [*kept, *SECURITY_HEADERS]}
        await send(message)

    return secured


async def _answer(send: Send, refusal: Refused) -> None:
    body = json.dumps(problem(refusal.status, refusal.detail)).encode()
    # The client may still be sending, so close the connection.
    headers = {
        "content-type": "application/problem+json",
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _single(headers: dict[bytes, list[bytes]], name: bytes) -> str | None:
    """The value of a header that must not be repeated."""
    values = headers.get(name, [])
    if len(values) > 1:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the header {name.decode()} was sent more than once")
    return values[0].decode("latin-1").strip() if values else None
