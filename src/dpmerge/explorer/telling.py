"""Guarantees, plans and landscapes as plain data with sentences, for the page and the report."""

from __future__ import annotations

import math
from typing import Any

from dpmerge.planning import Landscape, Option, Plan
from dpmerge.rules import THEOREMS, Guarantee, ShownStanding, meaning, plainly, round_up, significant

_KINDS = {
    "interpolated": ", interpolated from what was stated: measure it before you rely on it",
    "extrapolated": ", a guess: there is more noise than in any model whose utility was stated; measure it",
    "expected": ", as stated",
}
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
        "aloud": aloud(plan),
        "best": next((index for index, option in enumerate(plan.options) if option.feasible), None),
        "options": [_option_answer(option) for option in plan.options],
    }


def line_point(option: Option) -> dict[str, Any]:
    """An option on the line of the best, without its sentences."""
    known, names = option.as_dict(), ("epsilon", "rule", "standing", "weights", "noise", "expected_utility", "utility_kind")
    return {name: known[name] for name in (*names, "predicted_deviation")}


def aloud(plan: Plan) -> list[str]:
    """The best release for the plan's target as sentences that a privacy officer can read aloud."""
    target, best = f"ε = {plan.epsilon:g} and δ = {significant(plan.delta, 3)}", plan.best
    if best is None or best.guarantee is None:
        nothing = f"Nothing that is known so far may be released for {target}."
        totals = [option.total.epsilon for option in plan.options if option.total is not None]
        if not totals:
            return [nothing]
        return [
            f"{nothing} What meets it exceeds the budget: all releases together would have ε = {round_up(min(totals))} or more."
        ]
    found = best.guarantee
    standing = "proved, under the assumptions listed here" if found.standing == "proved" else "conditional: see the assumptions"
    return [
        meaning(found.epsilon, found.delta, found.adjacency),
        f"That is what ε = {round_up(found.epsilon)} and δ = {significant(found.delta, 3)} mean. It is {standing}.",
        _what(best),
        _worth(best),
        _recipients(best),
    ]


def _what(option: Option) -> str:
    names = [model.name for model, _ in option.weights.used]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    if option.rule == "joint":
        return "Any merge of all the models may be released, even after looking at them."
    what = f"the model {listed}" if len(names) == 1 else f"the average of {listed}"
    if option.rule == "selection" and len(names) > 1:
        return f"One of {listed} is released, drawn at random."
    if option.noise > 0:
        noise = significant(option.noise, 3)
        return f"Noise of standard deviation {noise} is added to every trained number of {what} at the release."
    return f"{what[:1].upper()}{what[1:]} is released as it is, without more noise."


def _worth(option: Option) -> str:
    """What it is worth: by stated utilities, or else by the noise that records predict."""
    if not option.question.worth.predicted:
        worst = min(option.question.shown.values)
        if (option.utility or 0.0) < worst:
            return f"Its utility is below {worst:g}, that of the least useful model: measure it before you rely on it."
        said = _KINDS.get(option.utility_kind, f" ({option.utility_kind})")
        return f"Its utility is {option.utility or 0.0:.4g}{said}."
    if option.deviation is None or option.rule == "joint":
        return "How useful it is was not stated, and the records do not predict it."
    own = math.sqrt(max(0.0, option.deviation**2 - option.noise**2))
    return (
        f"Its accuracy was not stated. The records predict that its numbers carry noise of standard deviation "
        f"{option.deviation:.3g}, of which the training left {own:.3g}."
    )


def _recipients(option: Option) -> str:
    if option.guarantee is not None and option.guarantee.theorem == "hidden-run" and option.noise > 0:
        return (
            "Any number of recipients may get it, each with noise of their own size: recipients who pool their copies know no "
            "more than the one with the least noise, so the total stays the largest ε."
        )
    return "Each further release from the same data adds to what is known about that person: keep a ledger, with a budget."


def landscape_answer(found: Landscape) -> dict[str, Any]:
    """ε and standing of every rule at every point; "pending" if not computed yet."""
    progress, rules = {"done": found.done, "total": found.total}, {}  # before the points: what is counted is among them
    for rule, guarantees in found.found.items():
        known = dict(guarantees)  # a copy: the background thread keeps adding points
        rows = [known.get(index) for index in range(len(found.points))]
        rules[rule] = {
            "epsilons": [None if row is None else row.epsilon for row in rows],
            "standings": [standing_of(row) if index in known else "pending" for index, row in enumerate(rows)],
        }
    return {"models": found.models, "step": found.step, "points": found.points, **progress, "rules": rules}


def _words(found: Guarantee | None, otherwise: str) -> dict[str, Any]:
    theorem = None if found is None else THEOREMS[found.theorem]
    finite = found is not None and math.isfinite(found.epsilon)
    return {
        "standing": standing_of(found),
        "claim": found.claim if found is not None and finite else otherwise,
        "sentence": str(found) if finite else otherwise,
        "theorem_title": theorem and theorem.title,
        "theorem_source": theorem and theorem.source,
        "plain_assumptions": [] if found is None else list(map(plainly, found.assumptions)),
    }
