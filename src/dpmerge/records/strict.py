"""Strict JSON files and `name=value` lists: every fault is one line that names file and field."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from dpmerge.errors import DpmergeError
from dpmerge.files import read_regular
from dpmerge.records.looks import looks_like

MOST_BYTES = 16 << 20  # of a file of settings, such as a record: as Python objects it is thirty times as large


MOST_VALUES = 500_000  # in such a file: of a record, 100,000 phases


class Strict(BaseModel):
    """Immutable data that refuses unknown fields, converted types, NaN and infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Extended(Strict):
    """A form that was given fields after it had been published.

    Where one of these is None or empty it is not written: the form has the bytes, and the hash, that it had without it.
    """

    added: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _as_before(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = plain(self)
        return {name: value for name, value in written.items() if value not in (None, []) or name not in self.added}


Form = TypeVar("Form", bound=Strict)


def load_strict(form: type[Form], path: Path, error: type[DpmergeError], if_missing: str) -> Form:
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file; {if_missing}") from None
    except (OSError, UnicodeDecodeError) as fault:
        why = f"is {looks_like(path)}, not a file" if path.is_dir() else f"cannot be read: {fault}"
        raise error(f"{path}: {why}") from None
    return parse_strict(form, text, str(path), error)


def parse_strict(form: type[Form], text: str, source: str, error: type[DpmergeError], most_values: int = MOST_VALUES) -> Form:
    """Validate JSON text; `source` names it in errors. What is too large is not validated: each fault would hold a copy."""
    held: Any = None
    try:
        held = json.loads(text, object_pairs_hook=refuse_duplicates)
        if _has_more_values(held, most_values):
            raise error(f"{source}: too large: it holds more than {most_values:,} values")
        return form.model_validate_json(text)
    except ValidationError as fault:
        raise error(f"{source}: {_first_fault(fault, form, held)}") from None
    except (ValueError, RecursionError) as fault:
        raise error(f"{source}: not valid JSON: {fault}") from None


def _has_more_values(content: Any, most: int) -> bool:
    """Whether plain data holds more numbers, texts, lists and objects; counted without recursion, and no further."""
    waiting, seen = [content], 0
    while waiting and seen <= most:
        value = waiting.pop()
        inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        seen += 1 + len(inside)
        waiting.extend(one for one in inside if isinstance(one, dict | list))
    return seen > most


def named_numbers(text: str, what: str, error: type[DpmergeError]) -> dict[str, float]:
    """Read `a=0.2,b=0.8`; a value may be a fraction (`a=1/3`). `what` is the word for a value in errors."""
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name = name.strip()
        if not equals and os.path.isfile(part.strip()):  # which answers for any text
            raise error(f"{part.strip()}: is a file, not a {what}; write name=value, separated by commas")
        if not equals or not name:
            raise error(f"cannot read the {what} {part.strip()!r}; write name=value, separated by commas")
        if name in given:
            raise error(f"the {what} of {name!r} is given twice")
        try:
            given[name] = float(Fraction(value.strip())) if "/" in value else float(value)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise error(f"the {what} of {name!r} is {value.strip()!r:.80}, which is not a number") from None
    return given


def meant(given: str, known: Iterable[str]) -> str:
    """For a message about a name that is not known: which known one it resembles, if any."""
    close = get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The hook by which JSON objects with a repeated field are refused."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the field {key!r} appears twice")
        found[key] = value
    return found


_LONG = 120
_KINDS = {"dp-sgd", "gaussian", "dp-ftrl", "approx-dp", "rdp", "non-private"}


def _fields(schema: Any) -> Iterator[str]:
    """Every field's name anywhere in a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from _fields(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _fields(part)


def _short(value: object) -> str:
    """A value in a message."""
    shown = repr(value)
    return shown if len(shown) <= _LONG else f"{shown[:_LONG]}…"


def _given(held: Any, place: Iterable[str | int]) -> Any:
    """What is at a fault's place: not taken from pydantic, which would make the whole of it anew for each fault."""
    for part in place:
        if part in (held if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ()):
            held = held[part]
    return held


def _first_fault(error: ValidationError, form: type[Strict], held: Any) -> str:
    """The first fault; before it a field that looks like a misspelt one, which is why another is missing."""
    faults = error.errors(include_url=False, include_input=False)
    unknown = {str(fault["loc"][-1]): fault for fault in faults if fault["type"] == "extra_forbidden"}
    known = dict.fromkeys(_fields(form.model_json_schema(by_alias=True))) if unknown else {}
    like = {name: meant(name, known) for name in unknown}
    fault = next((unknown[name] for name in unknown if like[name]), faults[0])
    where = ".".join(str(part) for part in fault["loc"] if part not in _KINDS) or "record"
    what, given = fault["msg"].removeprefix("Value error, "), _given(held, fault["loc"])
    if fault["type"] == "missing":
        what = "missing; every field of the format must be given (null where it says so)"
    elif fault["type"] == "extra_forbidden":
        what = "unknown field" + (like[str(fault["loc"][-1])] or "; remove it, or check its spelling")
    elif fault["type"] == "union_tag_invalid":
        where, what = "mechanism.kind", f"must be one of {', '.join(sorted(_KINDS))} (got {_short(given['kind'])})"
        what += meant(str(given["kind"])[:_LONG], _KINDS)
    elif fault["type"] == "union_tag_not_found":
        where, what = "mechanism.kind", "missing"
    elif fault["type"] == "json_invalid":
        return what  # of all of the text
    elif not isinstance(given, dict):
        what = f"{what[0].lower()}{what[1:]} (got {_short(given)})"
    rest = sum(one is not fault and not (one["type"] == "missing" and what.endswith(f" {one['loc'][-1]}?")) for one in faults)
    more = f" (and {rest} more field{'s' if rest > 1 else ''} at fault)" if rest else ""
    return f"field {where}: {what}{more}"
