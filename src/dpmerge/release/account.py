"""All releases of a ledger counted together: tightly, or by a filter if they were chosen by each other (docs/theory.md §5)."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from dpmerge.errors import AccountingError, LedgerError
from dpmerge.planning import Total
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Portfolio
from dpmerge.release.counting import Counted, charged, first_of_each, least_noisy
from dpmerge.release.entries import Budget, Entry, PendingEntry
from dpmerge.release.forms import RuleForm
from dpmerge.release.known import KnownModels
from dpmerge.rules import (
    DRAWING,
    Charge,
    Combination,
    Exposure,
    Filter,
    Guarantee,
    Releases,
    Rule,
    Sum,
    Validated,
)

FILTER = "adaptive-filter"


class Account:
    """All releases of a ledger, and one more, counted in two ways, each with its own share of δ.

    The tight count covers everything declared and releases chosen without looking at other releases. The filter covers
    everything. Once a release was allowed by the filter, only the filter counts.
    """

    def __init__(self, budget: Budget, entries: Sequence[Entry], new: PendingEntry | None = None) -> None:
        self.budget = budget
        self.filter = filter_of(budget, entries)
        self.tight_delta = budget.delta
        if self.filter is not None:
            self.tight_delta = math.nextafter(budget.delta - self.filter.delta - self.filter.pairs, 0.0)
        known = KnownModels()
        self._declared: set[str] = set()
        for entry in entries:
            if entry.kind == "portfolio":
                self._declared.update(known.add(entry.content, f"declared in entry {entry.number}").values())
        counted = charged(entries)
        contents = [(f"entry {entry.number}", entry.content, settled) for entry, settled in counted]
        if new is not None:
            contents.append(("this release", new.content(), False))
        adjacency = budget.adjacency
        self._releases = [Counted.of(one, known.add(one, source), adjacency, settled) for source, one, settled in contents]
        # Of each ladder the least noisy one that depends on none; and of those that no longer can be voided.
        self._least, self._settled = least_noisy(self._releases), least_noisy(one for one in self._releases if one.settled)
        self._first, self._first_settled = (
            first_of_each(self._releases),
            first_of_each(one for one in self._releases if one.settled),
        )
        self._models = known.models
        self._shown_by: dict[str, frozenset[str]] = {}
        if self._models:  # under every rule: contradictory records of one run give no bound
            Portfolio(tuple(self._models.values()))
        self._filtered = any(entry.content["total"]["theorem"] == FILTER for entry, _ in counted)

    @property
    def is_empty(self) -> bool:
        return not self._releases and not self._declared

    @property
    def undeclared(self) -> list[Counted]:
        """Releases that depend on others and involve models that were not declared."""
        return [
            one
            for one in self._releases
            if one.dependent and (one.pays or not one.involved <= self._declared) and not self.is_free(one)
        ]

    def is_free(self, one: Counted) -> bool:
        """Whether it is a function of another that is charged: of a less noisy one of its ladder (§9), or the same again.

        One that depends on others may rely on what stays charged alone: else it would depend on outcomes what is.
        """
        if self._is_again(one):
            return True
        least = None if one.ladder is None else (self._settled if one.dependent else self._least).get(one.ladder)
        return least is not None and least is not one and least.noise <= one.noise

    def _is_again(self, one: Counted) -> bool:
        """Whether the same function of the same tensors is charged already: then it has shown what this one shows."""
        charged = None if one.same is None else (self._first_settled if one.dependent else self._first).get(one.same)
        return charged is not None and charged is not one

    @property
    def is_tight(self) -> bool:
        """Whether the tight count covers all releases."""
        return not self._filtered and not self.undeclared

    def require_provision(self, name: str) -> None:
        """Refuse a release that depends on others where nothing was provided for it before the first release."""
        if self.is_tight or self.filter is not None:
            return
        below = [one for one in self.undeclared if one.ladder is not None]
        if below:
            least = self._settled.get(below[0].ladder) if below[0].ladder else None
            to = (
                "nothing of its ladder is charged for good"
                if least is None
                else f"its ladder is charged down to {least.noise:.6g}"
            )
            raise LedgerError(
                f"{name}: this release depends on what earlier ones showed. Its noise is {below[0].noise:.6g}, and {to}: how "
                "little noise a ladder ends with must not be chosen by what noisier releases of it showed, so charging this "
                "one now would not cover it. A floor that is entered beforehand makes every release above it free, whatever "
                "that depends on"
            )
        others = self._runs_of({name for one in self.undeclared for name in one.involved - self._declared})
        what = "this ledger has no rule for such a release"
        if self._declared:
            what = f"it involves {others}, not declared here" if others else "it was chosen by a private validation set"
        raise LedgerError(
            f"{name}: this release depends on what earlier ones showed, and {what}. A ledger must provide for that before its "
            "first release: either it declares portfolios, whose models all count from the start so that any choice among them "
            "is free, or it has a filter, which takes a share of δ. Releases chosen independently of earlier ones need no "
            "provision."
        )

    def _runs_of(self, names: Iterable[str]) -> str:
        return ", ".join(f"run {run!r}" for run in sorted(self._runs(names)))

    @cached_property
    def _independent(self) -> list[Counted]:
        """Releases that depend on none. All of a ladder are functions of the least noisy one and of fresh noise (§9)."""
        return [
            one
            for one in self._releases
            if not one.dependent and (one.ladder is None or one is self._least[one.ladder]) and not self._is_again(one)
        ]

    def rules(self) -> list[Rule]:
        """Rules that each bound the independent releases together with everything declared."""
        releases = self._independent
        if not releases and not self._declared:
            return []
        forms = [form for one in releases for form in one.forms]
        whole = self._portfolio
        # A single release has the guarantee of its own rule. Several are counted by the set of models that have leaked, and a
        # ladder of whose runs nothing else was released by its own rule.
        if self._counted_by_itself is not None:
            return [forms[0].build(whole, proved=True)]
        alone = self._ladders
        beside = tuple(rule for one in alone if isinstance(rule := one.forms[0].build(whole, proved=True), Combination))
        shown = [Exposure.whole(self._declared)] if self._declared else []
        shown += [one.exposure for one in releases if one not in alone]
        return [_with_validation(Releases(whole, shown, _shuffle(forms), beside), forms)]

    @cached_property
    def _portfolio(self) -> Portfolio:
        return Portfolio(tuple(self._models[name] for name in sorted(self._models)))

    @property
    def _counted_by_itself(self) -> Counted | None:
        """The only release, or the least noisy of the only ladder, if its own rule counts it."""
        releases = self._independent
        if self._declared or len(releases) != 1 or len(releases[0].forms) > 1 or releases[0].as_joint:
            return None
        return releases[0] if _is_itself(releases[0].forms[0], self._portfolio, releases[0].exposure) else None

    @property
    def ladders(self) -> list[Counted]:
        """The least noisy one of each ladder of whose runs nothing else was released: down to its noise all of it is free."""
        return self._ladders if self.is_tight else []

    @cached_property
    def _ladders(self) -> list[Counted]:
        shown = Counter(self._shown_runs(self._declared))
        for one in self._independent:
            shown.update(self._shown_runs(one.involved))

        def is_alone(one: Counted) -> bool:
            own = self._shown_runs(one.involved)
            apart = all(shown[run] == (run in own) for run in self._runs(one.involved))  # nothing but itself shows its runs
            return apart and _is_itself(one.forms[0], self._portfolio, one.exposure)

        return [one for one in self._independent if one.ladder is not None and is_alone(one)]

    def _runs(self, names: Iterable[str]) -> set[str]:
        return {self._models[name].run for name in names}

    def _shown_runs(self, names: Iterable[str]) -> set[str]:
        """With the runs that forks start from, which count up to there."""
        return {run for name in names for run in self._shown(name)}

    def _shown(self, name: str) -> frozenset[str]:
        if name not in self._shown_by:
            model = self._models[name]
            self._shown_by[name] = frozenset(run.run for run in (model, *model.starts))
        return self._shown_by[name]

    def once_more(self) -> Guarantee | None:
        """The least that all releases cost once anything else of the runs of an average is released; None without averages."""
        if not any(one.forms[0].rule == "combination" and not one.as_joint for one in self._releases):
            return None
        shown = self._declared.union(*(one.involved for one in self._releases if one.forms[0].rule == "combination"))
        forms = [form for one in self._releases for form in one.forms]
        return Releases(self._portfolio, [Exposure.whole(shown)], _shuffle(forms), ()).guarantee(delta=self.tight_delta)

    def own(self, one: Counted) -> Guarantee:
        """What a release guarantees by itself, at the δ that all have together."""
        return one.forms[0].build(self._portfolio, proved=True).guarantee(delta=self.tight_delta)

    def ladder_of(self, form: RuleForm) -> str | None:
        """The ladder that an average with these weights, under the ledger's names, was released from before."""
        weights = tuple(sorted(form.weights.items()))
        return next((key[0] for key in self._least if key[1:] == weights), None)

    def about_last(self) -> list[str]:
        """Whether the last release adds nothing because of its ladder, in words."""
        last = self._releases[-1]
        if self._is_again(last):
            return ["this release adds nothing to the total: the same average of the same models was charged before"]
        if last.ladder is None or not self.is_free(last):
            return []
        least = self._least[last.ladder].noise
        return [f"this release adds nothing to the total: its ladder was charged down to noise {least:.6g} before"]

    def used(self, by: Filter) -> Sum:
        charges = [Charge(one.exposure, one.pays) for one in self._releases]
        return by.total(self._models, charges, _shuffle([form for one in self._releases for form in one.forms]))

    def total(self) -> Total:
        """By the tight count if it applies and fits, else by the filter."""
        return self._total

    @cached_property
    def _total(self) -> Total:
        found = self._tight()
        if self.filter is None or (found is not None and found.fits):
            assert found is not None, "no releases, or no way to count them"
            return found
        try:
            used = self.used(self.filter)
        except AccountingError:
            if found is None:
                raise
            return found
        why, fits = self._beyond(self.filter, used), self.filter.allows(used)
        if found is not None and not fits:
            return replace(found, why=why)
        return Total(self.filter.guarantee(used, self.budget.adjacency, self.budget.delta), fits, why)

    def _tight(self) -> Total | None:
        if not self.is_tight:
            return None
        try:
            found = self.budget.total(self.rules(), self.tight_delta)
        except AccountingError:
            if self.filter is None:
                raise
            return None
        return Total(found, self.budget.allows(found, self.tight_delta))

    def _beyond(self, by: Filter, used: Sum) -> str:
        """Why a filter refuses."""
        if used.unbounded:
            runs = self._runs_of(used.unbounded)
            return f"no finite divergence of order {by.order:g}, at which the filter counts, is known of {runs}"
        told = (
            f"the divergences of order {by.order:g} would sum to {used.divergence:.6g} in a filter with room for {by.room:.6g}"
        )
        pairs = f", and the δ of stated (ε, δ) to {used.pairs:.6g} of {by.pairs:.6g}"
        return told + (pairs if used.pairs > by.pairs else "")

    def share(self) -> float:
        """The share of the budget that is used, by the better of both counts: at most 1 if the releases fit."""
        found = []
        with contextlib.suppress(AccountingError):
            found.append(self.delta_spent() / self.tight_delta if self.is_tight else math.inf)
        if self.filter is not None:
            with contextlib.suppress(AccountingError):
                found.append(self.filter.share(self.used(self.filter)))
        return min(found, default=math.inf)

    def delta_spent(self) -> float:
        """δ at the budget's ε; all of it, where a filter counts."""
        if not self.is_tight:
            return self.budget.delta
        return min((rule.guarantee(epsilon=self.budget.epsilon).delta for rule in self.rules()), default=0.0)


