"""The explorer's portfolio: answers are cached in memory; plans are computed in the background."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from dpmerge.errors import AccountingError, UtilityError
from dpmerge.explorer.plans import TARGETS, Plans
from dpmerge.explorer.telling import standing_of
from dpmerge.planning import Landscape, Question, Utilities
from dpmerge.records import DpSgd, Model, Portfolio
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    MIXTURE_ACCOUNTANTS,
    THEOREMS,
    WEIGHTS,
    Accounting,
    Guarantee,
    Looked,
    Rule,
    RuleName,
    Target,
    build,
)

_KEPT = 6  # values of δ whose plans are kept
_ANSWERS = 4096
_QUICK = 1e-3  # the accuracy of what is shown first
_CORNERS = 3  # most models in a plot over weights
_LOG = logging.getLogger("dpmerge.explorer")


@dataclass(frozen=True)
class Asked:
    """One merge and its target, with everything beside the portfolio that the answer depends on."""

    rule: RuleName
    values: tuple[float, ...]
    target: Target
    accounting: Accounting
    provenance: Looked | None

    def built(self, portfolio: Portfolio) -> Rule:
        return build(self.rule, portfolio.weights_in_order(self.values), self.accounting, provenance=self.provenance)

    def answer(self, portfolio: Portfolio) -> Guarantee:
        return self.accounting.guarantee(self.built(portfolio), delta=self.target.delta, epsilon=self.target.epsilon)


class PortfolioState:
    """The portfolio, its utilities, and the answers computed for it.

    Whatever is computed for plans, models and grids is accounted for by `planning`, which may do that in other processes;
    what is released is not.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        utility: Utilities | None = None,
        accounting: Accounting = DEFAULT_ACCOUNTING,
        targets: int = TARGETS,
    ) -> None:
        if utility is not None and utility.validation is not None:
            raise UtilityError(
                "scores on a private validation set, and weights chosen by them, cannot be shown: that would publish them; "
                "give other utilities, or make a plan instead"
            )
        self.portfolio, self.utility = portfolio, utility
        self.accounting = replace(accounting, any_delta=True)  # the API has already confirmed a large δ
        self.planning = self.accounting
        self._targets = targets
        self._plans: OrderedDict[float, Plans] = OrderedDict()
        self._first: float | None = None
        self._answers: OrderedDict[Asked, Guarantee] = OrderedDict()
        self._questions = lru_cache(_KEPT)(self._ask)
        self._lock = threading.Lock()
        self._closed = self._working = self._owners_turn = False
        self._climber: threading.Thread | None = None

    # --- plans ------------------------------------------------------------------------------------------------------------

    def plans(self, delta: float, owner: bool = False) -> Plans:
        """The plans at this δ. Missing ones are computed in the background, in turn for the latest of the owner and of others.

        As many values of δ are kept for the owner as for all others together, and the one that the server began with: nobody
        else's displace them.
        """
        Target(delta=delta)
        with self._lock:
            found = self._plans.get(delta)
            if found is None:
                account, quick = (partial(one, delta=delta) for one in (self.guarantee, self._quick))
                found = Plans(self.portfolio, self.utility, self.planning, delta, self._targets, account, quick)
                self._plans[delta] = found
            found.owned = found.owned or owner
            self._plans.move_to_end(delta)
            self._first = self._first or delta
            alike = [one for one, plans in self._plans.items() if plans.owned == found.owned and one != self._first]
            for one in alike[:-_KEPT]:
                del self._plans[one]
            self._work()
        return found

    def landscape(self, delta: float, models: tuple[str, ...], owner: bool = False) -> Landscape:
        """ε over the weights of these models. Default: all; of more than three, the most, the median and the least private."""
        plans = self.plans(delta, owner)
        wanted = models or self._corners(plans)
        with self._lock:
            found = plans.landscape(wanted)
            self._work()
        return found

    def _corners(self, plans: Plans) -> tuple[str, ...]:
        names = self.portfolio.names
        if len(names) <= _CORNERS:
            return names
        alone = [option for option in plans.known.options if option.rule == "single"]
        ranked = [option.weights.used[0][0].name for option in sorted(alone, key=lambda option: option.epsilon)]
        chosen = {ranked[0], ranked[len(ranked) // 2], ranked[-1]}
        return tuple(name for name in names if name in chosen)

    def close(self, timeout: float = 1.0) -> None:
        """Stop the background thread after its current step."""
        self._closed = True
        if self._climber is not None:
            self._climber.join(timeout)

    def _work(self) -> None:
        """Start the background thread if work remains; the caller holds the lock."""
        if not self._working and not self._closed and not all(plans.complete for plans in self._plans.values()):
            self._working = True
            self._climber = threading.Thread(target=self._climb, name="explorer-plans", daemon=True)
            self._climber.start()

    def _climb(self) -> None:
        while (latest := self._unfinished()) is not None:
            try:
                latest.advance()
            except Exception:  # requests still compute their own answers
                if not self._closed:
                    _LOG.exception("computing plans in the background failed")
                latest.abandoned = True

    def _unfinished(self) -> Plans | None:
        """Incomplete plans: in turn the owner's and others', the latest of each. If there are none, the worker exits."""
        with self._lock:
            left = [one for one in reversed(self._plans.values()) if not one.complete]
            self._working = bool(left) and not self._closed
            self._owners_turn = not self._owners_turn
            return next((one for one in left if one.owned == self._owners_turn), left[0]) if self._working else None

    # --- guarantees -------------------------------------------------------------------------------------------------------

    def guarantee(
        self,
        rule: RuleName,
        weights: Mapping[str, float],
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        provenance: Looked | None = None,
        accounting: Accounting | None = None,
    ) -> Guarantee:
        """The guarantee of one merge, cached; without `accounting`, accounted as plans are."""
        how = self.planning.for_rule(rule) if accounting is None else accounting
        asked = Asked(rule, self.portfolio.weights(weights).values, Target(epsilon=epsilon, delta=delta), how, provenance)
        return self.known(asked) or self.keep(asked, asked.answer(self.portfolio))

    def known(self, asked: Asked) -> Guarantee | None:
        """The answer, if it was computed before."""
        with self._lock:
            if asked in self._answers:
                self._answers.move_to_end(asked)
            return self._answers.get(asked)

    def keep(self, asked: Asked, found: Guarantee) -> Guarantee:
        with self._lock:
            self._answers[asked] = found
            if len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return found

    def _quick(self, rule: RuleName, weights: Mapping[str, float], *, delta: float) -> Guarantee:
        """A bound that takes less time: no search, on coarse grids."""
        how = replace(self.planning.for_rule(rule), accuracy=_QUICK, quick=True)
        return self.guarantee(rule, weights, delta=delta, accounting=how)

    def _ask(self, delta: float) -> list[Question]:
        """One question for each accountant, at this δ."""
        return [Question(self.portfolio, delta, accounting=replace(self.planning, by=by)) for by in MIXTURE_ACCOUNTANTS]

    def models(self, delta: float) -> list[dict[str, Any]]:
        """Every model as a card: training, guarantee of this model alone, warnings."""
        cards = [self._card(model, delta) for model in self.portfolio.models]
        utilities = [None] * len(cards) if self.utility is None else self.utility.values
        return [card | {"utility": utility} for card, utility in zip(cards, utilities, strict=True)]

    def _card(self, model: Model, delta: float) -> dict[str, Any]:
        warnings: dict[str, None] = {}
        epsilons: dict[str, float] = {}
        standings = {"refused"}
        for question in self._questions(delta):
            found = question.alone[model.name]
            if isinstance(found, AccountingError):
                warnings[str(found)] = None
                continue
            epsilons[question.accounting.by] = found.epsilon
            standings.add(standing_of(found))
            # The theorem's usual assumptions are not warnings; those added for this record are.
            usual = (*THEOREMS[found.theorem].assumptions, WEIGHTS)
            warnings |= dict.fromkeys([*found.warnings, *(text for text in found.assumptions if text not in usual)])
        mechanism = model.mechanism
        return {
            "name": model.name,
            "kind": mechanism.kind,
            "run": model.run,
            "steps": getattr(mechanism, "steps", None),
            "noise_multiplier": getattr(mechanism, "noise_multiplier", None),
            "sampling": mechanism.sampling.model_dump() if isinstance(mechanism, DpSgd) else None,
            "epsilon": epsilons,
            "standing": next(one for one in ("conditional", "proved", "none", "refused") if one in standings),
            "warnings": list(warnings),
        }
