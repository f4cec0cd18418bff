"""How commands become Typer's: help under headings, groups of options spread into signatures, words added to errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from dpmerge.errors import DpmergeError, TargetError

Verb = Callable[..., None]
HEADINGS = (
    "Account",
    "Plan",
    "Release",
    "Train and record",
    "Checkpoints of one run",
    "Page and report",
    "Laboratory",
    "Tools",
)


class Root(TyperGroup):
    """All commands, listed under the headings they were registered with, and those that installed packages add."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _added(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, shown))
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for name, command in shown.items():
            summary = command.get_short_help_str(formatter.width - width - 4)
            sections.setdefault(_heading(command) or "Commands", []).append((name.ljust(width), summary))
        _write(sections, formatter)


class Command(TyperCommand):
    """A command with its options under headings. An error that names an argument also names the option that sets it."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if row is not None:
                sections.setdefault(_heading(parameter) or default, []).append(row)
        _write(sections, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DpmergeError as error:
            options = {parameter.name: parameter.opts[0] for parameter in self.params if parameter.name}
            named = [option for name, option in options.items() if re.search(rf"\b{name}=|`{name}`", str(error))]
            if named:
                error.add_note(f"(on the command line: {', '.join(named)})")
            raise


def _heading(shown: Any) -> str | None:
    heading = getattr(shown, "rich_help_panel", None)
    return heading if isinstance(heading, str) else None


def _write(sections: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    for heading, rows in ((heading, rows) for heading, rows in sections.items() if rows):
        with formatter.section(heading):
            formatter.write_dl(rows)


def _added(name: str) -> Any:
    """A command of an installed package, looked for only when it is asked for: help stays quick."""
    from dpmerge.user_code import added, load_function

    known = added("commands")
    if name in known:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        add(app, load_function(known[name], "the command", DpmergeError))
        return typer.main.get_command(app)
    if name == "reproduce":
        raise DpmergeError("reproduce is a command of the laboratory: pip install ./lab in dpmerge's repository")
    return None


def group(name: str, summary: str, commands: Iterable[Verb]) -> typer.Typer:
    """A verb with verbs of its own."""
    made = typer.Typer(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    made.callback()(lambda: None)  # one that has a single command is still a group
    for command in commands:
        add(made, command)
    return made


def add(app: typer.Typer, verb: typer.Typer | Verb, heading: str | None = None) -> None:
    """Register a verb: a group, or a function under its own name.

    A parameter that is a dataclass stands for its fields: each becomes an option under the heading of the dataclass, and the
    function gets the dataclass.
    """
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, rich_help_panel=heading)
    else:
        app.command(verb.__name__.replace("_", "-"), cls=Command, rich_help_panel=heading)(_spread(verb))


def option(help: str) -> Any:
    """An option named after its parameter; for a truth value a flag without an opposite."""
    return typer.Option(help=help)


def argument(help: str) -> Any:
    return typer.Argument(help=help)


def _spread(function: Verb) -> Verb:
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {key: hint for key, hint in hints.items() if is_dataclass(hint)}
    spread: list[Parameter] = []
    for parameter in signature(function).parameters.values():
        if (kind := groups.get(parameter.name)) is None:
            spread.append(_parameter(parameter.name, hints[parameter.name], parameter.default))
        else:
            inner = get_type_hints(kind, include_extras=True)
            defaults = {one.name: Parameter.empty if one.default is MISSING else one.default for one in fields(kind)}
            spread += [_parameter(name, inner[name], default, kind.heading) for name, default in defaults.items()]

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
    """Refuse every option that was given and has no meaning in this mode of the command. Groups allow all their fields."""
    names = {name for one in allowed for name in ([one] if isinstance(one, str) else [each.name for each in fields(one)])}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in names:
            raise TargetError(f"{parameter.opts[0]} has no meaning {mode}")
