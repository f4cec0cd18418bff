"""A rule written down: everything that is needed to compute a release's guarantee again, from a file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpmerge.errors import CertificateError
from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Portfolio, Weights
from dpmerge.records.strict import Strict
from dpmerge.rules import Combination, Joint, Rule, Selection
from dpmerge.rules.releases import Exposure
from dpmerge.rules.tempered import Tempered
from dpmerge.rules.validation import Validated, Validation

RuleName = Literal["selection", "tempered", "combination", "joint"]
HexFloat = Annotated[str, Field(pattern=r"^-?0x[01]\.[0-9a-f]+p[+-]\d+$")]


class ValidationForm(Strict):
    """A private validation set that paid for the choice."""

    records: Annotated[int, Field(ge=1)]
    disjoint: bool
    epsilon: HexFloat


class RuleForm(Strict):
    """A rule with its weights, exactly: floats as hexadecimal digits."""

    rule: RuleName
    weights: Annotated[dict[str, HexFloat], Field(min_length=1)]
    looked_at: list[str] = Field(default_factory=list)  # joint release covers these besides the models that have weight
    kappa: HexFloat | None = None
    assume_smoothness: HexFloat | None = None
    shuffle_rate: HexFloat | None = None
    validation: ValidationForm | None = None

    def exact_weights(self, portfolio: Portfolio) -> Weights:
        """The weights over a portfolio; names that it does not have are refused."""
        return portfolio.weights({name: float.fromhex(value) for name, value in self.weights.items()})

    def build(self, portfolio: Portfolio, *, proved: bool = False) -> Rule:
        """The rule; with `proved`, without what was assumed about gradients on the user's word."""
        weights = self.exact_weights(portfolio)
        shuffle = None if self.shuffle_rate is None else ShuffleAsPoisson(float.fromhex(self.shuffle_rate))
        rule: Rule
        if self.rule == "selection":
            rule = Selection(weights, shuffle, index_published=True)
        elif self.rule == "combination":
            assumed = None if self.assume_smoothness is None or proved else float.fromhex(self.assume_smoothness)
            rule = Combination(weights, assumed, shuffle)
        elif self.rule == "tempered":
            if self.kappa is None:
                raise CertificateError("tempered selection without kappa")
            rule = Tempered(weights, float.fromhex(self.kappa), shuffle)
        else:
            involved = sorted({*(model.name for model, _ in weights.used), *self.looked_at})
            rule = Joint(portfolio.weights({name: 1 / len(involved) for name in involved}), shuffle)
        if self.validation is None:
            return rule
        size = Validation(self.validation.records, self.validation.disjoint)
        return Validated(rule, size, float.fromhex(self.validation.epsilon))

    def exposure(self, portfolio: Portfolio, dependent: bool) -> Exposure:
        """Which models the release may expose; all that it involves, unless it is a draw that depends on nothing."""
        weights = self.exact_weights(portfolio)
        if self.rule == "selection" and not dependent:
            return Exposure.drawn(weights)
        return Exposure.whole({*(model.name for model, _ in weights.used), *self.looked_at})

    def renamed(self, names: dict[str, str]) -> RuleForm:
        """The same under other names of the models."""
        weights = {names[name]: value for name, value in self.weights.items()}
        return self.model_copy(update={"weights": weights, "looked_at": [names[name] for name in self.looked_at]})
