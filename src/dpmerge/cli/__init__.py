"""The command line: one thin file for each group of commands, loaded when one of them is run."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import NoReturn

import typer

from dpmerge.cli.commands import JobsOption as JobsOption, JsonOption as JsonOption, Root
from dpmerge.cli.mistakes import UsageError, in_one_line
from dpmerge.cli.output import (
    echo as echo,
    echo_lines,
    print_json as print_json,
    show_progress as show_progress,
    table as table,
)
from dpmerge.errors import DpmergeError

Root.table = {
    "Account": {
        "account": ("accounting", "What a merge guarantees: ε at δ, or δ at ε."),
        "compare": ("accounting", "The same weights under every rule and baseline."),
    },
    "Plan": {
        "plan": ("planning", "The best weights within (ε, δ), under every rule."),
        "frontier": ("planning", "Utility against ε at many targets, drawn."),
    },
    "Release": {
        "merge": ("release", "Release a model with a certificate."),
        "verify": ("release", "Recheck a release from its files."),
        "ledger": ("ledger", "The budget of a private dataset, and its releases."),
    },
    "Train and record": {
        "train": ("training", "Train several private models on one data set."),
        "record": ("training", "Records of models trained elsewhere, fingerprints of data."),
    },
    "Checkpoints of one run": {"run": ("run", "Average, predict, choose, and estimate uncertainty.")},
    "Page and report": {
        "explore": ("pages", "Explore a portfolio in the browser."),
        "report": ("pages", "One self-contained page about a portfolio."),
    },
    "Laboratory": {"audit": ("audit", "Attack a release, to bound its ε from below.")},
    "Tools": {
        "tools": ("tools", "The record format, the cache, and keys."),
        "help": ("topics", "The documentation, by topic."),
    },
}
app = typer.Typer(
    name="dpmerge",
    cls=Root,
    help="Differentially private model merging: what a merged model guarantees, and why.",
    epilog="The laboratory adds `dpmerge reproduce`: the papers' experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_DEBUG = "--debug"


def _version(wanted: bool) -> None:
    if wanted:
        from dpmerge import __version__

        echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
    debug: bool = typer.Option(False, _DEBUG, help="Show the traceback of an error. May stand anywhere."),
) -> None:
    logger = logging.getLogger("dpmerge.records")
    logger.setLevel(logging.INFO)
    logger.handlers = [_OnStderr()]


class _OnStderr(logging.Handler):
    """Print the library's notices on stderr, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(f"note: {record.getMessage()}", err=True)


def main() -> None:
    """Run a command; a dpmerge error, and a mistake in the command itself, become one line on stderr and exit code 2."""
    # Accounting multiplies vectors, not matrices: more BLAS threads would only compete with other processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = [word for word in sys.argv[1:] if word != _DEBUG]
    debug = len(words) < len(sys.argv) - 1
    try:
        code = app(words, prog_name="dpmerge", standalone_mode=False)
    except (DpmergeError, UsageError) as error:
        _end(error, debug)
    except typer.Abort:
        echo("stopped", err=True)
        sys.exit(1)
    sys.exit(code or 0)


def _end(error: Exception, debug: bool) -> NoReturn:
    if debug:
        echo_lines("".join(traceback.format_exception(error)).rstrip("\n"), err=True)
    if isinstance(error, UsageError):  # the help of a group, given without a command, has several lines
        echo_lines(in_one_line(error), err=True)
    else:
        echo(in_one_line(error, debug), err=True)
    sys.exit(2)
