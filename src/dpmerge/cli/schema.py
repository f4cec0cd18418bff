"""`dpmerge schema`: the record format as JSON Schema."""

from __future__ import annotations

from dpmerge.cli.options import JsonOption


def schema(json: JsonOption = False) -> None:
    """Print the JSON Schema of record.json (it is JSON with or without --json)."""
    from dpmerge.cli.output import print_json
    from dpmerge.records import Record

    print_json(Record.model_json_schema(by_alias=True))
