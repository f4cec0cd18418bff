"""A floor: the noise down to which a ladder is charged at once, so that every release above it is free (docs/theory.md §9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpmerge.errors import BudgetExceeded, LedgerError
from dpmerge.records import Portfolio, Weights
from dpmerge.release.account import Account
from dpmerge.release.choice import Chosen, choose
from dpmerge.release.entries import Entry, PendingEntry
from dpmerge.release.known import contents_of
from dpmerge.release.ladder import Ladders
from dpmerge.release.ledger import Ledger
from dpmerge.release.release import folders_of, settled
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Guarantee, round_up

_CLOSE = 1.03  # a rung is 1.022 times the one below
_DOUBLINGS = 40  # of the noise, after which what was released leaves no room for any


@dataclass(frozen=True)
class Floor:
    """A floor that was entered: its noise, and what all releases guarantee together from now on, down to it."""

    noise: float
    entry: Entry
    guarantee: Guarantee


def enter_floor(
    ledger: Ledger,
    portfolio: Portfolio,
    weights: Weights,
    *,
    epsilon: float | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
) -> Floor:
    """Charge a ledger for all releases of one average down to a noise: that of this ε, or of all that the budget allows.

    It must not depend on what earlier releases showed; what is released above it may.
    """
    ledger.require_same_data(portfolio)
    account = ledger.account()
    wanted = ledger.budget.epsilon if epsilon is None else float(epsilon)
    if wanted > ledger.budget.epsilon:
        raise BudgetExceeded(f"{ledger.name}: the floor has ε = {wanted:g}; the budget is ε = {ledger.budget.epsilon:g}")
    folders = folders_of(portfolio)
    delta = account.tight_delta
    choice = choose(portfolio, "combination", weights=weights, epsilon=wanted, delta=delta, accounting=accounting)
    if choice.form.noise is None:  # as little as stored numbers allow would depend on them, and a floor is public
        raise LedgerError(
            f"{ledger.name}: this average has ε = {round_up(choice.guarantee.epsilon)} without any noise, which is within "
            f"{wanted:g}: no noise is the least. Release it as it is, or give the floor a smaller ε"
        )
    choice = settled(choice, folders)
    contents = contents_of(model for model in portfolio.models if model.name in choice.form.involved)
    ladder = Ladders.beside(folders, choice.form).find_or_make(choice.form, contents)
    choice = choice.on_ladder(ladder.rung, ladder.id)
    _require_ladder(ledger, _planned(portfolio, choice, contents))

    def at(noise: float) -> PendingEntry:
        rung = ladder.rung(noise).hex()  # more noise than its guarantee is for, so that holds
        return _planned(portfolio, replace(choice, form=choice.form.model_copy(update={"noise": rung})), contents)

    planned = at(choice.form.deviation)
    if epsilon is None and not ledger.total_with(planned).fits:
        planned = _least_that_fits(ledger, at, choice.form.deviation)
    entry, total = ledger.enter(planned), ledger.cumulative()
    assert total is not None
    return Floor(planned.forms[0].deviation, entry, total)


def _least_that_fits(ledger: Ledger, at: Callable[[float], PendingEntry], low: float) -> PendingEntry:
    """The least noise of the ladder above one that does not fit the budget beside what was released."""
    high = low
    for _ in range(_DOUBLINGS):
        low, high = high, 2 * high
        if ledger.total_with(at(high)).fits:
            break
    else:
        raise BudgetExceeded(f"{ledger.name}: what was released leaves no room for this ladder, whatever noise is added")
    while high > low * _CLOSE:
        middle = at(math.sqrt(low * high) * (1 - 1e-9)).forms[0].deviation
        low, high = (low, middle) if ledger.total_with(at(middle)).fits else (middle, high)
    return at(high)


def _planned(portfolio: Portfolio, choice: Chosen, contents: dict[str, str]) -> PendingEntry:
    exposure = choice.form.exposure(portfolio)
    return PendingEntry((choice.form,), portfolio, exposure, (choice.guarantee,), "", contents=contents, kind="floor")


def _require_ladder(ledger: Ledger, planned: PendingEntry) -> None:
    """Refuse a floor that would mean nothing: these runs count whole already, or their noise buys nothing."""
    account = Account(ledger.budget, ledger.history(), planned)
    if planned.forms[0].ladder not in {one.forms[0].ladder for one in account.ladders}:
        raise LedgerError(
            f"{ledger.name}: a floor is for a ladder of whose runs nothing else is released. Here something is, or noise buys "
            "nothing, so each run counts whole, whatever noise is added"
        )
