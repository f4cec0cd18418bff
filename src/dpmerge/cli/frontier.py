"""`dpmerge frontier`: what every target would give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    ConversionName,
    ConversionOption,
    JsonOption,
    PortfolioArgument,
    ProvenanceOption,
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    UtilityOption,
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.cli.pictures import ClusterOption, JobsOption, parse_targets, print_written, workers, write_document
from dpmerge.cli.progress import show_progress


def frontier(
    portfolio: PortfolioArgument,
    delta: Annotated[float, typer.Option("--delta", help="The δ of every target.", show_default=False)],
    epsilons: Annotated[str, typer.Option("--epsilons", help="Targets: low:high, low:high:count, or a list.")] = "0.3:8",
    utility: UtilityOption = None,
    provenance: ProvenanceOption = None,
    evaluate: Annotated[
        str | None,
        typer.Option(
            "--evaluate",
            help="module:function (a model's folder → its score) or a bundled task (digits): merge and measure every point.",
            show_default=False,
        ),
    ] = None,
    stand_ins: Annotated[
        bool, typer.Option("--stand-ins", help="The models evaluated are stand-ins trained on public data, not on private.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures, and for what is finished.")] = Path("frontier"),
    points: Annotated[int, typer.Option("--points", help="Linear combinations on each edge from the most private model.")] = 25,
    grid: Annotated[
        float | None,
        typer.Option("--grid", help="Instead of edges, all combinations in multiples of this step.", show_default=False),
    ] = None,
    conversion: ConversionOption = ConversionName.tight,
    assume_smoothness: SmoothnessOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    cluster: ClusterOption = None,
    jobs: JobsOption = -1,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Utility against ε for random selection (exact at every target) and linear combination, drawn and as JSON.

    A run that was killed continues from the finished points in the output folder.
    """
    from dpmerge.cli.output import print_json
    from dpmerge.errors import UtilityError
    from dpmerge.figures import finite_or_null
    from dpmerge.planning import Utilities, check_frontier, frontier as make_frontier
    from dpmerge.records import Portfolio
    from dpmerge.rules import Accounting, require_wanted

    require_wanted(delta, any_delta)
    targets = parse_targets(epsilons)
    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    loaded = Portfolio(portfolio)
    loaded.require_outside(out)
    stated = Utilities.asked(loaded, utility, None if provenance is None else provenance.value)
    if stand_ins and evaluate is None:
        raise UtilityError("--stand-ins is about models that --evaluate measures; files of utilities say it themselves")
    scorer = None
    if evaluate is not None:
        from dpmerge.tensors import MergedScore

        scorer = MergedScore.of({name: portfolio / name for name in loaded.names}, evaluate)
    accounting = Accounting("best", conversion.value, assume_smoothness, shuffle, any_delta)
    check_frontier(delta, targets, stated, scorer, points, grid)  # before the folder is made
    with workers(out, "combinations", cluster, jobs) as run:
        document = make_frontier(
            loaded,
            delta=delta,
            epsilons=targets,
            accounting=accounting,
            utility=stated,
            scorer=scorer,
            scored="stand-ins" if stand_ins else "private",
            edge_points=points,
            step=grid,
            run=run,
            progress=show_progress,
        ).as_dict()
    show_progress("pictures")
    written = write_document(document, out, "frontier")
    show_progress("")
    if json:
        print_json(finite_or_null(document))
        return
    print_written(document, written)
