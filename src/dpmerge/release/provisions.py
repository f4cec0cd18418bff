"""What a ledger provides from its start for releases that depend on what earlier ones showed (docs/theory.md §5)."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dpmerge.cache import without_cache
from dpmerge.errors import AccountingError, BudgetExceeded, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release.account import Account, filter_of
from dpmerge.release.chain import Entry
from dpmerge.release.known import contents_of
from dpmerge.release.spending import Budget, models_content
from dpmerge.rules import THEOREMS, Filter, Guarantee, round_up, significant


def provisions(budget: Budget, declared: Sequence[Portfolio], filter_share: float, filter_order: float | None) -> list[Entry]:
    """The first entries: the filter, and the portfolios declared, which the budget must cover together."""
    contents: list[dict[str, Any]] = []
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if not 0 <= filter_share < 1:
        raise LedgerError(f"a filter's share of δ is {filter_share:g}; it must lie in [0, 1), and 0 means no filter")
    if filter_share > 0 and filter_share * budget.delta < 4 * sys.float_info.min:  # half is for pairs; both must be numbers
        raise LedgerError(
            f"a filter's share of δ is {filter_share:g}, and that of δ = {budget.delta:g} is too small a number to compute "
            "with: give a larger share, or 0 for no filter"
        )
    if filter_share:
        rule = Filter.sharing(budget.epsilon, filter_share * budget.delta, filter_order)
        numbers = {"order": rule.order.hex(), "delta": rule.delta.hex(), "pairs": rule.pairs.hex()}
        contents.append({"kind": "filter", "at": now, **numbers})
    elif filter_order is not None:
        raise LedgerError("the order of a filter was given, and no share of δ for it")
    for portfolio in declared:
        require_same_data("the ledger", budget, portfolio)
        held = models_content(portfolio, set(portfolio.names), contents_of(portfolio.models))
        contents.append({"kind": "portfolio", "at": now, "nonce": secrets.token_hex(32), **held})
    entries: list[Entry] = []
    for content in contents:
        entries.append(Entry.following(entries, budget.hash, content))
    if declared:
        with without_cache():
            account = Account(budget, entries)
            found = budget.total(account.rules(), account.tight_delta)
        if not budget.allows(found, account.tight_delta):
            raise BudgetExceeded(
                f"all models declared cost ε = {round_up(found.epsilon)} at δ = {significant(account.tight_delta)} "
                f"together, and the budget is ε = {budget.epsilon:g}: declare fewer models, or a larger budget"
            )
    return entries


def require_same_data(name: str, budget: Budget, portfolio: Portfolio) -> None:
    """Refuse a portfolio of other data, or of another notion of neighbours."""
    record = portfolio.models[0].record
    if record.dataset != budget.dataset:
        raise LedgerError(f"{name} is for dataset {budget.dataset!r}; the portfolio is for {record.dataset!r}")
    if record.adjacency != budget.adjacency:
        raise LedgerError(
            f"{name} counts for {budget.adjacency} neighbours; the portfolio's records are for {record.adjacency} ones"
        )


def how_counted(budget: Budget, entries: Sequence[Entry], spent: Guarantee | None) -> list[str]:
    """By what rule releases are counted, in words."""
    told = [] if spent is None else [f"counted by: {THEOREMS[spent.theorem].title}"]
    declared = {name for entry in entries if entry.kind == "portfolio" for name in entry.content["names"].values()}
    if declared:
        told.append(f"declared, so counted whole and free to choose from: {', '.join(sorted(declared))}")
    rule = filter_of(budget, entries)
    if rule is not None:
        told.append(
            f"filter of order {rule.order:g} with δ = {significant(rule.delta + rule.pairs)}: {_so_far(budget, entries, rule)}"
        )
    return told


def _so_far(budget: Budget, entries: Sequence[Entry], rule: Filter) -> str:
    try:
        used = Account(budget, entries).used(rule)
    except AccountingError:
        return "releases so far do not pass it"
    return f"releases so far use {used.divergence:.4g} of {rule.room:.4g}" + ("" if rule.allows(used) else ", so it is closed")
