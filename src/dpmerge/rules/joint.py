"""Joint release: whatever is done with the models, it is post-processing of all of them (docs/theory.md §3.1)."""

from __future__ import annotations

from dpmerge.profiles import Conversion, Profile, ShuffleAsPoisson, gathered, run_profile
from dpmerge.records import Model, Weights, latest_checkpoints, require_independent
from dpmerge.rules.guarantee import By, Guarantee, ProfileBound, Rule, Target, ask
from dpmerge.rules.theorems import WEIGHTS


class Joint(Rule):
    """Every distinct run once, up to its latest checkpoint, composed. Covers any merge rule and any choice of weights.

    Counted are the models that have weight and those `looked_at` (docs/theory.md §4). By default that is the same; with none
    looked at, the guarantee assumes that the weights, and so which models have any, were fixed beforehand.
    """

    name = "joint"

    def __init__(
        self, weights: Weights, shuffle: ShuffleAsPoisson | None = None, looked_at: tuple[str, ...] | None = None
    ) -> None:
        self.weights = weights
        self.looked_at = looked_at or ()
        self.runs: tuple[Model, ...] = latest_checkpoints(self.covered)
        self.shuffle = shuffle
        profiles = [run_profile(model, shuffle) for model in self.runs]
        assumed, self._conditional = gathered(profiles)
        fixed = (WEIGHTS,) if looked_at == () else ()
        self._assumptions = (*fixed, *require_independent(self.runs), *assumed)
        self.bound = ProfileBound(Profile.composed(run.profile for run in profiles))

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        answer = ask(self.bound, target, by, conversion)
        theorem = "joint-release" if len(self.runs) > 1 else "single-run"
        details = {"runs": [model.run for model in self.runs]}
        return self._build(answer, theorem, self._assumptions, self._conditional, conversion, details)
