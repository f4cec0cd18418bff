"""Guarantees, plans and landscapes as the page and the report tell them: plain data with sentences."""

from __future__ import annotations

import math
from typing import Any

from dpmerge.planning import Landscape, Option, Plan
from dpmerge.rules import THEOREMS, Guarantee, ShownStanding

_NOTHING = "there is no finite ε at this δ: nothing is guaranteed"


def standing_of(found: Guarantee | None) -> ShownStanding:
    """How a guarantee stands; one without a finite ε is none, however well it is proved."""
    if found is None:
        return "refused"
    return found.standing if math.isfinite(found.epsilon) else "none"


def told_guarantee(found: Guarantee) -> dict[str, Any]:
    because = found.details.get("joint_because")
    return {**found.as_dict(), **_words(found, f"{_NOTHING} ({because})" if because else _NOTHING)}


def _told_option(option: Option) -> dict[str, Any]:
    return {**option.as_dict(), **_words(option.guarantee, option.why or _NOTHING)}


def told_plan(plan: Plan) -> dict[str, Any]:
    """The plan's own document, its options with their sentences; `best` is the index of the first that fits."""
    document = plan.as_dict()
    del document["utilities"]  # told with the models
    return {
        **document,
        "best": next((index for index, option in enumerate(plan.options) if option.feasible), None),
        "options": [_told_option(option) for option in plan.options],
    }


def told_landscape(found: Landscape) -> dict[str, Any]:
    """For every rule ε and standing at every point; pending where it is not known yet."""
    rules = {}
    for rule, guarantees in found.found.items():
        known = dict(guarantees)  # the background goes on meanwhile
        rows = [known.get(index) for index in range(len(found.points))]
        rules[rule] = {
            "epsilons": [None if row is None else row.epsilon for row in rows],
            "standings": [standing_of(row) if index in known else "pending" for index, row in enumerate(rows)],
        }
    names = ("models", "step", "points", "done", "total")
    return {**{name: getattr(found, name) for name in names}, "rules": rules}


def _words(found: Guarantee | None, otherwise: str) -> dict[str, Any]:
    theorem = None if found is None else THEOREMS[found.theorem]
    finite = found is not None and math.isfinite(found.epsilon)
    return {
        "standing": standing_of(found),
        "claim": found.claim if found is not None and finite else otherwise,
        "sentence": str(found) if finite else otherwise,
        "theorem_title": theorem and theorem.title,
        "theorem_source": theorem and theorem.source,
    }
