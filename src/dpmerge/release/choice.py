"""What to release: a rule with weights that meets a target, decided before any file is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dpmerge.cache import without_cache
from dpmerge.errors import TargetError, UtilityError, WeightsError
from dpmerge.planning import NOT_DRAWN, Option, Plan, Question, Utilities, draw_strength
from dpmerge.records import Portfolio, Weights
from dpmerge.release.certificate import NumericsForm
from dpmerge.release.forms import COVERS_INPUTS, RuleForm, ValidationForm
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    Accounting,
    Arithmetic,
    Guarantee,
    Provenance,
    RuleName,
    Target,
    least_noise,
    require_covered,
    require_used,
    round_up,
)

_SEARCHED = 5e-3  # by how much more than the least a search may find
_ANY_MERGE = "joint release covers any merge of the models: say which one by its weights"


@dataclass(frozen=True, repr=False, kw_only=True)
class Chosen(Option):
    """An option that may be released: its guarantee computed afresh, its rule written down, and who chose the weights.

    `scores` are those by which a tempered draw prefers models, in the portfolio's order, exactly; they are never written down.
    """

    guarantee: Guarantee
    form: RuleForm
    numerics: NumericsForm
    provenance: Provenance
    scores: tuple[float | Fraction, ...] | None = None
    sought: bool = False  # its noise was not given, but the least for its target

    def of_stored(self, arithmetic: Arithmetic) -> Chosen:
        """The same average with the guarantee that holds for stored numbers; refused if that exceeds the target."""
        made = self._again({"arithmetic": arithmetic}, keeps_question=arithmetic == "stored")
        found = made.guarantee
        if not made.meets_target:
            raise TargetError(
                f"this average cannot be released as asked: {found.details['joint_because']}. Joint release, which covers any "
                f"rounding, has ε = {round_up(found.epsilon)} at δ = {found.delta:g}"
            )
        return made

    def on_ladder(self, rung: Callable[[float], float], ladder: str | None) -> Chosen:
        """The same average with noise that a ladder has: what was asked for or more, or the least that meets the target."""
        asked = self.form.deviation
        noise = rung(asked * (1 - _SEARCHED) if self.sought else asked)
        if noise == asked:
            return replace(self, form=self.form.model_copy(update={"ladder": ladder}))
        while not (made := self._again({"noise": noise.hex(), "ladder": ladder})).meets_target:
            noise = rung(math.nextafter(noise, math.inf))  # on the edge of a target a grid may round up a little more
        return made

    @property
    def meets_target(self) -> bool:
        found = self.guarantee.epsilon
        return math.isfinite(found) and (self.within is None or found <= self.within)

    def _again(self, update: dict[str, object], *, keeps_question: bool = False) -> Chosen:
        """The guarantee computed anew for another form of the rule."""
        form = self.form.model_copy(update=update)
        numerics = self.numerics if keeps_question else self.numerics.model_copy(update={"solved_for": "epsilon"})
        with without_cache():
            found = numerics.answer(form.build(_by_name(self.weights.portfolio)), self.guarantee.epsilon, self.guarantee.delta)
        return replace(self, form=form, guarantee=found, numerics=numerics)


def chosen(option: Option, weights: Mapping[str, float] | None = None) -> Chosen:
    """An option of a plan, to be released; joint release needs the weights of the merge that it covers.

    A model alone is released as an average of one, if that is better because nothing else of its run is published; else under
    joint release with weights that were fixed beforehand, whose guarantee is its own.
    """
    asked, alone = option.question, option.rule == "single"
    hidden = option.guarantee is not None and option.guarantee.theorem == "hidden-run"
    if isinstance(option, Chosen):
        return option
    if weights is not None and option.rule != "joint":
        raise WeightsError(f"a planned {option.rule} has weights of its own: only joint release covers any others")
    if weights is None and option.rule == "joint":
        raise WeightsError(_ANY_MERGE)
    return choose(
        asked.portfolio,
        option.rule if option.rule != "single" else "combination" if hidden else "joint",
        delta=asked.delta,
        epsilon=option.within,
        weights=option.weights if weights is None else asked.portfolio.weights(weights),
        utility=asked.utility,
        provenance="a-priori" if alone else asked.provenance,
        kappa=asked.kappa if option.rule == "tempered" else None,
        noise=option.noise,
        accounting=asked.accounting.for_rule("combination" if alone and hidden else option.rule),
    )


def form_of(option: Option) -> RuleForm:
    """What a ledger counts if this option of a plan is released, without computing its guarantee anew."""
    asked, alone = option.question, option.rule == "single"
    hidden = option.guarantee is not None and option.guarantee.theorem == "hidden-run"
    rule: RuleName = option.rule if option.rule != "single" else "combination" if hidden else "joint"
    who = _provenance(rule, asked.utility, "a-priori" if alone else asked.provenance)
    kappa = asked.kappa if rule == "tempered" else None
    question = replace(asked, provenance=who, kappa=kappa, accounting=asked.accounting.for_rule(rule))
    form = _form(question, rule, option.weights, option.noise)
    if not hidden:
        form = form.model_copy(update={"last_only": None})
    theorem = None if option.guarantee is None else option.guarantee.theorem
    if rule == "combination" and form.noise is None and theorem not in COVERS_INPUTS:
        form = form.model_copy(update={"arithmetic": "stored"})  # as `settled` does (docs/theory.md §3.6)
    return form


def choose(
    portfolio: Portfolio,
    rule: RuleName,
    *,
    delta: float,
    epsilon: float | None = None,
    weights: Weights | None = None,
    utility: Utilities | None = None,
    provenance: Provenance | None = None,
    kappa: float | None = None,
    validation_epsilon: float | None = None,
    noise: float | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
) -> Chosen:
    """Weights as given, or the best ones for (ε, δ); refused if the target is not met.

    `noise` is the standard deviation of noise that is added to every parameter of an average. If it is not given, an average
    that does not meet its target without noise gets the least that does.
    Joint release covers every model of the portfolio, because the weights may have been chosen by looking at all of them;
    with provenance `a-priori` only those that have weight.
    """
    delta, epsilon = float(delta), None if epsilon is None else float(epsilon)
    if epsilon is not None:
        Target(epsilon=epsilon)
    utility = None if utility is None else utility.claimed(provenance)
    validation = None if utility is None else utility.validation
    kappa = draw_strength(kappa, validation_epsilon, validation, portfolio.adjacency)
    if validation is not None and rule != "tempered":
        raise UtilityError(f"weights chosen by looking at private scores are not covered by {rule}: {NOT_DRAWN}")
    require_used(rule, accounting.assume_smoothness, kappa)
    who = _provenance(rule, utility, provenance)
    question = Question(portfolio, delta, utility, who, kappa, (rule,), accounting=accounting, with_noise=noise is None)
    if weights is None:
        weights = _best_weights(question, rule, epsilon)
    form, sought = _form(question, rule, weights, noise or 0.0), False
    try:
        guarantee, numerics = _guarantee(portfolio, form, epsilon, delta, accounting)
    except TargetError as refusal:
        if rule != "combination" or noise is not None or epsilon is None:
            raise
        least = _least_noise(form.exact_weights(_by_name(portfolio)), epsilon, delta, accounting, refusal)
        form, sought = _form(question, rule, weights, least), True
        guarantee, numerics = _guarantee(portfolio, form, epsilon, delta, accounting)
    if form.last_only and guarantee.theorem != "hidden-run":  # not needed: other releases may follow
        form = form.model_copy(update={"last_only": None})
    return Chosen(
        rule=rule,
        weights=weights,
        guarantee=guarantee,
        utility=None,
        question=question,
        within=epsilon,
        feasible=True,
        form=form,
        numerics=numerics,
        provenance=who,
        scores=_scores(utility) if rule == "tempered" else None,
        sought=sought,
    )


def _least_noise(weights: Weights, epsilon: float, delta: float, accounting: Accounting, refusal: TargetError) -> float:
    """The least noise with which an average meets a target that it was refused for without."""
    try:
        with without_cache():
            return least_noise(weights, epsilon=epsilon, delta=delta, accounting=accounting)[0]
    except TargetError as fault:
        raise TargetError(f"{refusal}; {fault}") from None


def _scores(utility: Utilities | None) -> tuple[float | Fraction, ...] | None:
    """The scores that the draw uses. Private ones are taken as exact fractions, on which one record's effect is known."""
    if utility is None or utility.validation is None:
        return None if utility is None else utility.values
    return utility.validation.exact(utility.values)


