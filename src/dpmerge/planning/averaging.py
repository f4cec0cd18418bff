"""Averages of the checkpoints of one run, as weights (docs/theory.md §7): exponential, uniform, polynomial decay.

Each rule is a recursion θ̄ ← (1 − b_t)·θ̄ + b_t·θ_t over the checkpoints averaged, in order, that begins with the first of them:
checkpoint i has weight b_i·Π_{t>i}(1 − b_t). Products are taken with 60 digits and each weight is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal, localcontext
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.records import DpFtrl, DpSgd, Mechanism, Strict

AverageRule = Literal["ema", "uta", "pda", "uniform"]
_DIGITS = 60
_MOST = 1_000_000  # limit: a certificate is untrusted, and its weights must not take forever


class Averaging(Strict):
    """A rule with its parameters, exactly as a certificate keeps it, and over how many checkpoints it went.

    `ema`: b_t is `new_weight`, the weight of the new checkpoint in Eq. (3) of "Recycling Scraps", or 1 − `decay`, as the values
    tuned there read; with `warm_up` whichever is stated is at most (1 + t)/(10 + t). t counts the averaged checkpoints from 0.
    `pda`: b_t = (γ + 1)/(t + γ), counting from 1 (Eq. 8 there). `uta` and `uniform`: equal weights.
    """

    rule: AverageRule
    checkpoints: Annotated[int, Field(ge=1, le=_MOST)]
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    new_weight: Annotated[float, Field(gt=0, le=1)] | None = None
    warm_up: bool = False
    gamma: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_the_parameters_of_its_rule(self) -> Averaging:
        ema = self.rule == "ema"
        if ema and (self.decay is None) == (self.new_weight is None):
            both = "; not both" if self.decay is not None else ", and neither is given"
            raise ValueError(
                "an exponential average needs either a decay, the weight of the average so far, or a new_weight, the weight of "
                f"the new checkpoint{both}"
            )
        if not ema and (self.decay is not None or self.new_weight is not None or self.warm_up):
            raise ValueError(f"decay, new_weight and warm_up belong to ema, not to {self.rule}")
        if (self.rule == "pda") != (self.gamma is not None):
            raise ValueError("gamma belongs to pda, and pda needs it")
        return self

    def weights(self) -> list[float]:
        """One weight for each checkpoint, the oldest first. A weight below the range of floats is 0, and so are older ones."""
        found: list[float] = []
        with localcontext(Context(prec=_DIGITS)):
            kept = Decimal(1)
            for new, old in self._coefficients():
                found.append(float(kept * new))
                kept *= old
                if found[-1] == 0:
                    break
        return [0.0] * (self.checkpoints - len(found)) + found[::-1]

    def _coefficients(self) -> Iterator[tuple[Decimal, Decimal]]:
        """b_t and 1 − b_t from the newest checkpoint back to the first, whose b is 1."""
        for t in range(self.checkpoints - 1, 0, -1):
            if self.rule == "ema":
                stated = self.decay if self.new_weight is None else self.new_weight
                assert stated is not None
                most = min(Decimal(stated), Decimal(1 + t) / (10 + t)) if self.warm_up else Decimal(stated)
                yield (1 - most, most) if self.new_weight is None else (most, 1 - most)
            else:  # equal weights are those of polynomial decay with γ = 0
                gamma = Decimal(self.gamma or 0)
                yield (gamma + 1) / (t + 1 + gamma), t / (t + 1 + gamma)
        yield Decimal(1), Decimal(0)

    def gives(self, weights: Mapping[str, float], known: Mapping[str, Mechanism]) -> bool:
        """Whether these are the weights it gives to checkpoints of one run, with no known checkpoint left out."""
        steps = _steps_of_one_run(weights, known)
        if len(set(steps.values())) != len(steps) or not weights.keys() <= steps.keys():
            return False
        latest = max(map(steps.__getitem__, weights))
        before = sorted((name for name in steps if steps[name] <= latest), key=steps.__getitem__)
        given = [weight for weight in self.weights() if weight > 0]
        return len(given) == len(weights) and [weights.get(name) for name in before[-len(given) :]] == given

    def __str__(self) -> str:
        if self.rule == "ema":
            new = self.new_weight is not None
            stated = f"new weight {self.new_weight!r}" if new else f"decay {self.decay!r}"
            formula = "(1 − b)·average + b·checkpoint" if new else "b·average + (1 − b)·checkpoint"
            warm = ", at most (1 + t)/(10 + t) after t checkpoints" if self.warm_up else ""
            return f"EMA with {stated}{warm}: {formula}, over {self.checkpoints} checkpoints"
        if self.rule == "pda":
            return f"PDA with γ = {self.gamma!r} over {self.checkpoints} checkpoints"
        which = f"UTA, the last {self.checkpoints}" if self.rule == "uta" else f"all {self.checkpoints}"
        return f"{which} checkpoints with equal weights"


def _steps_of_one_run(names: Iterable[str], known: Mapping[str, Mechanism]) -> dict[str, int]:
    """The steps of all known checkpoints of the run that these are of; none if they are not of one run."""
    runs = {known[name].run if name in known else None for name in names}
    if len(runs) != 1 or None in runs:
        return {}
    of_run = {name: mechanism for name, mechanism in known.items() if mechanism.run in runs}
    return {name: mechanism.steps for name, mechanism in of_run.items() if isinstance(mechanism, DpSgd | DpFtrl)}
