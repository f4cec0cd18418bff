"""The best one may release for a target: every rule with its best weights, ranked, and why the rest does not fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpmerge.errors import AccountingError
from dpmerge.notebook import frame, html_table
from dpmerge.planning.advice import Advice, advise
from dpmerge.planning.noising import why_not_hidden
from dpmerge.planning.option import Option, OptionRule, Question
from dpmerge.planning.search import NOT_DRAWN, Search
from dpmerge.records import ApproxDp
from dpmerge.rules import Target, about_records, assumed_by, round_down, round_up, whose

if TYPE_CHECKING:
    from pandas import DataFrame

_ORDER: tuple[OptionRule, ...] = ("single", "selection", "joint", "tempered", "combination")
_FIXED: tuple[OptionRule, ...] = ("single", "joint")  # their guarantees at δ do not depend on ε
_KNOWN = 4096  # options of a rule that are kept for other targets
_LOOKED = (
    "the utilities were measured on the private models, so weights chosen by them are a function of those models: only joint "
    "release of every model looked at, or tempered selection, covers it"
)


@dataclass(frozen=True, repr=False)
class Plan:
    """The options for one target, best first; `known` are all that were found, at any target of this δ.

    `why_no_noise` says, in one sentence, why noise at release does not pay, where it does not.
    """

    question: Question
    epsilon: float
    options: tuple[Option, ...]
    known: Mapping[OptionRule, tuple[Option, ...]] = field(default_factory=dict, compare=False)
    why_no_noise: str = ""

    @classmethod
    def of(cls, question: Question, epsilon: float, search: Sequence[OptionRule] | None = None) -> Plan:
        return cls(question, float(epsilon), ()).at(epsilon, search=search)

    @property
    def delta(self) -> float:
        return self.question.delta

    @property
    def provenance(self) -> str:
        return "a-priori" if self.question.utility is None else self.question.utility.provenance

    @property
    def source(self) -> str:
        return (self.question.utility or self.question.shown).source

    @property
    def utilities(self) -> dict[str, float]:
        """By which options are ranked; none where scores are private."""
        if self.question.private_scores:
            return {}
        return dict(zip(self.question.portfolio.names, self.question.shown.values, strict=True))

    @property
    def best(self) -> Option | None:
        """The best feasible option, if there is one."""
        return next((option for option in self.options if option.feasible), None)

    @property
    def closest(self) -> Option:
        """The option with the smallest ε at the target's δ: what to ask for if nothing fits."""
        return min(self.options, key=lambda option: option.epsilon)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What would pay beyond these options; computed when it is asked for."""
        return advise(self.question, self.epsilon, self.options)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all options, each once."""
        found = [option.guarantee for option in self.options if option.guarantee is not None]
        return tuple(dict.fromkeys(text for guarantee in found for text in guarantee.warnings))

    @property
    def assumptions(self) -> dict[str, list[str]]:
        """Every assumption of the options once, with the rules that make it; what records rest on once, for all models."""
        models = self.question.portfolio.models
        stated: list[tuple[str, list[str]]] = []
        for option in self.options:
            if option.guarantee is not None:
                counted = models if option.rule == "joint" else tuple(model for model, _ in option.weights.used)
                own = about_records(counted)
                rest = [text for text in option.guarantee.assumptions if text not in own]
                stated.append((option.rule, [*rest, *(about_records(models) if own else ())]))
        return assumed_by(stated)

    def at(self, epsilon: float, *, search: Sequence[OptionRule] | None = None) -> Plan:
        """The plan for another ε at the same δ.

        `search` names the rules whose best weights are searched for anew, by default all. With none the answer comes from what
        is known, at once: whatever is (ε, δ)-DP is also (ε', δ)-DP for every ε' ≥ ε, so every option reported as
        fitting is proved; a better one may exist. The returned plan also knows what its search found.
        """
        Target(epsilon=epsilon)
        known, options = dict(self.known), []
        for rule in _ORDER:
            if rule not in self.question.rules:
                continue
            if rule in _FIXED:
                found = known[rule] = known.get(rule) or self._searched(rule, epsilon)
            elif search is None or rule in search:
                found = self._searched(rule, epsilon)
                known[rule] = _kept(known.get(rule, ()), found)
            else:
                found = self._best_of(known.get(rule, ()), epsilon)
            options += [self._judged(option, epsilon) for option in found]
        why = next((option.noiseless for option in options if option.noiseless), "")
        return Plan(self.question, float(epsilon), _telling(sorted(options, key=lambda one: one.rank)), known, why)

    def _searched(self, rule: OptionRule, epsilon: float) -> tuple[Option, ...]:
        return tuple(Search(self.question, float(epsilon)).options(rule))

    def _best_of(self, known: tuple[Option, ...], epsilon: float) -> tuple[Option, ...]:
        """The most useful one that meets the target, else the most private one; nothing if none is known."""
        fit = [one for one in known if self._meets(one, epsilon)]
        if fit:
            return (min(fit, key=lambda one: (-(one.utility or 0.0), one.epsilon)),)
        return (min(known, key=lambda one: one.epsilon),) if known else ()

    def _meets(self, option: Option, epsilon: float) -> bool:
        return option.epsilon <= epsilon and option.delta <= self.delta

    @property
    def front(self) -> list[Option]:
        """The best known at every ε, from private to useful: nothing known is at least as private and more useful."""
        best = -math.inf
        kept = []
        for option in sorted((one for found in self.known.values() for one in found), key=lambda one: one.epsilon):
            covered = not self.question.looked or option.rule in ("joint", "tempered")
            if covered and self._meets(option, sys.float_info.max) and (option.utility or 0.0) > best:
                best = option.utility or 0.0
                kept.append(option)
        return kept

    def knowing(self, options: Iterable[Option]) -> Plan:
        """The same plan, which also knows these options when it is asked for other targets."""
        known = dict(self.known)
        for option in options:
            known[option.rule] = _kept(known.get(option.rule, ()), [option])
        return replace(self, known=known)

    def span(self, around: Sequence[float] = ()) -> tuple[float, float]:
        """The ε of interest: from half the smallest of a model alone to the largest, wider if ε `around` lie outside."""
        alone = self.question.finite_alone
        found = [epsilon for epsilon in (*around, *alone, *(0.5 * one for one in alone)) if epsilon > 0] or [0.1, 10.0]
        return min(found), max(found)

    def targets(self, count: int, around: Sequence[float] = ()) -> list[float]:
        """The ε worth a search, evenly in log ε over the span: both ends first, then middles."""
        low, high = self.span(around)
        last = max(1, count - 1)
        order, step = [0, last], last
        while step > 1:
            step = (step + 1) // 2
            order += range(0, last + 1, step)
        return [low * (high / low) ** (index / last) for index in dict.fromkeys(order)]

    def _judged(self, option: Option, epsilon: float) -> Option:
        """The option compared with a target: whether it fits, and why not, or what is left (rounded down)."""
        found = option.guarantee
        if found is None:
            return option
        why, feasible = "", False
        if not self._meets(option, epsilon):
            why = f"ε = {round_up(found.epsilon)} at δ = {found.delta:g} is above {epsilon:g}" + self._hint(option)
        elif self.question.looked and option.rule not in ("joint", "tempered"):
            why = NOT_DRAWN if self.question.private_scores else _LOOKED
        elif found.epsilon < epsilon:
            why, feasible = f"leaves ε = {round_down(epsilon - found.epsilon):g}", True
        else:
            why, feasible = f"leaves δ = {round_down(max(0.0, self.delta - found.delta), 3):g}", True
        judged = replace(option, within=float(epsilon), feasible=feasible, why=why)
        return self._counted(judged) if feasible and self.question.counting is not None else judged

    def _counted(self, option: Option) -> Option:
        """With the total of everything in the ledger and this; it does not fit where that passes the budget."""
        assert self.question.counting is not None
        try:
            total = self.question.counting(option)
        except AccountingError as error:
            return replace(option, feasible=False, why=f"it cannot be counted with the ledger's releases: {error}")
        return replace(option, total=total.guarantee, feasible=total.fits, why=option.why if total.fits else total.why)

    def _hint(self, option: Option) -> str:
        """What would make the rule pay."""
        if option.rule == "joint":
            stated = sum(model.mechanism.delta for model, _ in option.weights.used if isinstance(model.mechanism, ApproxDp))
            if stated > self.delta:
                return f": the δ that these records state add up to {stated:g}; ask at a larger δ"
            return ": it counts every step of every model; fewer models would cost less"
        if option.rule == "combination" and option.noiseless:
            return f"; {option.noiseless}"
        if option.rule == "single":
            asked = self.question
            unhidden = why_not_hidden(asked.portfolio, asked.accounting)
            if asked.with_noise and option.weights.used[0][0].name not in unhidden:
                return "; noise at release lowers it"
            return "; a model trained with more noise, or for fewer steps, costs less"
        if option.rule in ("selection", "tempered"):
            return ": a draw is at best as private as the most private model; train a more private one for it"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "target": {"epsilon": self.epsilon, "delta": self.delta},
            "provenance": self.provenance,
            "utilities": self.utilities,
            "utilities_source": self.source,
            "options": [option.as_dict() for option in self.options],
            "why_no_noise": self.why_no_noise,
        }

    def to_frame(self) -> DataFrame:
        """The options as a pandas table, with all digits."""
        return frame(option.as_dict() for option in self.options)

    def __repr__(self) -> str:
        best = self.best
        told = "nothing fits" if best is None else f"best is {best!r}"
        return f"<Plan for ({self.epsilon:g}, {self.delta:g}), {len(self.options)} options; {told}>"

    def _repr_html_(self) -> str:
        rows = [option.row() for option in self.options]
        shown = html_table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])
        return shown + html_table([], [("assumes", whose(self.assumptions))])


def _telling(ranked: Sequence[Option]) -> tuple[Option, ...]:
    """Without options that add nothing: a draw or average of one listed model, or one that another of its rule beats."""
    told: list[Option] = []
    for option in ranked:
        for other in told:
            same = other.rule == option.rule and len(other.weights.used) == len(option.weights.used)
            single = other.rule == "single" and other.weights == option.weights
            if option.rule != "single" and (same or single) and other.guarantee is not None and other.beats(option):
                break
        else:
            told.append(option)
    return tuple(told)


def _kept(known: tuple[Option, ...], found: Iterable[Option]) -> tuple[Option, ...]:
    """The known options and those found, without any that another one beats."""
    for option in found:
        if len(known) < _KNOWN and not any(one.beats(option) for one in known):
            known = (*(one for one in known if not option.beats(one)), option)
    return known