def _guarantee(
    portfolio: Portfolio, form: RuleForm, epsilon: float | None, delta: float, accounting: Accounting
) -> tuple[Guarantee, NumericsForm]:
    """ε at δ; on the edge of a target δ at ε. Computed afresh: what is certified must not come from a cache's files."""
    made = form.build(_by_name(portfolio))
    question = NumericsForm.of(accounting)
    with without_cache():
        found = question.answer(made, 0.0, delta)
        if epsilon is not None and found.epsilon > epsilon:
            question = question.model_copy(update={"solved_for": "delta"})
            edge = question.answer(made, epsilon, delta)
            if edge.delta > delta:
                raise TargetError(
                    f"these weights give ε = {round_up(found.epsilon)} at δ = {delta:g}, which is above {epsilon:g}; "
                    "a plan shows what fits"
                )
            found = edge
    if not math.isfinite(found.epsilon):
        why = found.details.get("joint_because")
        raise TargetError(
            f"these weights have no finite ε at δ = {delta:g}: there is nothing to certify" + (f" ({why})" if why else "")
        )
    return found, question


def _by_name(portfolio: Portfolio) -> Portfolio:
    """In the order in which a certificate lists its models."""
    return Portfolio(tuple(sorted(portfolio.models, key=lambda model: model.name)))


