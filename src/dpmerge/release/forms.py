"""A rule written down: everything that is needed to compute a release's guarantee again, from a file."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from dpmerge.planning import ValidationSet
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Adjacency, Extended, Portfolio, Strict, Weights
from dpmerge.rules import Accounting, Arithmetic, Exposure, Rounding, Rule, RuleName, Validated, Validation, build

DRAWS: tuple[RuleName, ...] = ("selection", "tempered")
# Guarantees that cover every model with weight as it is: digests of the inputs may then be published.
COVERS_INPUTS = ("joint-release", "single-run", "shards")


def _exact(text: str) -> str:
    """One spelling for each float, so that a weight cannot be written in two ways; infinity is rejected."""
    try:
        own = float.fromhex(text).hex()
    except OverflowError:
        raise ValueError("beyond the largest float") from None
    if own != text:
        raise ValueError(f"not as floats are written exactly, which is {own}")
    return text


def _positive(text: str) -> str:
    if not float.fromhex(text) > 0:
        raise ValueError("a model without weight takes no part: leave it out")
    return text


def positive_noise(text: str) -> str:
    if not float.fromhex(text) > 0:
        raise ValueError("noise at release is positive: leave it out where there is none")
    return text


def _rate(text: str) -> str:
    if not 0 < float.fromhex(text) <= 1:
        raise ValueError("a sampling rate lies in (0, 1]")
    return text


# Nothing here is ever negative.
HexFloat = Annotated[str, Field(pattern=r"^0x[01]\.[0-9a-f]{1,13}p[+-]\d{1,4}$"), AfterValidator(_exact)]


PositiveFloat = Annotated[HexFloat, AfterValidator(positive_noise)]
LadderId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # public: a digest of what is secret


class ValidationForm(ValidationSet):
    """A private validation set that paid for the choice."""

    epsilon: HexFloat

    @classmethod
    def of(cls, validation: Validation, epsilon: str) -> ValidationForm:
        divisor = {"divisor" if validation.constant else "records": validation.divisor}
        return cls(disjoint=validation.disjoint, epsilon=epsilon, **divisor)


class Renoised(Strict):
    """More noise on a release that someone held (theory.md §9.8): its noise, what was added, where numbers were cut, and r."""

    noise: PositiveFloat
    added: PositiveFloat
    bound: PositiveFloat
    distance: PositiveFloat

    @property
    def rounding(self) -> Rounding:
        return Rounding(float.fromhex(self.distance), float.fromhex(self.added))

    @property
    def square(self) -> Fraction:
        """The variance of both noises together."""
        return Fraction(float.fromhex(self.noise)) ** 2 + Fraction(float.fromhex(self.added)) ** 2


class RuleForm(Extended):
    """A rule with its weights, exactly: floats as hexadecimal digits."""

    added: ClassVar[frozenset[str]] = frozenset({"arithmetic", "last_only", "noise", "ladder", "renoised"})
    rule: RuleName
    weights: Annotated[dict[str, Annotated[HexFloat, AfterValidator(_positive)]], Field(min_length=1)]
    looked_at: list[str] = Field(default_factory=list)  # joint release covers these besides the models that have weight
    kappa: HexFloat | None = None
    assume_smoothness: HexFloat | None = None
    shuffle_rate: Annotated[HexFloat, AfterValidator(_rate)] | None = None
    validation: ValidationForm | None = None
    arithmetic: Arithmetic | None = None  # of a combination of stored numbers (theory.md §3.6)
    last_only: Literal[True] | None = None  # the guarantee assumes that nothing else of its runs is published (theory.md §9)
    noise: PositiveFloat | None = None  # standard deviation, on every parameter
    ladder: LadderId | None = None  # whose path the noise is a point of (theory.md §9)
    renoised: Renoised | None = None  # part of the noise was added to a release that had been rounded

    @property
    def draws(self) -> bool:
        """Whether one model is released as it is."""
        return self.rule in DRAWS

    @property
    def involved(self) -> set[str]:
        """Every model that the guarantee is about."""
        return {*self.weights, *self.looked_at}

    @property
    def values(self) -> dict[str, float]:
        """The weights as numbers, by name in alphabetical order: the order in which an average is summed up."""
        return {name: float.fromhex(self.weights[name]) for name in sorted(self.weights)}

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise at release; 0 where there is none."""
        return 0.0 if self.noise is None else float.fromhex(self.noise)

    @property
    def contradictions(self) -> dict[str, bool]:
        """What a rule must not state beside its name, and whether this one does."""
        averages, tempered = self.rule == "combination", self.rule == "tempered"
        return {
            "kappa without tempered selection, or the reverse": tempered != (self.kappa is not None),
            "models looked at under a rule that covers none": self.rule != "joint" and bool(self.looked_at),
            "models looked at out of order": self.looked_at != sorted(set(self.looked_at)),
            "smoothness under a rule that does not use it": not averages and self.assume_smoothness is not None,
            "arithmetic under a rule that does not average": not averages and self.arithmetic is not None,
            "the last iterate only, under a rule that does not average": not averages and self.last_only is not None,
            "noise under a rule that does not average": not averages and self.noise is not None,
            "noise of a file, and a ladder or none": (
                self.renoised is not None and (self.noise is None or self.ladder is not None)
            ),
            "more noise than was added": self.renoised is not None and Fraction(self.deviation) ** 2 > self.renoised.square,
            "a ladder without noise": self.ladder is not None and self.noise is None,
            "noise on the exact average, and a condition on its rounding": (
                self.noise is not None and self.arithmetic == "stored"
            ),
            "a private validation set under a rule that does not draw by its scores": (
                not tempered and self.validation is not None
            ),
        }

    def exact_weights(self, portfolio: Portfolio) -> Weights:
        """The weights over a portfolio; names that it does not have are refused."""
        return portfolio.weights(self.values)

    def build(self, portfolio: Portfolio, *, proved: bool = False) -> Rule:
        """The rule; with `proved`, without the user's assumptions on gradients and on the rounding of files."""
        assumed = None if self.assume_smoothness is None or proved else float.fromhex(self.assume_smoothness)
        shuffle = None if self.shuffle_rate is None else ShuffleAsPoisson(float.fromhex(self.shuffle_rate))
        rule = build(
            self.rule,
            self.exact_weights(portfolio),
            Accounting(assume_smoothness=assumed, shuffle=shuffle, only_release=self.last_only is not None),
            looked_at=tuple(self.looked_at),
            kappa=None if self.kappa is None else float.fromhex(self.kappa),
            # A single model is stored as it was trained: its guarantee does not rest on the rounding of an average.
            arithmetic="joint" if self.arithmetic is not None and proved and len(self.weights) > 1 else self.arithmetic,
            noise=self.deviation,
            rounding=None if self.renoised is None else self.renoised.rounding,
        )
        if self.validation is None:
            return rule
        return Validated(rule, self.validation.described, self.paid(portfolio.adjacency))

    def paid(self, adjacency: Adjacency) -> float:
        """What the validation set pays: as stated, and never less than the strength of a tempered draw costs."""
        if self.validation is None:
            return 0.0
        kappa = 0.0 if self.kappa is None else float.fromhex(self.kappa)
        return max(float.fromhex(self.validation.epsilon), self.validation.described.tempered_epsilon(kappa, adjacency))

    def exposure(self, portfolio: Portfolio) -> Exposure:
        """Which models the release may expose; all that it involves, unless it is a draw that looks at nothing."""
        weights = self.exact_weights(portfolio)
        return Exposure.drawn(weights) if self.rule == "selection" else Exposure.whole(self.involved)

    def renamed(self, names: dict[str, str]) -> RuleForm:
        weights = {names[name]: value for name, value in self.weights.items()}
        return self.model_copy(update={"weights": weights, "looked_at": [names[name] for name in self.looked_at]})
