"""What a rule returns: an (ε, δ) with the theorem it rests on, everything it assumes, and how it was computed."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, Literal, Self

from dpmerge.cache import remembered
from dpmerge.errors import TargetError, UnsupportedMechanism
from dpmerge.notebook import html_table
from dpmerge.profiles import Conversion, Profile, ShuffleAsPoisson, accuracy
from dpmerge.records import LARGEST, Adjacency, Model, Portfolio, Weights
from dpmerge.rules.statements import about_delta, about_records, round_up, significant
from dpmerge.rules.theorems import NOISE_PAYS, THEOREMS, Theorem

# GDP is the closed form of the loss distribution of full-batch Gaussians: whatever mixes models has the other two.
MixtureAccountant = Literal["pld", "rdp"]
Accountant = Literal[MixtureAccountant, "gdp"]
By = Literal["best", Accountant]
MIXTURE_ACCOUNTANTS: tuple[MixtureAccountant, ...] = ("pld", "rdp")
Standing = Literal["proved", "conditional"]
# In order: proved; proved under an assumption that may fail; covered by no theorem; no finite ε.
ShownStanding = Literal[Standing, "refused", "none"]


@dataclass(frozen=True, repr=False)
class Guarantee:
    """A release is (epsilon, delta)-DP for `adjacency` neighbours, by `theorem`, if `assumptions` hold.

    `standing` is "proved" when the assumptions are statements about what was run, and "conditional" when one of them is
    known to fail in general (the papers' formula, shuffled batches) and is only stated by the user. `warnings` are about
    guarantees that hold and promise little.

    >>> from dpmerge import Portfolio, example_portfolio, selection
    >>> found = selection(Portfolio(example_portfolio()), {"mnist-c1-s2": 1.0}).guarantee(delta=1e-5)
    >>> found.claim
    '(0.2043, 1e-05)-DP, add-remove · proved: random selection, privacy loss distributions, PLD'
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    theorem: str
    assumptions: tuple[str, ...]
    standing: Standing
    by: Accountant
    rule: str
    weights: Mapping[str, float]
    conversion: Conversion | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "weights": dict(self.weights), "details": dict(self.details)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Guarantee:
        """The inverse of `as_dict`, also after a trip through JSON."""
        return cls(**{**data, "assumptions": tuple(data["assumptions"]), "warnings": tuple(data.get("warnings", ()))})

    @property
    def claim(self) -> str:
        """What holds, by which theorem, and what to beware of: the sentence without what it assumes."""
        beware = "".join(f" · beware: {text}" for text in self.warnings)
        return f"{self._privacy}, {self.adjacency} · {self.standing}: {self._theorem.title}, {self.by.upper()}{beware}"

    @property
    def _privacy(self) -> str:
        return f"({round_up(self.epsilon)}, {significant(self.delta)})-DP" if math.isfinite(self.epsilon) else "no finite ε"

    @property
    def _theorem(self) -> Theorem:
        return THEOREMS[self.theorem]

    @property
    def notes(self) -> tuple[str, ...]:
        """Why runs are counted whole although a better theorem exists, and what a further release would change."""
        found = [f"model {name!r} is counted whole: {why}" for name, why in self.details.get("revealed", {}).items()]
        if "joint_because" in self.details:
            found.append(f"counted as joint release: {self.details['joint_because']}")
        elif self.details.get("noise") and self.theorem in ("single-run", "joint-release", "shards"):
            found.append(f"the noise at release buys nothing here: {NOISE_PAYS}")
        elif self.details.get("noise") and self.theorem != "hidden-run":
            found.append("this much noise at release buys nothing: another theorem gives as little without it. More may")
        if "rounded_by" in self.details:
            found.append(
                "this holds against whoever has nothing else of these runs: neither the release that this one was made of, nor "
                "another one made of that; these have its guarantee"
            )
        elif "once_more" in self.details:
            spared = ", except this average with other noise of its ladder" if self.details.get("noise") else ""
            asked = "ε" if self.details["once_more_is"] == "epsilon" else "δ"
            most = self.details["once_more"]
            whole = "which bounds nothing" if most is None else f"{asked} = {(round_up if asked == 'ε' else significant)(most)}"
            found.append(
                f"this holds while nothing else of these runs is released{spared}. After any other release each run counts "
                f"whole: {whole}"
            )
        return tuple(found)

    def __repr__(self) -> str:
        return f"{self.claim} · assumes {'; '.join(self.assumptions) or 'nothing more'}"

    def _repr_html_(self) -> str:
        used = (f"{name}: {value:.10g}" for name, value in self.weights.items() if value > 0)
        rows: list[tuple[str, object]] = [
            ("guarantee", f"{self._privacy} for {self.adjacency} neighbours"),
            ("standing", self.standing),
            ("theorem", f"{self._theorem.title} ({self._theorem.source}), by {self.by.upper()}"),
            ("weights", ", ".join(used)),
            ("beware", self.warnings),
            ("assumes", self.assumptions),
        ]
        return html_table((), [row for row in rows if row[1]])


@dataclass(frozen=True)
class Target:
    """The question: ε at a given δ, or δ at a given ε."""

    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None and self.delta is None:
            raise TargetError("one of the two is needed: a delta (to learn ε) or an epsilon (to learn δ)")
        if self.epsilon is not None and self.delta is not None:
            raise TargetError("give either a delta (to learn ε) or an epsilon (to learn δ), not both")
        if self.delta is not None and not 0 < self.delta < 1:
            raise TargetError(f"delta is {self.delta}; it must lie strictly between 0 and 1")
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise TargetError(f"epsilon is {self.epsilon}; it must be finite and not negative")
        if self.epsilon is not None and self.epsilon > LARGEST:  # its square is a float
            raise TargetError(f"epsilon is {self.epsilon}; above {LARGEST:g} it says nothing")


class Bound(ABC):
    """A proved upper bound on the privacy of one release, by one or more accountants."""

    @abstractmethod
    def accountants(self) -> tuple[Accountant, ...]: ...

    @abstractmethod
    def epsilon(self, delta: float, by: Accountant, conversion: Conversion) -> float: ...

    @abstractmethod
    def delta(self, epsilon: float, by: Accountant, conversion: Conversion) -> float: ...

    def answer(self, target: Target, by: Accountant, conversion: Conversion) -> Answer:
        return answer(
            target, by, lambda given: self.epsilon(given, by, conversion), lambda given: self.delta(given, by, conversion)
        )


@dataclass(frozen=True)
class ProfileBound(Bound):
    profile: Profile

    def accountants(self) -> tuple[Accountant, ...]:
        """GDP where it is exact; the loss distribution and Rényi where there are any."""
        if self.profile.mu is not None:
            return ("gdp", "pld", "rdp")
        has: tuple[tuple[bool, Accountant], ...] = (
            (self.profile.has_loss_distribution, "pld"),
            (self.profile.has_renyi, "rdp"),
        )
        return tuple(name for there, name in has if there)

    def epsilon(self, delta: float, by: Accountant, conversion: Conversion) -> float:
        """ε at δ; a GDP profile's loss distribution is Gaussian, so both are the closed form."""
        if by == "rdp":
            return self.profile.epsilon_by_renyi(delta, conversion)
        return self.profile.epsilon(delta)

    def delta(self, epsilon: float, by: Accountant, conversion: Conversion) -> float:
        if by == "rdp":
            return self.profile.delta_by_renyi(epsilon, conversion)
        return max(self.profile.delta(epsilon))


@dataclass(frozen=True)
class Answer:
    epsilon: float
    delta: float
    by: Accountant

    @property
    def size(self) -> tuple[float, float]:
        """For comparing answers to the same target: smaller is better."""
        return (self.epsilon, self.delta)


def ask(bound: Bound, target: Target, by: By = "best", conversion: Conversion = "tight") -> Answer:
    """Put a target to a bound.

    "best" takes the first that can answer of GDP (exact), the loss distribution (exact up to its grid) and Rényi (a
    conversion of the same divergences, so never smaller than the loss distribution's exact answer).
    """
    available = bound.accountants()
    if not available:
        raise UnsupportedMechanism(
            "no accountant composes an (ε, δ) pair with a record of which only Rényi divergences are known (rdp, fixed-size "
            "batches); restate the latter as an approx-dp record"
        )
    if by != "best" and by not in available:
        raise UnsupportedMechanism(_why_not(by, available))
    *first, last = available if by == "best" else (by,)
    for name in first:
        with contextlib.suppress(UnsupportedMechanism):
            return bound.answer(target, name, conversion)
    return bound.answer(target, last, conversion)


def answer(target: Target, by: Accountant, epsilon_at: Callable[[float], float], delta_at: Callable[[float], float]) -> Answer:
    """Put a target to a pair of functions: ε at δ, or δ at ε."""
    if target.delta is not None:
        return Answer(float(epsilon_at(target.delta)), target.delta, by)
    assert target.epsilon is not None
    return Answer(target.epsilon, float(delta_at(target.epsilon)), by)


def _why_not(by: By, available: tuple[Accountant, ...]) -> str:
    reasons = {
        "gdp": "GDP is exact only where every step is a full-batch Gaussian",
        "pld": "a record with Rényi divergences only, or with fixed-size batches, has no privacy loss distribution",
        "rdp": "an (ε, δ) pair with δ > 0 has no finite Rényi divergence",
    }
    return f"the accountant {by} does not apply: {reasons[by]}; available here: {', '.join(available)}"


def _content(part: object) -> Any:
    """A rule's argument as JSON data; different arguments give different data."""
    if isinstance(part, Weights):
        return [[model.name, model.record.model_dump_json(), weight.hex()] for model, weight in part.used] + [
            list(part.portfolio.names)
        ]
    if isinstance(part, Portfolio):  # its repr is for people, and says nothing of the records
        return [[model.name, model.record.model_dump_json()] for model in part.models]
    if isinstance(part, Rule):
        return part._content()
    if isinstance(part, tuple) and part and all(isinstance(one, Rule) for one in part):
        return [one._content() for one in part]
    # The default repr of an object is its address; only the repr of plain data identifies its content.
    assert part is None or isinstance(part, float | int | str | tuple | list) or is_dataclass(part), type(part)
    return repr(part)


class Rule(ABC):
    """A merge rule with weights: it answers targets with guarantees."""

    name: str
    weights: Weights
    looked_at: tuple[str, ...] = ()  # models without weight that the guarantee covers as well
    shuffle: ShuffleAsPoisson | None = None
    _made_of: tuple[Any, ...]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Keep all arguments of the rule: they are the key under which its answers are cached."""
        self = super().__new__(cls)
        self._made_of = (*arguments, *sorted(named.items()))
        return self

    @abstractmethod
    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee: ...

    def guarantee(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        by: By = "best",
        conversion: Conversion = "tight",
    ) -> Guarantee:
        """The guarantee of this release at a given δ (what is ε?) or at a given ε (what is δ?)."""
        target = Target(epsilon=epsilon, delta=delta)
        question = {**self._content(), "asked": [repr(target), by, conversion, accuracy()]}
        found = Guarantee.from_dict(remembered(question, lambda: self._guarantee(target, by, conversion).as_dict()))
        return replace(found, warnings=about_delta(found.delta, self.covered, self.shuffle))

    def _content(self) -> dict[str, Any]:
        return {"rule": type(self).__name__, "of": [_content(part) for part in self._made_of]}

    def _build(
        self,
        answer: Answer,
        theorem: str,
        assumptions: tuple[str, ...],
        conditional: bool,
        conversion: Conversion,
        details: Mapping[str, Any] | None = None,
    ) -> Guarantee:
        return Guarantee(
            epsilon=answer.epsilon,
            delta=answer.delta,
            adjacency=self.weights.portfolio.adjacency,
            theorem=theorem,
            assumptions=(*THEOREMS[theorem].assumptions, *about_records(self.covered), *assumptions),
            standing="conditional" if conditional else "proved",
            by=answer.by,
            rule=self.name,
            weights=self.weights.as_dict(),
            conversion=conversion if answer.by == "rdp" else None,
            details=details or {},
        )

    @property
    def covered(self) -> tuple[Model, ...]:
        """The models that the guarantee is about."""
        return self.weights.or_looked_at(self.looked_at)