def _shuffle(forms: Iterable[RuleForm]) -> ShuffleAsPoisson | None:
    """The largest rate at which shuffled batches were accounted as Poisson ones."""
    rates = [float.fromhex(form.shuffle_rate) for form in forms if form.shuffle_rate is not None]
    return ShuffleAsPoisson(max(rates)) if rates else None


def filter_of(budget: Budget, entries: Sequence[Entry]) -> Filter | None:
    for entry in entries:
        if entry.kind == "filter":
            order, delta, pairs = (float.fromhex(entry.content[name]) for name in ("order", "delta", "pairs"))
            return Filter(order, budget.epsilon, delta, pairs)
    return None


def _is_itself(form: RuleForm, models: Portfolio, exposure: Exposure) -> bool:
    """Whether a single release has its own rule's guarantee: no model is counted under two names, nothing else is exposed."""
    return form.involved <= {*models.names} and set(form.exposure(models).outcomes) == set(exposure.outcomes)


def _with_validation(rule: Rule, forms: Sequence[RuleForm]) -> Rule:
    """Add what choices by private validation sets cost (docs/theory.md §4), given that any two sets may be the same one.

    A record of D may be in every set that is not disjoint from D; a record of no D may be in all of them.
    """
    adjacency = rule.weights.portfolio.adjacency
    paid = [(form.validation.described, form.paid(adjacency)) for form in forms if form.validation is not None]
    for one, cost in paid:
        if not one.disjoint:
            rule = Validated(rule, one, cost)
    if any(one.disjoint for one, _ in paid):
        largest = max((one for one, _ in paid if one.disjoint), key=lambda one: one.divisor)
        rule = Validated(rule, largest, math.fsum(cost + DRAWING for _, cost in paid))
    return rule
