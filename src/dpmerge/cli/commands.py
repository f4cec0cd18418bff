"""Typer commands from functions: help under headings, groups of options as dataclasses, option names added to errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dpmerge.cli.mistakes import own_words
from dpmerge.errors import DpmergeError, TargetError
from dpmerge.user_code import added, load_function

T = TypeVar("T")
Verb = Callable[..., None]
_HEADING = "_heading"
JobsOption = Annotated[int, typer.Option(help="Processes on this machine; -1: one for each core.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Root(TyperGroup):
    """All commands under their headings. A command's file is loaded when the command is run, so that help is fast.

    Installed packages may add commands, such as the laboratory's `reproduce`; these are not listed.
    """

    table: Mapping[str, Mapping[str, tuple[str, str]]] = {}  # heading → command → its file and its summary

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for heading, verbs in self.table.items():
            for name, (_, summary) in verbs.items():
                self.commands[name] = TyperCommand(name, help=summary, rich_help_panel=heading)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        homes = {name: home for verbs in self.table.values() for name, (home, _) in verbs.items()}
        if cmd_name in homes:
            return _built(getattr(import_module(f"dpmerge.cli.{homes[cmd_name]}"), cmd_name))
        known = added("commands")
        if cmd_name in known:
            return _built(load_function(known[cmd_name], "the command", DpmergeError))
        if cmd_name == "reproduce":
            raise DpmergeError("reproduce is a command of the laboratory, which is installed from dpmerge's repository")
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for heading, verbs in self.table.items():
            _write(heading, [(name.ljust(width), summary) for name, (_, summary) in verbs.items()], formatter)


class Command(TyperCommand):
    """A command with its options under headings. An error that names an argument also names the option that sets it."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if row is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(row)
        for heading, rows in sections.items():
            _write(heading, rows, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DpmergeError as error:
            for words in own_words(error, ctx):
                error.add_note(words)
            raise


def _write(heading: str, rows: Sequence[tuple[str, str]], formatter: Any) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


def group(name: str, summary: str, *commands: Verb) -> typer.Typer:
    """A command with sub-commands."""
    made = typer.Typer(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    made.callback()(lambda: None)  # keeps a group with a single command a group
    for command in commands:
        made.command(command.__name__.replace("_", "-"), cls=Command)(_spread(command))
    return made


@cache
def _built(verb: typer.Typer | Verb) -> Any:
    if isinstance(verb, typer.Typer):
        return get_command(verb)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=Command)(_spread(verb))
    return get_command(app)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(heading: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass that commands take as one parameter: its fields are options under this heading."""

    def made(kind: type[T]) -> type[T]:
        setattr(kind, _HEADING, heading)
        return dataclass(frozen=True, kw_only=True)(kind)

    return made


def option(help: str) -> Any:
    """An option named after its parameter; a bool becomes a flag without --no-…"""
    return typer.Option(help=help)


def argument(help: str) -> Any:
    return typer.Argument(help=help)


def _spread(function: Verb) -> Verb:
    """The function for Typer: a parameter that is a group of options is replaced by its options."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {key: hint for key, hint in hints.items() if is_dataclass(hint)}
    spread: list[Parameter] = []
    for parameter in signature(function).parameters.values():
        if (kind := groups.get(parameter.name)) is None:
            spread.append(_parameter(parameter.name, hints[parameter.name], parameter.default))
        else:
            inner = get_type_hints(kind, include_extras=True)
            defaults = {one.name: Parameter.empty if one.default is MISSING else one.default for one in fields(kind)}
            spread += [_parameter(name, inner[name], default, getattr(kind, _HEADING)) for name, default in defaults.items()]

    @wraps(function)
    def called(**given: Any) -> None:
        made = {key: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for key, kind in groups.items()}
        function(**given, **made)

    called.__signature__ = Signature(spread)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    return called


def _parameter(name: str, hint: Any, default: Any, heading: str | None = None) -> Parameter:
    plain, *stated = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if stated:
        stated[0] = copy(stated[0])
        stated[0].rich_help_panel = heading
        if plain is bool and stated[0].default is ...:
            stated[0].param_decls = (f"--{name.replace('_', '-')}",)
        hint = Annotated[plain, stated[0]]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def only(context: typer.Context, mode: str, *allowed: Any) -> None:
    """Refuse options that have no meaning in this mode of the command. A group in `allowed` stands for all its fields."""
    names = {name for one in allowed for name in ([one] if isinstance(one, str) else [each.name for each in fields(one)])}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in names:
            raise TargetError(f"{parameter.opts[0]} has no meaning {mode}")
