"""Linear combination: release Σ λ_i θ_i (docs/theory.md §3).

Joint release is always valid. Where every update is plain, flatly clipped SGD, the transport theorem does better; runs it
does not cover are revealed whole and the rest is transported, which is again a composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dpmerge.cache import cache_folder
from dpmerge.errors import TargetError
from dpmerge.profiles import (
    Conversion,
    FloatArray,
    GaussianLaw,
    Law,
    NonPrivateLaw,
    Profile,
    ShuffleAsPoisson,
    accuracy,
    closed_forms,
    dp_sgd_steps,
    gathered,
    run_profile,
)
from dpmerge.records import (
    EVERYWHERE,
    Adjacency,
    DpSgd,
    Gaussian,
    Model,
    Place,
    Portfolio,
    Weights,
    distinct_runs,
    require_independent,
    trained_tensors,
)
from dpmerge.rules.arithmetic import Arithmetic, condition, covers, last_noise, of_starts, why_joint
from dpmerge.rules.gradients import gradient_notes, needs_batch_bound
from dpmerge.rules.guarantee import Answer, By, Guarantee, ProfileBound, Rule, Target, ask
from dpmerge.rules.hidden_run import hidden_run, hideable, least_possible
from dpmerge.rules.joint import Joint
from dpmerge.rules.merged_steps import last_step_shift, ranked_candidates, shift_law, squared_ratio, window_profile
from dpmerge.rules.renoised import Rounding
from dpmerge.rules.shards import PartsOfData
from dpmerge.rules.statements import about_records, kept_checkpoints
from dpmerge.rules.theorems import COINS, NOISE, RENOISED, SPARED, THEOREMS, WEIGHTS
from dpmerge.rules.transport import (
    Candidate,
    Trajectories,
    WeightedRun,
    candidate_sets,
    drifts,
    not_covered,
    too_long,
    trajectories,
    windows,
)

_LEAST_NOISE, _MOST_NOISE = 1e-100, 1e100  # whose squares are floats


@dataclass(frozen=True)
class _Route:
    """One valid way to account for the release."""

    theorem: str
    profile: Profile
    assumptions: tuple[str, ...] = ()
    conditional: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    beats_joint: bool = False  # by a theorem, so that joint release need not be computed


_Build = Callable[[], _Route]
_STARTED = "models start from it"


def demands(theorem: str) -> int:
    """How much a theorem asks for: nothing beside the release, the models' rounding, or no more than joint release does."""
    return 2 if theorem == "hidden-run" else 0 if theorem in ("single-run", "joint-release") else 1


class _Asked:
    """What a profile answers to one question, asked once."""

    def __init__(self, target: Target, by: By, conversion: Conversion, with_starts: bool = True, alone: bool = True) -> None:
        self.target, self.by, self.conversion = target, by, conversion
        self.with_starts, self.alone = with_starts, alone
        self._answers: dict[int, tuple[Profile, Answer]] = {}
        self.starts: dict[str, tuple[Guarantee, Profile]] | None = None

    def __call__(self, profile: Profile) -> Answer:
        if id(profile) not in self._answers:
            self._answers[id(profile)] = profile, _ask(profile, self.target, self.by, self.conversion)
        return self._answers[id(profile)][1]


def _ask(profile: Profile, target: Target, by: By, conversion: Conversion) -> Answer:
    """Joint release is asked for with every weight that a search tries; where nothing is kept on disk, nor is it here."""
    if cache_folder() is None:
        return ask(ProfileBound(profile), target, by, conversion)
    return _known(profile, target, by, conversion, accuracy(), closed_forms())


@lru_cache(maxsize=256)
def _known(profile: Profile, target: Target, by: By, conversion: Conversion, grids: float, closed: bool) -> Answer:
    return ask(ProfileBound(profile), target, by, conversion)


