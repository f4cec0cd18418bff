"""`dpmerge cache`: where answers are kept, and how to forget them."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmerge.cli.options import JsonOption


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Forget every answer.")] = False,
    json: JsonOption = False,
) -> None:
    """Where answers are kept on disk, how many, and how large; set DPMERGE_CACHE to another folder, or to off."""
    from dpmerge.cache import cache_entries, cache_folder
    from dpmerge.cli.output import print_json

    folder = cache_folder()
    entries = [] if folder is None else cache_entries(folder)
    size = sum(path.stat().st_size for path in entries)
    if clear:
        for path in entries:
            path.unlink(missing_ok=True)
    if json:
        where = None if folder is None else str(folder)
        print_json({"folder": where, "entries": len(entries), "bytes": size, "cleared": clear})
    elif folder is None:
        typer.echo("no answers are kept (DPMERGE_CACHE is off)")
    else:
        typer.echo(f"{folder}: {len(entries)} answers, {size / 1e6:.1f} MB{', forgotten' if clear else ''}")