def _best_weights(question: Question, rule: RuleName, epsilon: float | None) -> Weights:
    if epsilon is None:
        raise WeightsError("give the weights to release with, or a target ε for which to find them")
    if rule == "joint":
        raise WeightsError(_ANY_MERGE)
    found = Plan.of(question, epsilon)
    if found.best is None:
        raise TargetError(
            f"infeasible: no {rule} meets ({epsilon:g}, {question.delta:g}); {found.closest.why} "
            f"(the closest has ε = {round_up(found.closest.epsilon)})"
        )
    return found.best.weights


def _provenance(rule: RuleName, utility: Utilities | None, claimed: Provenance | None) -> Provenance:
    """Who chose the weights: as the utilities say, or without any as the user claims."""
    if utility is None and claimed == "private-validation":
        raise UtilityError("private-validation is about scores: give the utilities that describe their set")
    if rule == "tempered" and utility is None:
        raise UtilityError("tempered selection prefers better models: give their scores as utilities")
    if rule == "tempered" and utility is not None and not all(0 <= score <= 1 for score in utility.values):
        raise UtilityError("tempered selection needs scores in [0, 1]; rescale them")
    who: Provenance = claimed or ("a-priori" if utility is None else utility.provenance)
    if claimed is None and rule == "joint" and who == "a-priori":
        return "after-looking"
    require_covered(rule, who)
    return who


def _form(question: Question, rule: RuleName, weights: Weights, noise: float) -> RuleForm:
    portfolio, kappa, accounting = question.portfolio, question.kappa, question.accounting
    validation = None if question.utility is None else question.utility.validation
    paid = None
    if validation is not None and kappa is not None:
        cost = _hex("the validation set's epsilon", validation.tempered_epsilon(kappa, portfolio.adjacency))
        assert cost is not None
        paid = ValidationForm.of(validation, cost)
    return RuleForm(
        rule=rule,
        weights={model.name: weight.hex() for model, weight in weights.used},
        looked_at=sorted(portfolio.names) if rule == "joint" and question.provenance != "a-priori" else [],
        kappa=_hex("kappa", kappa),
        assume_smoothness=_hex("the smoothness", accounting.assume_smoothness),
        shuffle_rate=None if accounting.shuffle is None else _hex("the shuffle rate", accounting.shuffle.rate),
        validation=paid,
        last_only=True if rule == "combination" and accounting.only_release else None,
        noise=_hex("the noise of the release", noise) if noise else None,
    )


def _hex(what: str, value: float | None) -> str | None:
    """A number that is finite and not negative, exactly."""
    if value is None:
        return None
    if not (math.isfinite(value) and value >= 0):
        raise TargetError(f"{what} is {value}; it must be finite and not negative")
    return abs(float(value)).hex()
