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
    theorem = THEOREMS[found.theorem]
    because = found.details.get("joint_because")
    return {
        "standing": judged(found.epsilon, found.standing),
        "sentence": str(found) if math.isfinite(found.epsilon) else f"{NOTHING} ({because})" if because else NOTHING,
        "theorem_title": theorem.title,
        "theorem_source": theorem.source,
    }


def option_words(option: Option) -> dict[str, Any]:
    """The same for an option of a plan; one that is refused says why."""
    theorem = None if option.guarantee is None else THEOREMS[option.guarantee.theorem]
    return {
        "standing": judged(option.epsilon, option.standing),
        "sentence": str(option) if math.isfinite(option.epsilon) else option.why or NOTHING,
        "theorem_title": theorem and theorem.title,
        "theorem_source": theorem and theorem.source,
    }
