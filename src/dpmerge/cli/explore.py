"""`dpmerge explore`: the page where people turn the privacy knob, and the HTTP API under it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import (
    PortfolioArgument,
    ShuffleOption,
    ShuffleRateOption,
    UtilityOption,
    shuffle_treatment,
)


def explore(
    portfolio: PortfolioArgument,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Ledger to show and release into: a file, or a database URL.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8710,
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
) -> None:
    """Explore a portfolio in the browser: targets, weights, guarantees, releases. On this machine only, unless told otherwise.

    Where releasing is allowed and no token is given, one is made and printed: the page asks for it.
    """
    import secrets
    import webbrowser

    try:
        import uvicorn

        from dpmerge.explorer.api import Explorer
    except ModuleNotFoundError as missing:
        from dpmerge.errors import DpmergeError

        raise DpmergeError(f"{missing.name} is not installed: pip install 'dpmerge[explorer]'") from None
    from dpmerge.explorer.security import Door

    given = token
    if given is None and allow_release and Door(host, port, secrets.token_urlsafe(24)).is_loopback:
        given = secrets.token_urlsafe(24)
    door = Door(host, port, given)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    app = Explorer(portfolio, door, ledger, utility, shuffle, allow_release, releases).app()
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}/"
    typer.echo(f"{url} (leave with Ctrl-C)")
    if given is not None and token is None:
        typer.echo(f"token for this session: {given}")
    if browser and door.is_loopback:
        webbrowser.open(url)
    # No access log: it would tell who asked what. No more is accepted than the guard would let in.
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=1024,
        timeout_graceful_shutdown=3,
    )
