"""The command line: one file per verb, thin. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import logging
import os
import sys

import typer

from dpmerge.cli import (
    account,
    aggregate,
    audit,
    cache,
    compare,
    explore,
    frontier,
    heatmap,
    keys,
    ledger,
    merge,
    plan,
    predict,
    profile,
    record,
    report,
    schema,
    train,
    tune,
    tuning_cost,
    uncertainty,
    verify,
)
from dpmerge.cli.options import JsonOption as JsonOption
from dpmerge.cli.output import print_json as print_json, table as table
from dpmerge.cli.pictures import JobsOption as JobsOption
from dpmerge.cli.progress import show_progress as show_progress
from dpmerge.errors import DpmergeError, one_line

app = typer.Typer(
    name="dpmerge",
    help="Differentially private model merging: what a merged model guarantees, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("account")(account.account)
app.command("profile")(profile.profile)
app.command("compare")(compare.compare)
app.command("plan")(plan.plan)
app.command("frontier")(frontier.frontier)
app.command("heatmap")(heatmap.heatmap)
app.command("explore")(explore.explore)
app.command("report")(report.report)
app.command("merge")(merge.merge)
app.command("aggregate")(aggregate.aggregate)
app.command("predict")(predict.predict)
app.command("uncertainty")(uncertainty.uncertainty)
app.command("tune")(tune.tune)
app.command("tuning-cost")(tuning_cost.tuning_cost)
app.command("verify")(verify.verify)
app.add_typer(record.app, name="record")
app.add_typer(ledger.app, name="ledger")
app.add_typer(keys.app, name="keys")
app.command("train")(train.train)
app.command("audit")(audit.audit)
app.command("cache")(cache.cache)
app.command("schema")(schema.schema)


def _version(wanted: bool) -> None:
    if wanted:
        from dpmerge import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and leave."),
) -> None:
    told = logging.getLogger("dpmerge.records")
    told.setLevel(logging.INFO)
    told.handlers = [_OnStderr()]


class _OnStderr(logging.Handler):
    """What was noticed on the way, one line each, beside whatever the command prints."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)


def _add_commands() -> None:
    """Commands of installed packages: the laboratory's `reproduce`."""
    from dpmerge.user_code import added, load_function

    for name, where in added("commands").items():
        app.command(name)(load_function(where, "the command", DpmergeError))


_add_commands()


def main() -> None:
    """Run a command; an error raised on purpose is one line on stderr and exit code 2."""
    # Accounting multiplies vectors, not matrices: a second BLAS thread only gets in the way of other processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except DpmergeError as error:
        typer.echo(f"error: {one_line(error)}", err=True)
        sys.exit(2)
