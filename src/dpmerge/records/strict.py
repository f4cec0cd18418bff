"""Strict JSON files and `name=value` lists: every fault is one line that names file and field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from dpmerge.errors import DpmergeError
from dpmerge.files import read_regular
from dpmerge.records.looks import looks_like

MOST_BYTES = 64 << 20  # of a file of settings, such as a record


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


def parse_strict(
    form: type[Form], text: str, source: str, error: type[DpmergeError], too_large: Callable[[Any], str] = lambda _: ""
) -> Form:
    """Validate JSON text; `source` names it in errors. What is `too_large` is not validated: each fault would be collected."""
    try:
        if large := too_large(json.loads(text, object_pairs_hook=refuse_duplicates)):
            raise error(f"{source}: too large: {large}")
        return form.model_validate_json(text)
    except ValidationError as fault:
        raise error(f"{source}: {_first_fault(fault, form)}") from None
    except (ValueError, RecursionError) as fault:
        raise error(f"{source}: not valid JSON: {fault}") from None


def named_numbers(text: str, what: str, error: type[DpmergeError]) -> dict[str, float]:
    """Read `a=0.2,b=0.8`; a value may be a fraction (`a=1/3`). `what` is the word for a value in errors."""
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name = name.strip()
        if not equals and Path(part.strip()).is_file():
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


def _first_fault(error: ValidationError, form: type[Strict]) -> str:
    """The first fault; before it a field that looks like a misspelt one, which is why another is missing."""
    faults = error.errors(include_url=False)
    unknown = {str(fault["loc"][-1]): fault for fault in faults if fault["type"] == "extra_forbidden"}
    known = dict.fromkeys(_fields(form.model_json_schema(by_alias=True))) if unknown else {}
    like = {name: meant(name, known) for name in unknown}
    fault = next((unknown[name] for name in unknown if like[name]), faults[0])
    where = ".".join(str(part) for part in fault["loc"] if part not in _KINDS) or "record"
    what = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing":
        what = "missing; every field of the format must be given (null where it says so)"
    elif fault["type"] == "extra_forbidden":
        what = "unknown field" + (like[str(fault["loc"][-1])] or "; remove it, or check its spelling")
    elif fault["type"] == "union_tag_invalid":
        where, what = "mechanism.kind", f"must be one of {', '.join(sorted(_KINDS))} (got {_short(fault['input']['kind'])})"
        what += meant(str(fault["input"]["kind"])[:_LONG], _KINDS)
    elif fault["type"] == "union_tag_not_found":
        where, what = "mechanism.kind", "missing"
    elif fault["type"] == "json_invalid":
        return what  # of all of the text
    elif not isinstance(fault["input"], dict):
        what = f"{what[0].lower()}{what[1:]} (got {_short(fault['input'])})"
    rest = sum(one is not fault and not (one["type"] == "missing" and what.endswith(f" {one['loc'][-1]}?")) for one in faults)
    more = f" (and {rest} more field{'s' if rest > 1 else ''} at fault)" if rest else ""
    return f"field {where}: {what}{more}"
