"""A mistake in one line: what the command line adds to the library's errors, and how it says its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dpmerge.errors import DpmergeError, MissingLedger, MissingRecord, one_line

# The parent of Typer's exported error: its own, or click's in older versions.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_VALUES = {"number": "it must be a number", "float": "it must be a number", "integer": "it must be a whole number"}


def own_words(error: DpmergeError, context: Any) -> Iterator[str]:
    """The options that set the arguments an error names, the command that mends it, and arguments that seem swapped."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params if parameter.name}
    named = [option for name, option in options.items() if re.search(_mention(name), str(error))]
    if named:
        yield f"(on the command line: {', '.join(named)})"
    if isinstance(error, MissingRecord) and error.folder is not None:
        yield f"(on the command line: dpmerge record new {shlex.quote(str(error.folder))})"
    if isinstance(error, MissingLedger):
        yield "(on the command line: dpmerge ledger new)"
    place, out = (context.params.get(name) for name in ("portfolio", "out"))
    if place is not None and out is not None and not Path(place).is_dir() and any(Path(out).glob("*/record.json")):
        yield f"({out}, given as --out, is a portfolio: are the two swapped?)"


def _mention(name: str) -> str:
    """Matches an argument in a message: `name=`, in backticks, or with an underscore."""
    if name == "treat_shuffle_as_poisson":
        return "ShuffleAsPoisson"
    return rf"\b{name}\b" if "_" in name else rf"\b{name}=|`{name}`"


def in_one_line(error: Exception, debug: bool = False) -> str:
    """What is printed of an error; without a command, the help."""
    if isinstance(error, UsageError):
        return _usage(error)
    words = ["error:", one_line(error), *getattr(error, "__notes__", ())]
    if isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, DpmergeError) and not debug:
        words.append("(--debug shows the traceback)")
    return " ".join(words)


def _usage(error: Any) -> str:
    text = str(error.format_message())
    text = re.sub(r"\. Choose from:\s+(.+)", lambda found: f": one of {' '.join(found[1].split())}", text, flags=re.DOTALL)
    if "\n" in text:  # the help of a group, given without a command
        return text
    text = re.sub(r" \(Possible options: (.*)\)", r"; did you mean \1?", text).replace("Value error, ", "")
    text = re.sub(r"Input should be a valid (number|integer).*", lambda found: _VALUES[found[1]], text)
    text = re.sub(r"'[^']*' is not a valid (float|integer).*", lambda found: _VALUES[found[1]], text)  # click's words
    text = text.replace(". Did you mean", "; did you mean").removesuffix(".")
    context = getattr(error, "ctx", None)
    if "unexpected extra" in text and context is not None:
        takes = [one.name.upper() for one in context.command.params if one.param_type_name == "argument"]
        text += f"; the command takes {' '.join(takes) or 'none'}, and options"
    return f"error: {text[:1].lower()}{text[1:]}" + (f" (see {context.command_path} --help)" if context is not None else "")
