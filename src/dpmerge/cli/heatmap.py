"""`dpmerge heatmap`: ε over the simplex of three models' weights."""

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
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.cli.pictures import ClusterOption, JobsOption, print_written, workers, write_document


def heatmap(
    portfolio: PortfolioArgument,
    delta: Annotated[float, typer.Option("--delta", help="Show ε at this δ.")] = 1e-5,
    step: Annotated[float, typer.Option("--step", help="Distance of neighbouring weights; a divisor of 1.")] = 0.05,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures, and for what is finished.")] = Path("heatmap"),
    conversion: ConversionOption = ConversionName.tight,
    assume_smoothness: SmoothnessOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    cluster: ClusterOption = None,
    jobs: JobsOption = -1,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """ε over all weights of three models: random selection and linear combination, by Rényi and loss distributions.

    A run that was killed continues from the finished points in the output folder.
    """
    from dpmerge.cli.output import print_json
    from dpmerge.figures import finite_or_null
    from dpmerge.planning import heatmap as make_heatmap, heatmap_grid
    from dpmerge.records import Portfolio
    from dpmerge.rules import Accounting, require_wanted

    require_wanted(delta, any_delta)
    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    loaded = Portfolio(portfolio)
    loaded.require_outside(out)
    accounting = Accounting("best", conversion.value, assume_smoothness, shuffle, any_delta)
    heatmap_grid(loaded, delta, step)  # before the folder is made
    with workers(out, "combinations", cluster, jobs) as run:
        document = make_heatmap(loaded, delta=delta, step=step, accounting=accounting, run=run).as_dict()
    written = write_document(document, out, "heatmap")
    if json:
        print_json(finite_or_null(document))
        return
    print_written(document, written)
