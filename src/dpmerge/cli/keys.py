"""`dpmerge keys`: Ed25519 keys to sign certificates with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import JsonOption

app = typer.Typer(no_args_is_help=True, help="Keys to sign certificates with.", rich_markup_mode=None)


@app.callback()
def _keys() -> None:
    pass


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="Where the private key goes; the public one gets .pub.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Make a pair of keys: sign with the first (merge --sign), hand out the second (verify --trust)."""
    from dpmerge.cli.output import print_json
    from dpmerge.release import new_keys

    public = new_keys(path)
    if json:
        print_json({"private": str(path), "public": str(public)})
    else:
        typer.echo(f"{path}: private, keep it; {public}: public, hand it out")
