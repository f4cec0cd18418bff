"""How what was found is told: its standing, and its guarantee as a sentence."""

from __future__ import annotations

import math
from typing import Any

from dpmerge.planning import Option
from dpmerge.rules import THEOREMS, Guarantee

NOTHING = "there is no finite ε at this δ: nothing is guaranteed"


def judged(epsilon: float, standing: str) -> str:
    """How a guarantee stands; one without a finite ε is none, however well it is proved."""
    return standing if standing == "refused" or math.isfinite(epsilon) else "none"


def guarantee_words(found: Guarantee) -> dict[str, Any]:
    """A guarantee's standing, sentence and theorem."""
    because = found.details.get("joint_because")
    return _words(found, f"{NOTHING} ({because})" if because else NOTHING)


def option_words(option: Option) -> dict[str, Any]:
    """The same for an option of a plan; one that is refused says why."""
    if option.guarantee is not None:
        return _words(option.guarantee, option.why or NOTHING)
    why = option.why or NOTHING
    return {"standing": option.standing, "claim": why, "sentence": why, "theorem_title": None, "theorem_source": None}


def _words(found: Guarantee, otherwise: str) -> dict[str, Any]:
    theorem, finite = THEOREMS[found.theorem], math.isfinite(found.epsilon)
    return {
        "standing": judged(found.epsilon, found.standing),
        "claim": found.claim if finite else otherwise,
        "sentence": str(found) if finite else otherwise,
        "theorem_title": theorem.title,
        "theorem_source": theorem.source,
    }
