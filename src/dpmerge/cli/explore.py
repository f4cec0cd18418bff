"""`dpmerge explore`: the page where people turn the privacy knob, and the HTTP API under it."""

from __future__ import annotations

import json as json_format
import threading
from contextlib import suppress
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
    from dpmerge.explorer import Door


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
        from dpmerge.explorer import Explorer, taking
    except ModuleNotFoundError as missing:
        raise ExplorerError(f"{missing.name} is not installed: pip install 'dpmerge[explorer]'") from None

    door = _door(host, port, token)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    with taking(host, port) as place:
        door = replace(door, port=place.port)
        app = Explorer(portfolio, door, ledger, utility, shuffle, allow_release, releases).app()
        server = place.listen(app)
        made = None if token is not None else door.token
        _announce(place.url, made, json=json, allow_release=allow_release, ledger=ledger is not None)
        if browser and door.is_loopback:
            threading.Thread(target=_open, args=(place.url,), daemon=True).start()
        place.run(server)


def _door(host: str, port: int, token: str | None) -> Door:
    """The door with the token given; on loopback, where none is, with one made now."""
    import secrets

    from dpmerge.explorer import Door

    made = Door(host, port, secrets.token_urlsafe(24))
    return made if token is None and made.is_loopback else Door(host, port, token)


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
