"""Guarantees, plans and landscapes as plain data with sentences, for the page and the report."""

from __future__ import annotations

import math
from typing import Any

from dpmerge.planning import Landscape, Option, Plan
from dpmerge.rules import THEOREMS, Guarantee, ShownStanding

_NOTHING = "no finite ε at this δ: nothing is guaranteed"


def standing_of(found: Guarantee | None) -> ShownStanding:
    """The standing of a guarantee. It is "none" if ε is infinite, even if the theorem is proved."""
    if found is None:
        return "refused"
    return found.standing if math.isfinite(found.epsilon) else "none"


def guarantee_answer(found: Guarantee) -> dict[str, Any]:
    because = found.details.get("joint_because")
    return {**found.as_dict(), **_words(found, f"{_NOTHING} ({because})" if because else _NOTHING)}


def _option_answer(option: Option) -> dict[str, Any]:
    return {**option.as_dict(), **_words(option.guarantee, option.why or _NOTHING)}


def plan_answer(plan: Plan) -> dict[str, Any]:
    """`Plan.as_dict` with a sentence for each option; `best` is the index of the first that meets the target."""
    document = plan.as_dict()
    del document["utilities"]  # the answer about the models has them
    return {
        **document,
        "best": next((index for index, option in enumerate(plan.options) if option.feasible), None),
        "options": [_option_answer(option) for option in plan.options],
    }


def landscape_answer(found: Landscape) -> dict[str, Any]:
    """ε and standing of every rule at every point; "pending" if not computed yet."""
    rules = {}
    for rule, guarantees in found.found.items():
        known = dict(guarantees)  # a copy: the background thread keeps adding points
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
