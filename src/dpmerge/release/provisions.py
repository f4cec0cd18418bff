"""What a ledger provides from its start for releases that depend on what earlier ones showed (docs/theory.md §5)."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any

from dpmerge.cache import without_cache
from dpmerge.errors import BudgetExceeded, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release.account import Account
from dpmerge.release.certificate import now
from dpmerge.release.entries import Budget, Entry, models_content
from dpmerge.release.known import contents_of
from dpmerge.rules import Filter, round_up, significant


def provisions(budget: Budget, declared: Sequence[Portfolio], filter_share: float, filter_order: float | None) -> list[Entry]:
    """The first entries: the filter, and the portfolios declared, which the budget must cover together."""
    contents: list[dict[str, Any]] = []
    if not 0 <= filter_share < 1:
        raise LedgerError(f"a filter's share of δ is {filter_share:g}; it must lie in [0, 1), and 0 means no filter")
    if (
        filter_share > 0 and filter_share * budget.delta < 4 * sys.float_info.min
    ):  # half is for (ε, δ) pairs; neither half may underflow to 0
        raise LedgerError(
            f"a filter's share of δ is {filter_share:g}, and that of δ = {budget.delta:g} is too small a number to compute "
            "with: give a larger share, or 0 for no filter"
        )
    if filter_share:
        rule = Filter.sharing(budget.epsilon, filter_share * budget.delta, filter_order)
        numbers = {"order": rule.order.hex(), "delta": rule.delta.hex(), "pairs": rule.pairs.hex()}
        contents.append({"kind": "filter", "at": now(), **numbers})
    elif filter_order is not None:
        raise LedgerError("the order of a filter was given, and no share of δ for it")
    for portfolio in declared:
        budget.require_same_data(portfolio, "the ledger")
        held = models_content(portfolio, set(portfolio.names), contents_of(portfolio.models))
        contents.append({"kind": "portfolio", "at": now(), "nonce": secrets.token_hex(32), **held})
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
