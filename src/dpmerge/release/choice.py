"""What to release: a rule with weights that meets a target, decided before any file is touched."""

from __future__ import annotations

from dataclasses import dataclass

from dpmerge.errors import TargetError, UtilityError, WeightsError
from dpmerge.profiles.renyi import Conversion
from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Portfolio, Weights
from dpmerge.release.certificate import Provenance
from dpmerge.release.forms import RuleForm, RuleName, ValidationForm
from dpmerge.rules import Guarantee
from dpmerge.rules.guarantee import By, Target, round_up
from dpmerge.weights import Utilities, plan


@dataclass(frozen=True)
class Settings:
    """How a guarantee is computed."""

    by: By = "best"
    conversion: Conversion = "tight"
    assume_smoothness: float | None = None
    shuffle: ShuffleAsPoisson | None = None


_DEFAULT = Settings()


@dataclass(frozen=True)
class Choice:
    """A rule with its exact weights, its guarantee, and who chose the weights by what."""

    form: RuleForm
    weights: Weights
    guarantee: Guarantee
    provenance: Provenance
    source: str | None


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
    settings: Settings = _DEFAULT,
) -> Choice:
    """Weights as given, or the best ones for (ε, δ); refused if the target is not met.

    Joint release covers every model of the portfolio, because the weights may have been chosen by looking at all of them;
    with provenance `a-priori` only those that have weight.
    """
    Target(delta=delta)
    if epsilon is not None:
        Target(epsilon=epsilon)
    if (rule == "tempered") != (kappa is not None):
        raise TargetError("kappa belongs to tempered selection, and tempered selection needs it (--kappa)")
    if weights is None:
        weights = _best_weights(portfolio, rule, epsilon, delta, utility, kappa, validation_epsilon, settings)
    who = _provenance(rule, utility, provenance)
    form = _form(portfolio, rule, weights, who, utility, kappa, validation_epsilon, settings)
    made = form.build(portfolio)
    found = made.guarantee(delta=delta, by=settings.by, conversion=settings.conversion)
    if epsilon is not None and found.epsilon > epsilon:
        edge = made.guarantee(epsilon=epsilon, by=settings.by, conversion=settings.conversion)
        if edge.delta > delta:
            raise TargetError(
                f"these weights give ε = {round_up(found.epsilon)} at δ = {delta:g}, which is above {epsilon:g}; "
                "dpmerge plan shows what fits"
            )
        found = edge
    return Choice(form, weights, found, who, None if utility is None else utility.source)


def _best_weights(
    portfolio: Portfolio,
    rule: RuleName,
    epsilon: float | None,
    delta: float,
    utility: Utilities | None,
    kappa: float | None,
    validation_epsilon: float | None,
    settings: Settings,
) -> Weights:
    if epsilon is None:
        raise WeightsError("give the weights to release with, or a target ε for which to find them")
    if rule == "joint":
        raise WeightsError("joint release covers any merge of the models: say which one with --weights")
    found = plan(
        portfolio,
        epsilon=epsilon,
        delta=delta,
        utility=utility,
        rules=(rule,),
        by=settings.by,
        conversion=settings.conversion,
        kappa=kappa,
        validation_epsilon=validation_epsilon,
        assume_smoothness=settings.assume_smoothness,
        shuffle=settings.shuffle,
    )
    best = found.best
    if best is None:
        closest = found.closest
        raise TargetError(
            f"infeasible: no {rule} meets ({epsilon:g}, {delta:g}); {closest.why} "
            f"(the closest has ε = {round_up(closest.epsilon)})"
        )
    return portfolio.weights(best.weights)


def _provenance(rule: RuleName, utility: Utilities | None, claimed: Provenance | None) -> Provenance:
    known: Provenance = "a-priori" if utility is None else utility.provenance
    who: Provenance = claimed or ("after-looking" if rule == "joint" and known == "a-priori" else known)
    if who == "after-looking" and rule in ("selection", "combination"):
        raise UtilityError(
            f"weights chosen after looking at the models are not covered by {rule}: use --rule joint, or tempered selection"
        )
    if rule == "tempered" and utility is None:
        raise UtilityError("tempered selection prefers better models: give their scores with --utility")
    return who


def _form(
    portfolio: Portfolio,
    rule: RuleName,
    weights: Weights,
    who: Provenance,
    utility: Utilities | None,
    kappa: float | None,
    validation_epsilon: float | None,
    settings: Settings,
) -> RuleForm:
    validation = None
    if who == "private-validation":
        assert utility is not None
        assert utility.validation is not None
        if rule == "tempered":
            assert kappa is not None
            cost = utility.validation.tempered_epsilon(kappa, portfolio.adjacency)
        elif validation_epsilon is None:
            raise UtilityError("a choice by private scores costs their records: say how much with --validation-epsilon")
        else:
            cost = validation_epsilon
        validation = ValidationForm(
            records=utility.validation.records, disjoint=utility.validation.disjoint, epsilon=float(cost).hex()
        )
    return RuleForm(
        rule=rule,
        weights={model.name: weight.hex() for model, weight in weights.used},
        looked_at=list(portfolio.names) if rule == "joint" and who != "a-priori" else [],
        kappa=None if kappa is None else float(kappa).hex(),
        assume_smoothness=_hex(settings.assume_smoothness) if rule == "combination" else None,
        shuffle_rate=_hex(settings.shuffle.rate) if settings.shuffle is not None else None,
        validation=validation,
    )


def _hex(value: float | None) -> str | None:
    return None if value is None else float(value).hex()
