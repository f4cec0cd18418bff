"""`dpmerge tools`: the record format, the cache, and keys."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from dpmerge.cache import cache_entries, cache_folder, cache_limits
from dpmerge.cli.commands import JsonOption, argument, group, option
from dpmerge.cli.output import echo, print_json
from dpmerge.records import Record
from dpmerge.release import new_keys


def schema(json: JsonOption = False) -> None:
    """The JSON Schema of record.json (JSON with or without --json)."""
    print_json(Record.model_json_schema(by_alias=True))


def cache(clear: Annotated[bool, option("Delete every cached answer.")] = False, json: JsonOption = False) -> None:
    """Where results are cached, and how many.

    To change it, set the environment variable DPMERGE_CACHE to a folder, or to off. When there are more answers than
    DPMERGE_CACHE_FILES (20000), or more megabytes than DPMERGE_CACHE_MB (256), those not read for longest are removed.
    """
    folder = cache_folder()
    entries = [] if folder is None else cache_entries(folder)
    files, most = cache_limits()
    size = 0
    for path in entries:
        with suppress(FileNotFoundError):  # another process removed it
            size += path.stat().st_size
    if clear:
        for path in entries:
            path.unlink(missing_ok=True)
    if json:
        where = None if folder is None else str(folder)
        limits = {"entries": files, "bytes": most}
        print_json({"folder": where, "entries": len(entries), "bytes": size, "cleared": clear, "limits": limits})
    elif folder is None:
        echo("no answers are cached (DPMERGE_CACHE is off)")
    else:
        limit = f"at most {files} and {most / 1e6:.0f} MB"
        echo(f"{folder}: {len(entries)} answers, {size / 1e6:.1f} MB{', deleted' if clear else ''} ({limit})")


def keys(
    path: Annotated[Path, argument("File for the private key; the public key gets the suffix .pub.")],
    json: JsonOption = False,
) -> None:
    """Create a pair of Ed25519 keys to sign certificates.

    Sign with the private key (merge --sign); give the public key to others (verify --trust).
    """
    public = new_keys(path)
    if json:
        print_json({"private": str(path), "public": str(public)})
    else:
        echo(f"{path}: private key, keep it secret; {public}: public key, give it to others")


tools = group("tools", "The record format, the cache, and keys.", schema, cache, keys)