class Combination(Rule):
    """Average the parameters with weights λ, and add Gaussian noise of standard deviation `noise` to each.

    `arithmetic` says which numbers are averaged: real or stored ones (§3.6). `only_release` grants LAST: nothing else of the
    runs is ever published (§9). With `rounding` part of the noise was added to a file (§9.8). At a `place` only the runs that
    may have seen a record there count; the last noise of the others hides it as noise at release would (§10). `quick`: no
    search (§9.3).
    """

    name = "combination"

    def __init__(
        self,
        weights: Weights,
        assume_smoothness: float | None = None,
        shuffle: ShuffleAsPoisson | None = None,
        arithmetic: Arithmetic | None = None,
        noise: float = 0.0,
        only_release: bool = True,
        rounding: Rounding | None = None,
        place: Place = EVERYWHERE,
        quick: bool = False,
    ) -> None:
        if not (noise == 0 or _LEAST_NOISE <= noise <= _MOST_NOISE):
            raise TargetError(f"the noise of the release is {noise}; it is 0, or from {_LEAST_NOISE:g} to {_MOST_NOISE:g}")
        self.weights = weights
        self.noise = noise
        self._rounding = rounding
        self._only_release = only_release
        self._quick = quick
        self._assumed = assume_smoothness
        self.shuffle = shuffle
        self._adjacency: Adjacency = weights.portfolio.adjacency
        self.place = place
        used = weights.used
        everyone = distinct_runs(model for model, _ in used)
        self._runs = tuple(run for run in everyone if place.touches(run))
        self._profiles = {model.counts_as: run_profile(model, shuffle) for model in self._runs}
        self._independence = require_independent(everyone)  # a run that has seen nothing may still hold another's noise
        self._single = len({model.run for model, _ in used}) == 1  # nothing is averaged
        self._revealed: dict[str, str] = {}
        covered: list[WeightedRun] = []
        started = {start.run for model, _ in used for start in model.starts}
        for model in self._runs:
            members = [(m, w) for m, w in used if m.run == model.run]
            why = _STARTED if model.run in started else not_covered(model, [m for m, _ in members])
            if why is None:
                covered.append(self._describe(model, members[0][1]))
            else:
                self._revealed[model.name] = why
        self._starts = started - {model.run for model, _ in used}  # of which nothing but what starts there is released
        self._hideable = tuple(covered)
        # The transport theorem is about steps without weight decay; hidden-run covers it.
        self._covered = tuple(run for run in covered if not run.decays)
        self.last_noise = last_noise(covered)
        self._hiding = 0.0 if rounding is not None else self._noise_of_others(used, started)
        # Noise at release is added to the exact average, and covers its rounding whatever the models' own noise is.
        self._stored = arithmetic
        self._arithmetic = arithmetic if noise > 0 or covers(self.last_noise, 0.0) else "joint"
        self.places = PartsOfData(model for model, _ in used)

    def placed(self, place: Place) -> Combination:
        """The same for a record at this place."""
        how = (self._assumed, self.shuffle, self._stored, self.noise, self._only_release, self._rounding)
        return self if place is EVERYWHERE else Combination(self.weights, *how, place, self._quick)

    def _noise_of_others(self, used: Sequence[tuple[Model, float]], started: Set[str]) -> float:
        """How much noise the last steps of runs that did not see the record leave in the average (§10)."""
        runs = [model.run for model, _ in used]
        others = [
            self._describe(model.own_steps, weight)
            for model, weight in used
            if not self.place.touches(model)
            and model.run not in started
            and runs.count(model.run) == 1
            and not_covered(model, [model]) is None
        ]
        return math.hypot(*last_noise(others).values()) * (1 - 1e-12)

    def _describe(self, model: Model, weight: float) -> WeightedRun:
        mechanism = model.mechanism
        if isinstance(mechanism, Gaussian):
            return WeightedRun(model, weight, 0.0, False)
        assert isinstance(mechanism, DpSgd)
        stated = mechanism.smoothness if self._assumed is None else self._assumed
        smoothness = math.inf if stated is None else stated
        return WeightedRun(model, weight, smoothness, mechanism.convex is not None and math.isfinite(smoothness))

    @property
    def covering(self) -> dict[str, float]:
        """The noise that covers the rounding of stored numbers (§3.6): that of the release, or each model's last."""
        return {"the release": self.noise} if self.noise > 0 else self.last_noise

    @property
    def _may_hide(self) -> bool:
        """Whether theorem hidden-run is asked: not where the papers' formula is."""
        return self._only_release and bool(self._hideable or self._starts) and self._assumed != 0

    @property
    def record_effect(self) -> float:
        """The largest change that one record can make to the average in one step."""
        if not self._hideable:
            return 1.0
        runs = trajectories(self._hideable, self._adjacency, self.shuffle, 1e-12)
        return float(np.max(runs.weights[:, None] * runs.effect)) or 1.0

    def hidden_epsilon(self, delta: float, by: By, conversion: Conversion) -> float:
        """ε by theorem hidden-run alone, at the worst place of a record, for searches; infinite where it does not apply."""
        if self.places.there and self.place is EVERYWHERE:
            return max(self.placed(place).hidden_epsilon(delta, by, conversion) for place in self.places.all)
        asked = _Asked(Target(delta=delta), by, conversion)
        if not self._runs:
            return 0.0
        routes = self._hidden_beside(asked) if self._may_hide else []
        return min((asked(one.profile).epsilon for one in routes), default=math.inf)

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        if not self.places.there or self.place is not EVERYWHERE:
            return self.with_profile(target, by, conversion)[0]
        return self._over_places(target, by, conversion)

    def _over_places(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        """Each place of a record has its own account; the guarantee names the theorem that asks for most."""
        found = {place: self.placed(place).with_profile(target, by, conversion) for place in self.places.all}
        bound = self.places.bound(lambda place: [(1.0, found[place][1])])
        used = [one for one, _ in found.values()]
        theorem = max((one.theorem for one in used), key=demands)
        most = next(one for one in used if one.theorem == theorem)
        details = {**most.details, **self.places.details}
        if theorem == "hidden-run":
            whole = ask(Joint(self.weights, self.shuffle, ()).bound, target, by, conversion)
            more = whole.epsilon if target.epsilon is None else whole.delta
            details["once_more"] = more if math.isfinite(more) else None
        own = {*THEOREMS[theorem].assumptions, *about_records(self.covered)}
        texts = dict.fromkeys(text for one in used for text in one.assumptions if text not in own)
        unproved = any(one.standing == "conditional" for one in used)
        shown = "shards" if theorem in ("single-run", "joint-release") else theorem
        return self._build(
            ask(bound, target, by, conversion), shown, (*self.places.assumptions, *texts), unproved, conversion, details
        )

    def with_profile(
        self, target: Target, by: By, conversion: Conversion, with_starts: bool = True, alone: bool = True
    ) -> tuple[Guarantee, Profile]:
        """The guarantee, and the profile that it was read from: that composes with what is independent of these runs.

        Without starts: given the checkpoints that its forks start from, which are then counted elsewhere (§10). A profile that
        is not asked `alone` has fewer atoms.
        """
        asked = _Asked(target, by, conversion, with_starts, alone)
        routes = list(self._routes(asked))
        route = min(routes, key=lambda route: asked(route.profile).size)
        answer = asked(route.profile)
        if route.theorem == "hidden-run":
            more = self._once_more(routes, asked)
            route.details["once_more"] = more if math.isfinite(more) else None
            route.details["once_more_is"] = "epsilon" if target.epsilon is None else "delta"
        assumed, unproved = gathered(self._profiles.values())
        details = dict(route.details)
        if self.noise > 0 or route.theorem == "hidden-run":
            details["noise"] = self.noise
        revealed = {name: why for name, why in self._revealed.items() if name not in details.get("hidden_starts", ())}
        if revealed:
            details["revealed"] = revealed
        # Joint release of the models that have weight does not cover a choice of them by looking at all (theory.md §4).
        fixed = () if WEIGHTS in THEOREMS[route.theorem].assumptions else (WEIGHTS,)
        assumptions = (*fixed, *self._independence, *route.assumptions, *assumed)
        found = self._build(answer, route.theorem, assumptions, route.conditional or unproved, conversion, details)
        return found, route.profile

    def _once_more(self, routes: Sequence[_Route], asked: _Asked) -> float:
        """What these runs cost (ε, or δ if that was asked) once anything else of them is released: each counts whole (§5)."""
        whole = [route.profile for route in routes if route.theorem in ("single-run", "joint-release")]
        answer = asked(whole[0] if whole else self._whole(asked))
        return answer.epsilon if asked.target.epsilon is None else answer.delta

    # --- the ways to account for it --------------------------------------------------------------------------------------

    def routes(self, target: Target) -> list[_Route]:
        """Every way to account for the release that may pay."""
        return list(self._routes(_Asked(target, "best", "tight")))

    def _whole(self, asked: _Asked) -> Profile:
        """Every run that counts here, composed."""
        runs = [run for run in self._runs if asked.with_starts or run.run not in self._starts]
        return Profile.composed(self._profiles[run.counts_as].profile for run in runs)

    def _routes(self, asked: _Asked) -> Iterable[_Route]:
        single = self._single
        details: dict[str, Any] = {"window": 0, "coupled": []}
        joint = _Route("single-run" if single else "joint-release", self._whole(asked), details=details)
        if self._arithmetic == "joint" and self._hideable:
            # Of one run alone nothing is averaged, but a last iterate coarser than its noise would show the one before it.
            tells = not single or self.noise > 0 or (self._only_release and covers(self.last_noise, 0.0))
            because = {"joint_because": why_joint(self.last_noise, self.noise)} if tells else {}
            yield replace(joint, details={**joint.details, **because})
            return
        if too_long(self._covered) or too_long(self._hideable):
            yield joint
            return
        hidden: list[_Route] = []
        transported: list[_Route] = []
        slow: list[tuple[float, _Build]] = []
        covered = {run.model.counts_as for run in self._covered}
        if self._quick and self._may_hide and (quick := self._hidden_beside(asked)):
            yield from (joint, *quick)
            return
        if len(self._covered) > 1:
            ways = list(self._transported(asked.target))
            transported += [self._beside(build(), covered, asked) for share, build in ways if share == 0]
            slow += [(share, build) for share, build in ways if share > 0]
        if self._may_hide:
            known = [asked(route.profile).epsilon for route in transported] if asked.target.delta else []
            hidden += self._hidden_beside(asked, min(known, default=math.inf))
            if self._hidden_starts(asked):
                hidden.append(self._beside(_Route("joint-release", Profile.of(()), details=details), frozenset(), asked))
        if slow:
            bar = 1.2 * self._bar(joint, [*hidden, *transported], asked)
            transported += [self._beside(build(), covered, asked) for share, build in slow if share <= bar]
        if not any(route.beats_joint for route in transported):
            yield joint
        yield from (*hidden, *transported)

    @staticmethod
    def _bar(joint: _Route, better: Sequence[_Route], asked: _Asked) -> float:
        """How far below joint release another theorem is already: a window of merged steps must come near that to pay."""
        most = asked(joint.profile).epsilon if better and asked.target.delta else 0.0
        if not 0 < most < math.inf:
            return 1.0
        return min(asked(route.profile).epsilon for route in better) / most

    def _hidden_beside(self, asked: _Asked, bar: float = math.inf) -> list[_Route]:
        covered = {run.model.counts_as for run in self._hideable}
        return [self._beside(route, covered, asked) for route in self._hidden(asked, bar)]

    def _beside(self, route: _Route, covered: Set[tuple[str, str | None]], asked: _Asked) -> _Route:
        """The route of some runs, beside the others, which are revealed whole: of a hidden start the last iterate alone."""
        starts = self._hidden_starts(asked)
        revealed = [run for run in self._runs if run.counts_as not in covered and run.run not in starts]
        revealed = [run for run in revealed if asked.with_starts or run.run not in self._starts]
        others = [*(self._profiles[run.counts_as].profile for run in revealed), *(profile for _, profile in starts.values())]
        route = replace(route, profile=Profile.composed([*others, route.profile]) if others else route.profile)
        if starts:
            runs = ", ".join(map(repr, sorted(starts)))
            texts = dict.fromkeys(text for found, _ in starts.values() for text in found.assumptions)
            texts[f"the runs that these models start from ({runs}) are among those of which nothing else is published"] = None
            texts[of_starts(self._describe(run, 1.0) for run in self._runs if run.run in starts)] = None
            held = {*route.assumptions, *THEOREMS["hidden-run"].assumptions, *about_records(self.covered)}
            route = replace(
                route,
                theorem="hidden-run",
                assumptions=(*route.assumptions, *(text for text in texts if text not in held)),
                conditional=route.conditional or any(found.standing == "conditional" for found, _ in starts.values()),
                details={**route.details, "hidden_starts": sorted(run.name for run in self._runs if run.run in starts)},
            )
        if self.noise > 0:
            added = NOISE if self._rounding is None else RENOISED
            spared = () if trained_tensors(model for model, _ in self.weights.used) is None else (SPARED,)
            return replace(route, assumptions=(*route.assumptions, added, *spared))
        if self._single or not covered:  # a single model is stored as it was trained: nothing is averaged
            return route
        return replace(
            route,
            assumptions=(*route.assumptions, condition(self.last_noise, self._arithmetic)),
            conditional=route.conditional or self._arithmetic == "stored",
        )

    def _hidden_starts(self, asked: _Asked) -> dict[str, tuple[Guarantee, Profile]]:
        """Runs of which nothing shows but their last step, from which forks leave, where theorem hidden-run bounds that."""
        if not (asked.with_starts and self._only_release and self._assumed != 0):
            return {}
        if asked.starts is None:
            left = [start for model, _ in self.weights.used for start in model.starts]
            last = {run for run in self._starts if len({start.name for start in left if start.run == run}) == 1}
            asked.starts = {}
            for run in self._runs if last else ():
                if run.run in last:
                    alone = Portfolio((run,)).weights({run.name: 1.0})
                    rule = Combination(alone, self._assumed, self.shuffle, place=self.place, quick=self._quick)
                    asked.starts[run.run] = rule.with_profile(asked.target, asked.by, asked.conversion, alone=False)
        return {name: (found, profile) for name, (found, profile) in asked.starts.items() if found.theorem == "hidden-run"}

    def _hidden(self, asked: _Asked, bar: float = math.inf) -> Iterable[_Route]:
        """Theorem hidden-run: the last iterates, and noise at release, hide what came before. Above `bar` it is of no use.

        What may be given up, batches that are too large among it, is a share of δ. Where δ is asked for, it is first taken to
        be small, and then what was found.
        """
        target, by = asked.target, asked.by
        first = list(self._hidden_at(asked, target, bar))
        yield from first
        for route in first if target.delta is None else ():
            delta = _ask(route.profile, target, by, "tight").delta
            if 1e-7 < delta < 0.5:
                yield from self._hidden_at(asked, Target(delta=delta), math.inf)

    def _hidden_at(self, asked: _Asked, target: Target, bar: float) -> Iterable[_Route]:
        if not self._hideable:
            return
        delta = target.delta or 1e-8
        runs = trajectories(self._hideable, self._adjacency, self.shuffle, 1e-4 * delta, tamed=delta / 10)
        rows = hideable(runs)
        hiding = math.hypot(self.noise, self._hiding)
        if not rows or (runs.steps == 1 and hiding == 0):
            return
        if bar < math.inf and least_possible(runs, rows, hiding, target) >= bar:
            return
        found = hidden_run(runs, rows, hiding, target, bar, self._quick)
        if self._rounding is not None:
            found = replace(found, law=self._rounding.applied(found.law, self.noise))
        others = [i for i in range(len(runs.runs)) if i not in rows]
        before = [step for i in others for step in self._own_steps(runs.runs[i], runs.runs[i].steps - 1)]
        notes, conditional = gradient_notes(runs, Candidate(1, rows), runs.failure, self._assumed, self.shuffle)
        details: dict[str, Any] = {
            "window": runs.steps,
            "coupled": [runs.runs[i].model.name for i in rows],
            "absorption": found.absorption,
            "atoms": int(found.law.values.size),
        }
        if runs.failure:
            details["batch_bound_failure"] = runs.failure
        secret = () if runs.is_full_batch or self._adjacency == "replace-one" else (COINS,)
        if self._rounding is not None:
            details["rounded_by"] = self._rounding.distance
        closed = asked.by != "rdp" and asked.alone and not self._revealed
        profile = found.profile(before, runs.failure, self._adjacency, closed)
        yield _Route("hidden-run", profile, (*secret, *kept_checkpoints(self._runs), *notes), conditional, details)

    def _transported(self, target: Target) -> Iterable[tuple[float, _Build]]:
        """Routes of the transport theorem; and, where one takes long, its ε to be expected beside that of joint release."""
        failure = 1e-4 * target.delta if target.delta is not None else 1e-12
        runs = trajectories(self._covered, self._adjacency, self.shuffle, failure)
        if runs.steps == 1:
            means = all(isinstance(run.model.mechanism, Gaussian) for run in self._covered)
            theorem = "mean-estimation-combination" if means else self._theorem(runs, coupled=False)
            yield 0.0, lambda: _Route(theorem, window_profile(runs, np.zeros(1)), details={"window": 1, "coupled": []})
        elif self._assumed == 0:
            yield (
                0.0,
                lambda: _Route(
                    "papers-formula",
                    window_profile(runs, np.zeros(runs.steps)),
                    ("the gradients of the common records do not depend on the state (smoothness 0)",),
                    conditional=True,
                    details={"window": runs.steps, "coupled": []},
                    # Under its assumption the merged path is a function of the runs; revealed coins (replace-one) are not.
                    beats_joint=runs.is_full_batch or self._adjacency != "replace-one",
                ),
            )
        elif runs.is_full_batch:
            yield 0.0, partial(self._full_batch, runs)
        else:
            yield from self._poisson(runs)

    def _full_batch(self, runs: Trajectories) -> _Route:
        """Everything is Gaussian: minimise μ² = Σ_{before, i∉B}(s/ν)² + Σ_window (R*/s_λ)² over (k, B)."""
        reveal = squared_ratio(runs.effect, runs.noise)
        costs = reveal.sum(axis=1) / np.maximum(runs.weights * runs.effect.sum(axis=1), 1e-300)
        sets = candidate_sets(np.nan_to_num(costs, posinf=1e300), len(runs.runs))
        ramps = (False, True) if np.ptp(runs.merged_noise) > 0 else (False,)
        candidates = [
            Candidate(k, b, r) for k in windows(runs.steps) for b in sets for r in (ramps if b and k > 1 else (False,))
        ]
        squares = self._squared_mu(runs, reveal, candidates)
        for _ in range(2):
            best = candidates[int(np.argmin(squares))]
            near = [Candidate(k, best.coupled, best.by_noise) for k in windows(runs.steps, refine=best.window)]
            candidates = [best, *near]
            squares = self._squared_mu(runs, reveal, candidates)
        index = int(np.argmin(squares))
        best, square = candidates[index], float(squares[index])
        law: Law = GaussianLaw(math.sqrt(square)) if math.isfinite(square) else NonPrivateLaw()
        notes, conditional = gradient_notes(runs, best, 0.0, self._assumed, self.shuffle)
        details = {"window": best.window, "coupled": [runs.runs[i].model.name for i in best.coupled]}
        return _Route("transport", Profile.of([(law, 1)]), notes, conditional, details)

    @staticmethod
    def _squared_mu(runs: Trajectories, reveal: FloatArray, candidates: Sequence[Candidate]) -> FloatArray:
        drift = drifts(runs, list(candidates))
        longest = drift.shape[1]
        steps = squared_ratio(runs.weights @ runs.effect[:, -longest:] + drift, runs.merged_noise[-longest:])
        # Summed from the front: a difference of totals would lose the early steps beside a nearly noiseless last one.
        before = np.concatenate((np.zeros((len(runs.runs), 1)), np.cumsum(reveal, axis=1)), axis=1)
        result = np.empty(len(candidates))
        for row, candidate in enumerate(candidates):
            start = runs.steps - candidate.window
            outside = [i for i in range(len(runs.runs)) if i not in candidate.coupled]
            result[row] = float(before[outside, start].sum()) + float(steps[row, longest - candidate.window :].sum())
        # Sums of up to millions of squares, and one square root: above their rounding.
        return result * (1 + 1e-12)

    def _poisson(self, runs: Trajectories) -> Iterable[tuple[float, _Build]]:
        """Mixtures of Gaussians: rank the candidates by their Rényi divergence of order 2, account for the best of each kind.

        The kinds: the coins' own law, and a window of merged steps with its drift, which takes long.
        """
        ranked, joint = ranked_candidates(runs)
        best, kinds = ranked[0][0], set()
        for score, candidate, drift in ranked:
            if score <= min(1.3 * best, 1.2 * joint) and (drift is None) not in kinds:
                kinds.add(drift is None)
                share = 0.0 if drift is None else max(math.sqrt(max(score, 0.0) / max(joint, 1e-300)), 1e-300)
                yield share, partial(self._poisson_route, runs, candidate, drift)

    def _poisson_route(self, runs: Trajectories, candidate: Candidate, drift: FloatArray | None) -> _Route:
        names = [runs.runs[i].model.name for i in candidate.coupled]
        details: dict[str, Any] = {"window": candidate.window, "coupled": names}
        failure = runs.failure if needs_batch_bound(runs, candidate) else 0.0
        notes, conditional = gradient_notes(runs, candidate, failure, self._assumed, self.shuffle)
        if failure:
            details["batch_bound_failure"] = failure
        before = [
            (law, count)
            for i in range(len(runs.runs))
            if i not in candidate.coupled
            for law, count in self._own_steps(runs.runs[i], runs.runs[i].steps - candidate.window)
        ]
        if drift is None:
            shift = last_step_shift(runs, candidate.coupled)
            profile = Profile.of([*before, (shift_law(shift, self._adjacency), 1)], failure + shift.excess)
        else:
            window = window_profile(runs, drift[-candidate.window :], runs.steps - candidate.window)
            profile = Profile.composed([Profile.of(before, failure), window])
        return _Route(self._theorem(runs, bool(candidate.coupled)), profile, notes, conditional, details)

    def _own_steps(self, run: WeightedRun, before_window: int) -> Iterable[tuple[Law, int]]:
        """A run alone, for its first `before_window` steps."""
        mechanism = run.model.mechanism
        if isinstance(mechanism, DpSgd):
            yield from dp_sgd_steps(run.model, mechanism, self.shuffle, before_window)

    def _theorem(self, runs: Trajectories, coupled: bool) -> str:
        if runs.is_full_batch:
            return "transport"
        if self._adjacency == "replace-one":
            return "transport-replace-one"
        return "coupled-coins" if coupled else "transport-poisson"
