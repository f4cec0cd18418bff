"""How a ledger's releases are counted, and what is free, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dpmerge.errors import AccountingError
from dpmerge.release.account import Account, filter_of
from dpmerge.release.entries import Budget, Entry
from dpmerge.rules import THEOREMS, Guarantee, round_down, round_up, significant


def free_now(budget: Budget, entries: Sequence[Entry], spent: Guarantee | None) -> dict[str, Any] | None:
    """The ladder whose releases are free down to the noise that was charged, if nothing else was released."""
    account = Account(budget, entries)
    least = account.ladder
    if least is None or spent is None:
        return None
    names = {own: name for entry in entries for own, name in entry.content.get("names", {}).items()}
    weights = {names[own]: value for own, value in least.forms[0].values.items()}
    up_to = round_down(spent.epsilon)
    average = ", ".join(f"{name}={value:.6g}" for name, value in weights.items())
    text = (
        f"ladder of {average}: any ε up to {up_to:g} (at δ = {significant(spent.delta)}) from this ladder is free now, which "
        f"is noise of {least.noise:.6g} or more; the total stays {round_up(spent.epsilon)}"
    )
    told = {"weights": weights, "noise": least.noise, "epsilon": spent.epsilon, "delta": spent.delta}
    return {"ladder": least.forms[0].ladder, **told, "text": text}


def how_counted(budget: Budget, entries: Sequence[Entry], spent: Guarantee | None) -> list[str]:
    """How releases are counted, in words."""
    told = [] if spent is None else [f"counted by: {THEOREMS[spent.theorem].title}"]
    ladder = free_now(budget, entries, spent)
    if ladder is not None:
        told.append(ladder["text"])
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
