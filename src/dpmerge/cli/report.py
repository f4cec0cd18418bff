"""`dpmerge report`: the explorer's pictures as one page to send to someone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    JsonOption,
    PortfolioArgument,
    ProvenanceOption,
    ShuffleOption,
    ShuffleRateOption,
    UtilityOption,
    shuffle_treatment,
)
from dpmerge.cli.pictures import ClusterOption, JobsOption
from dpmerge.cli.progress import show_progress


def report(
    portfolio: PortfolioArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; one that is there is replaced.")] = Path("report.html"),
    delta: Annotated[float, typer.Option("--delta", help="The δ of every guarantee but the ledger's.")] = 1e-5,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(
            "--epsilon",
            help="A target ε (may be repeated). Without any: three, from half the smallest ε of a model alone to the largest.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger", help="Also what this ledger still allows, and its history: a file or a URL.", show_default=False
        ),
    ] = None,
    utility: UtilityOption = None,
    provenance: ProvenanceOption = None,
    points: Annotated[
        int, typer.Option("--points", min=1, help="Linear combinations on each edge from the most private model.")
    ] = 25,
    grid: Annotated[float, typer.Option("--grid", help="Distance of neighbouring weights; a divisor of 1.")] = 0.05,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    cluster: ClusterOption = None,
    jobs: JobsOption = -1,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """One page that needs nothing else: the models, what fits some targets, the frontier, ε over all weights, the budget."""
    from functools import partial

    from dpmerge.cli.output import print_json
    from dpmerge.explorer import Question, report as make_report
    from dpmerge.figures import page, require_library, require_place
    from dpmerge.files import write_whole
    from dpmerge.jobs import ProgressBar, run_all
    from dpmerge.planning import Utilities
    from dpmerge.records import Portfolio
    from dpmerge.rules import require_wanted

    require_wanted(delta, any_delta)
    require_place(out, ".html")
    require_library(".html")
    asked = Question(delta, tuple(epsilon or ()), points, grid)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    loaded = Portfolio(portfolio)
    loaded.require_outside(out)
    document = make_report(
        loaded,
        asked,
        run=partial(run_all, cluster=cluster, jobs=jobs, progress=ProgressBar("combinations")),
        utility=Utilities.asked(loaded, utility, None if provenance is None else provenance.value),
        shuffle=shuffle,
        ledger=ledger,
        progress=show_progress,
    )
    write_whole(page(document).encode(), out)
    if json:
        print_json(document)
        return
    typer.echo(str(out))
    if document["warning"]:
        typer.echo(f"note: {document['warning']}")
