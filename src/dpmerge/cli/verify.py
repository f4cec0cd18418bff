"""`dpmerge verify`: recheck a release from its files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import JsonOption

_WORDS = {"holds": "holds", "broken": "BROKEN", "unchecked": "not checked", "warnings": "warning"}


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of a released model.", show_default=False)],
    portfolio: Annotated[
        Path | None,
        typer.Option(
            "--portfolio", help="The private portfolio: also check records, inputs and every tensor.", show_default=False
        ),
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="Also check that the ledger holds the entry certified.", show_default=False)
    ] = None,
    trust: Annotated[
        Path | None, typer.Option("--trust", help="Public key that must have signed the certificate.", show_default=False)
    ] = None,
    base: Annotated[
        Path | None, typer.Option("--base", help="Public base model the merge was made with.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="module:function the merge was made with, if it is one you trust.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Recompute everything a certificate says. Exit code 0: it holds, 1: it does not, 2: it could not be checked."""
    from dpmerge.cli.output import print_json
    from dpmerge.records import Portfolio
    from dpmerge.release import Ledger, trusted_key, verify as recheck

    verdict = recheck(
        folder,
        portfolio=None if portfolio is None else Portfolio(portfolio),
        ledger=None if ledger is None else Ledger(ledger),
        trust=None if trust is None else trusted_key(trust),
        base=base,
        method=method,
    )
    if json:
        print_json({"code": verdict.code, **asdict(verdict)})
    else:
        for kind, word in _WORDS.items():
            for line in getattr(verdict, kind):
                typer.echo(f"{word}: {line}")
        typer.echo(verdict.sentence)
    raise typer.Exit(verdict.code)
