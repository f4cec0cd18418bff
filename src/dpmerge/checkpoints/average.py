"""A release that averages checkpoints of one run: post-processing of the run up to the latest one used (docs/theory.md §7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dpmerge.checkpoints.run import Run
from dpmerge.errors import WeightsError
from dpmerge.planning import AverageRule, Averaging
from dpmerge.records import parse_strict
from dpmerge.release import Ledger, Merge, Released, Signer, release
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Looked


def average(
    run: Run | str | Path,
    out: str | Path,
    *,
    rule: AverageRule,
    delta: float,
    epsilon: float | None = None,
    last: int | None = None,
    until: int | None = None,
    allow_gaps: bool = False,
    decay: float | None = None,
    new_weight: float | None = None,
    warm_up: bool = False,
    gamma: float | None = None,
    provenance: Looked = "after-looking",
    accounting: Accounting = DEFAULT_ACCOUNTING,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Released:
    """Write the average of a run's checkpoints to the new folder `out`, with certificate and model card.

    `last` is how many checkpoints are averaged, all if it is not given; `until` the step of the latest one. Integer tensors
    are those of the latest one. `ledger` and `dependent` are as in a release.
    """
    loaded = run if isinstance(run, Run) else Run.load(run)
    if (rule == "uta") != (last is not None) and rule in ("uta", "uniform"):
        raise WeightsError("uta averages the last checkpoints: say how many (last); uniform averages all of them")
    used = loaded.last(last, until=until, allow_gaps=allow_gaps)
    chosen = averaging(rule, len(used), decay=decay, new_weight=new_weight, warm_up=warm_up, gamma=gamma)
    weights = dict(zip((model.name for model in used), chosen.weights(), strict=True))
    choice = loaded.choose(weights, delta=delta, epsilon=epsilon, provenance=provenance, accounting=accounting)
    merge = Merge(take_from=used[-1].name, average=chosen)
    released = release(
        loaded.portfolio,
        choice,
        Path(out),
        merge=merge,
        ledger=ledger,
        dependent=dependent,
        signer=signer,
        progress=progress,
    )
    lost = sum(weight == 0 for weight in weights.values())
    left_out = [f"the {lost} earliest checkpoints have weights below the range of floats, and take no part"] if lost else []
    return replace(released, notes=(*released.notes, *left_out, *loaded.notes(used, provenance)))


def averaging(
    rule: AverageRule,
    checkpoints: int,
    *,
    decay: float | None = None,
    new_weight: float | None = None,
    warm_up: bool = False,
    gamma: float | None = None,
) -> Averaging:
    """The rule over so many checkpoints; parameters that are not its own, or out of range, are refused in one line."""
    stated = {"decay": decay, "new_weight": new_weight, "warm_up": warm_up, "gamma": gamma}
    text = json.dumps({"rule": rule, "checkpoints": checkpoints, **stated})
    return parse_strict(Averaging, text, f"the average {rule!r}", WeightsError)
