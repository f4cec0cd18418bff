"""`dpmerge explore` and `dpmerge report`: an interactive page, and a self-contained one to share."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.commands import JsonOption, option
from dpmerge.cli.options import Execution, Granted, PortfolioArgument, Shuffle, Utility, UtilityOption
from dpmerge.cli.output import echo, print_json, show_progress
from dpmerge.errors import ExplorerError
from dpmerge.figures import page, require_library, require_place
from dpmerge.files import write_whole
from dpmerge.records import Portfolio
from dpmerge.release import Ledger
from dpmerge.rules import Target

if TYPE_CHECKING:
    from dpmerge.explorer import Door


def explore(
    portfolio: PortfolioArgument,
    granted: Shuffle,
    ledger: Annotated[str | None, option("The ledger to show and to enter releases in: a file, or a database URL.")] = None,
    utility: UtilityOption = None,
    delta: Annotated[float | None, option("The δ to begin with (default: the ledger's, or 1e-5).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8710,
    host: Annotated[str, option("Address to listen on; any but loopback needs --token.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DPMERGE_EXPLORER_TOKEN",
            show_envvar=True,
            help="Secret that clients must send for changes. Other users can see the command line: prefer the variable.",
        ),
    ] = None,
    allow_release: Annotated[bool, option("Let the page release models.")] = False,
    releases: Annotated[Path | None, option("Folder for releases (default: .releases in the portfolio).")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    json: JsonOption = False,
) -> None:
    """Explore a portfolio in the browser.

    Targets, weights, guarantees, releases. Only this machine can reach the page unless --host says otherwise. On loopback a
    token is created and printed if none is given; the page asks for it before any change.
    """
    try:
        from dpmerge.explorer import Explorer, taking
    except ModuleNotFoundError as missing:
        raise ExplorerError(f"{missing.name} is not installed: install dpmerge[explorer]") from None

    if delta is not None:
        Target(delta=delta)
    door = _door(host, port, token)
    with taking(host, port) as place:
        door = replace(door, port=place.port)
        app = Explorer(portfolio, door, ledger, utility, granted.accounting(), allow_release, releases, delta).app()
        server = place.listen(app)
        made = None if token is not None else door.token  # never print a token the user supplied
        if json:
            line = {"url": place.url, "token": made, "allow_release": allow_release, "ledger": ledger is not None}
            print_json(line, indent=None)  # it is flushed, so the parent process can read the URL
        else:
            echo(f"{place.url} (leave with Ctrl-C)")
            if made is not None:
                echo(f"token for this session: {made}")
        if browser and door.is_loopback:
            threading.Thread(target=_open, args=(place.url,), daemon=True).start()
        place.run(server)


def _door(host: str, port: int, token: str | None) -> Door:
    """The given token; on loopback, without one, a new token."""
    from dpmerge.explorer import Door

    made = Door(host, port, secrets.token_urlsafe(24))
    return made if token is None and made.is_loopback else Door(host, port, token)


def _open(url: str) -> None:
    """Open the page in the user's browser, if there is one."""
    import webbrowser

    with suppress(Exception):
        webbrowser.open(url)


def report(
    portfolio: PortfolioArgument,
    utility: Utility,
    granted: Granted,
    execution: Execution,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; an existing one is replaced.")] = Path("report.html"),
    delta: Annotated[float | None, option("The δ of every guarantee (default: the ledger's, or 1e-5).")] = None,
    epsilon: Annotated[
        list[float] | None,
        option("A target ε. Repeatable. Without it: three targets, from half the smallest ε of a model to the largest."),
    ] = None,
    ledger: Annotated[str | None, option("Also show this ledger's history and remaining budget.")] = None,
    points: Annotated[
        int | None,
        typer.Option(min=1, help="Averages without noise on each edge (default: none where noise at release pays, else 25)."),
    ] = None,
    grid: Annotated[float, option("Distance between neighbouring weights; must divide 1.")] = 0.05,
    json: JsonOption = False,
) -> None:
    """One self-contained page about a portfolio.

    The models, plans for some targets, the frontier, ε over all weights, the budget.
    """
    from dpmerge.explorer import ReportScope, report as make_report

    if delta is None:
        delta = 1e-5 if ledger is None else Ledger(ledger).budget.delta
    granted.require(delta)
    require_place(out, ".html")
    require_library(".html")
    asked = ReportScope(delta, tuple(epsilon or ()), points, grid)
    loaded = Portfolio(portfolio)
    loaded.require_outside(out)
    with execution.workers("combinations") as run:
        document = make_report(
            loaded,
            asked,
            run=run,
            utility=utility.of(loaded),
            accounting=granted.accounting(),
            ledger=ledger,
            progress=show_progress,
        )
    write_whole(page(document).encode(), out)
    if json:
        print_json(document)
        return
    echo(str(out))
    if document["warning"]:
        echo(f"note: {document['warning']}")
