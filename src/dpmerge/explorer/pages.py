"""Everything besides the API: error answers, the page, and the API's description. No external resources."""

from __future__ import annotations

import html
import logging
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dpmerge.errors import DpmergeError, JobError
from dpmerge.explorer.releases import UnknownRelease
from dpmerge.explorer.security import problem

PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_LOG = logging.getLogger("dpmerge.explorer")


def handle_errors(app: FastAPI) -> None:
    """Errors become problem+json: a dpmerge error with its message, an unexpected one without details."""

    def refuse(status: int, detail: str) -> JSONResponse:
        return JSONResponse(problem(status, detail), status, media_type="application/problem+json")

    @app.exception_handler(DpmergeError)
    async def known_error(request: Request, error: DpmergeError) -> JSONResponse:
        return refuse(429 if isinstance(error, JobError) else 404 if isinstance(error, UnknownRelease) else 422, str(error))

    @app.exception_handler(ClientDisconnect)
    async def hung_up(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}".strip(": ") for one in error.errors()]
        return refuse(422, "; ".join(faults[:5]))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        answer = refuse(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("unexpected: %s", type(error).__name__)
        return refuse(500, "the server failed unexpectedly; its terminal shows the error")


def add_pages(app: FastAPI) -> None:
    """Routes of the page and of the API's description."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_description(app.openapi()))

    files = {path.name: path for path in PAGE.iterdir() if path.suffix in _TYPES}

    @app.get("/", include_in_schema=False)
    @app.get("/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        """A shipped file of the page, looked up by name; paths are never opened."""
        found = files.get(name)
        if found is None:
            raise HTTPException(404, "no such page; the API is described at /docs")
        return Response(await anyio.Path(found).read_bytes(), media_type=_TYPES[found.suffix])


def _description(schema: dict[str, Any]) -> str:
    rows = []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            text = html.escape(route.get("description") or route.get("summary", ""))
            rows.append(f"<dt><code>{method.upper()} {html.escape(path)}</code></dt><dd>{text}</dd>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="/icon.svg">'
        '<link rel="stylesheet" href="/style.css">'
        "<title>dpmerge explorer: the API</title></head><body><main><h1>dpmerge explorer: the API</h1>"
        f"<p>{html.escape(schema['info']['description'])} "
        'Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<dl>{''.join(rows)}</dl></main></body></html>"
    )
