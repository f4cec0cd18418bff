"""How a ledger's releases are counted, and what is free, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dpmerge.errors import AccountingError
from dpmerge.release.account import Account, filter_of
from dpmerge.release.entries import Budget, Entry
from dpmerge.rules import THEOREMS, Guarantee, round_down, round_up, significant


def free_now(budget: Budget, entries: Sequence[Entry], spent: Guarantee | None) -> list[dict[str, Any]]:
    """The ladders whose releases are free down to the noise that was charged: nothing else of their runs was released."""
    account = Account(budget, entries)
    names = {own: name for entry in entries for own, name in entry.content.get("names", {}).items()}
    found = []
    for least in account.ladders if spent is not None else ():
        assert spent is not None
        weights = {names[own]: value for own, value in least.forms[0].values.items()}
        own = account.own(least)
        average = ", ".join(f"{name}={value:.6g}" for name, value in weights.items())
        text = (
            f"ladder of {average}: any ε up to {round_down(own.epsilon):g} (at δ = {significant(own.delta)}) from this ladder "
            f"is free now, which is noise of {least.noise:.6g} or more; the total stays {round_up(spent.epsilon)}"
        )
        told = {"weights": weights, "noise": least.noise, "epsilon": own.epsilon, "delta": own.delta}
        found.append({"ladder": least.forms[0].ladder, **told, "text": text})
    return found


def how_counted(budget: Budget, entries: Sequence[Entry], spent: Guarantee | None) -> list[str]:
    """How releases are counted, in words."""
    told = [] if spent is None else [f"counted by: {THEOREMS[spent.theorem].title}"]
    told += [ladder["text"] for ladder in free_now(budget, entries, spent)]
    declared = {name for entry in entries if entry.kind == "portfolio" for name in entry.content["names"].values()}
    if declared:
        told.append(f"declared, so counted whole and free to choose from: {', '.join(sorted(declared))}")
    rule = filter_of(budget, entries)
    if rule is not None:
        so_far = "releases so far do not pass it"
        with contextlib.suppress(AccountingError):
            used = Account(budget, entries).used(rule)
            closed = "" if rule.allows(used) else ", so it is closed"
            so_far = f"releases so far use {used.divergence:.4g} of {rule.room:.4g}{closed}"
        told.append(f"filter of order {rule.order:g} with δ = {significant(rule.delta + rule.pairs)}: {so_far}")
    return told
