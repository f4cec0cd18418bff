"""A release that averages checkpoints of one run: post-processing of the run up to the latest one used (docs/theory.md §7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from dpmerge.checkpoints.run import Run
from dpmerge.errors import WeightsError
from dpmerge.planning import AverageRule, Averaging
from dpmerge.records import parse_strict
from dpmerge.release import CardTemplate, Ledger, Merge, Released, Signer, release
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Looked

_PLAIN = CardTemplate()


class AverageParameters(TypedDict, total=False):
    """The parameters of a rule, as `Averaging` has them."""

    decay: float | None
    new_weight: float | None
    warm_up: bool
    gamma: float | None


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
    provenance: Looked = "after-looking",
    accounting: Accounting = DEFAULT_ACCOUNTING,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
    progress: Callable[[int, int], None] | None = None,
    template: CardTemplate = _PLAIN,
    keep_metadata: Sequence[str] = (),
    **parameters: Unpack[AverageParameters],
) -> Released:
    """Write the average of a run's checkpoints to the new folder `out`, with certificate and model card.

    `last` is the number of checkpoints averaged (default: all); `until` is the step of the latest one. Integer tensors are
    copied from the latest one. `ledger`, `dependent` and `template` are as in `release`, `keep_metadata` as in `Merge`.
    """
    loaded = run if isinstance(run, Run) else Run.load(run)
    if (rule == "uta") != (last is not None) and rule in ("uta", "uniform"):
        raise WeightsError("uta averages the last checkpoints and needs their number (`last`); uniform averages all of them")
    used = loaded.last(last, until=until, allow_gaps=allow_gaps)
    chosen = averaging(rule, len(used), **parameters)
    weights = dict(zip((model.name for model in used), chosen.weights(), strict=True))
    choice = loaded.choose(weights, delta=delta, epsilon=epsilon, provenance=provenance, accounting=accounting)
    merge = Merge(take_from=used[-1].name, average=chosen, keep_metadata=tuple(keep_metadata))
    released = release(
        loaded.portfolio,
        choice,
        Path(out),
        merge=merge,
        ledger=ledger,
        dependent=dependent,
        signer=signer,
        progress=progress,
        template=template,
    )
    lost = sum(weight == 0 for weight in weights.values())
    left_out = [f"the weights of the {lost} earliest checkpoints underflow to 0: they are not averaged"] if lost else []
    return replace(released, notes=(*released.notes, *left_out, *loaded.notes(used, provenance)))


def averaging(rule: AverageRule, checkpoints: int, **parameters: Unpack[AverageParameters]) -> Averaging:
    """The rule over so many checkpoints; parameters that are not its own, or out of range, are refused in one line."""
    text = json.dumps({"rule": rule, "checkpoints": checkpoints, **parameters})
    return parse_strict(Averaging, text, f"the average {rule!r}", WeightsError)
