"""Write `api.d.ts`: what the explorer's API takes and answers, as TypeScript types for the page's scripts.

python -m tools.page.api_types
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dpmerge.explorer import answers, requests

PLACE = Path(__file__).with_name("api.d.ts")
_HEADER = "// Written by tools/page/api_types.py from dpmerge.explorer's requests and answers; a test compares them.\n"
_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}


def declarations() -> str:
    """One interface per model. An answer has all its fields; a request may leave out those with a default."""
    known = vars(requests) | vars(answers)
    classes = [one for one in known.values() if isinstance(one, type) and issubclass(one, BaseModel)]
    public = [one for one in classes if one is not BaseModel and not one.__name__.startswith("_")]
    _, schema = models_json_schema([(one, "serialization") for one in public])
    return "\n".join([_HEADER, *(_interface(name, one) for name, one in sorted(schema["$defs"].items()))])


def _interface(name: str, schema: dict[str, Any]) -> str:
    optional = set(schema["properties"]) - set(schema.get("required", [])) if name.endswith("Request") else set()
    fields = [f"  {field}{'?' * (field in optional)}: {_type(one)};\n" for field, one in schema["properties"].items()]
    return f"interface {name} {{\n{''.join(fields)}}}\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"Array<{_type(schema['items'])}>"
    if schema.get("type") == "object":
        named = schema.get("propertyNames", {}).get("enum")
        key = " | ".join(map(json.dumps, named)) if named else "string"
        values = schema.get("additionalProperties", True)
        return f"Record<{key}, {'any' if values is True else _type(values)}>"
    return _PLAIN.get(schema.get("type", ""), "any")


if __name__ == "__main__":
    PLACE.write_text(declarations())
