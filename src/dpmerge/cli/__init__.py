"""The command line: one file for each group of verbs, thin. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import logging
import os
import sys

import typer

from dpmerge.cli import accounting, audit, ledger, pages, planning, release, run, run_study, tools, training
from dpmerge.cli.app import HEADINGS, Root, Verb, add, group
from dpmerge.cli.options import JobsOption as JobsOption, JsonOption as JsonOption
from dpmerge.cli.output import print_json as print_json, show_progress as show_progress, table as table
from dpmerge.errors import DpmergeError, one_line

app = typer.Typer(
    name="dpmerge",
    cls=Root,
    help="Differentially private model merging: what a merged model guarantees, and why.",
    epilog="With the laboratory (lab/), `dpmerge reproduce` runs the papers' experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledger_verbs: list[Verb] = [ledger.new, ledger.show, ledger.history, ledger.remaining, ledger.export, ledger.void]
run_verbs: list[Verb] = [run.average, run.predict, run_study.choose, run_study.uncertainty]
verbs = (
    (accounting.account, accounting.compare),
    (planning.plan, planning.frontier),
    (release.merge, release.verify, group("ledger", "The budget of a private dataset, and its releases.", ledger_verbs)),
    (training.train, group("record", "Records of models that were trained elsewhere.", [training.from_opacus])),
    (group("run", "Average, predict, choose and measure uncertainty.", run_verbs),),
    (pages.explore, pages.report),
    (audit.audit,),
    (group("tools", "The record format, the cache, and keys.", [tools.schema, tools.cache, tools.keys]),),
)
for heading, several in zip(HEADINGS, verbs, strict=True):
    for verb in several:
        add(app, verb, heading)


def _version(wanted: bool) -> None:
    if wanted:
        from dpmerge import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
) -> None:
    told = logging.getLogger("dpmerge.records")
    told.setLevel(logging.INFO)
    told.handlers = [_OnStderr()]


class _OnStderr(logging.Handler):
    """What the library notices, one line each, beside whatever the command prints."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)


def main() -> None:
    """Run a command; an error raised on purpose is one line on stderr and exit code 2."""
    # Accounting multiplies vectors, not matrices: a second BLAS thread only gets in the way of other processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except DpmergeError as error:
        typer.echo(" ".join(["error:", one_line(error), *getattr(error, "__notes__", ())]), err=True)
        sys.exit(2)
