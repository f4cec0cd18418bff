"""How a ledger's releases are counted, and what is free, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge.errors import AccountingError
from dpmerge.release.account import FILTER, Account
from dpmerge.release.entries import Entry
from dpmerge.rules import THEOREMS, Guarantee, round_down, round_up, significant


def free_now(account: Account, entries: Sequence[Entry], spent: Guarantee | None) -> list[dict[str, Any]]:
    """The ladders whose releases are free down to the noise that was charged: nothing else of their runs was released."""
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


def why_more(account: Account, spent: Guarantee | None) -> str:
    """Why a second release of the runs of an average costs more than it does alone; empty where it does not."""
    if spent is None or not account.is_tight:
        return ""
    try:
        whole = account.once_more()
    except AccountingError:
        return ""
    if whole is None or whole.epsilon <= spent.epsilon:
        return ""
    return (
        "an average hides what is in its models only while nothing else of their runs is known. Any other release of these "
        "runs, but for the same average with more noise, makes every step of each of them count: the total is then ε = "
        f"{round_up(whole.epsilon)} or more, at δ = {significant(whole.delta)}"
    )


def how_counted(account: Account, entries: Sequence[Entry], spent: Guarantee | None) -> list[str]:
    """How releases are counted, in words."""
    told = [] if spent is None else [f"counted by: {THEOREMS[spent.theorem].title}"]
    told += [ladder["text"] for ladder in free_now(account, entries, spent)]
    declared = {name for entry in entries if entry.kind == "portfolio" for name in entry.content["names"].values()}
    if declared:
        told.append(f"declared, so counted whole and free to choose from: {', '.join(sorted(declared))}")
    rule = account.filter
    if rule is not None:
        so_far = "releases so far do not pass it"
        with contextlib.suppress(AccountingError):
            used = account.used(rule)
            closed = "" if rule.allows(used) else ", so it is closed"
            so_far = f"releases so far use {used.divergence:.4g} of {rule.room:.4g}{closed}"
        told.append(f"filter of order {rule.order:g} with δ = {significant(rule.delta + rule.pairs)}: {so_far}")
    return told


ENTRY_COLUMNS = ["entry", "when", "what", "total ε", "δ", "hash"]


def entry_row(entry: Entry) -> dict[str, str]:
    """An entry as a row of a table."""
    total = entry.content.get("total")
    cells = ["", ""] if total is None else [round_up(total["epsilon"]), significant(total["delta"])]
    cells[0] += " (filter)" if total is not None and total["theorem"] == FILTER else ""
    told = [str(entry.number), entry.content["at"], _what(entry), *cells, entry.hash[:12]]
    return dict(zip(ENTRY_COLUMNS, told, strict=True))


def _what(entry: Entry) -> str:
    content = entry.content
    if entry.kind == "release":
        coupled = f"{len(content['forms'])} coupled draws, " if len(content["forms"]) > 1 else ""
        what = f"{coupled}{content['forms'][0]['rule']} of {', '.join(sorted(content['names'].values()))}{_noise(content)}"
        what += f", to {content['recipient']}" if "recipient" in content else ""
        return what + (" (depends on earlier ones)" if content.get("dependent") else "")
    if entry.kind == "floor":
        return f"floor of a ladder of {', '.join(sorted(content['names'].values()))}{_noise(content)}"
    if entry.kind == "portfolio":
        return f"declares {', '.join(sorted(content['names'].values()))}"
    if entry.kind == "filter":
        return f"filter of order {float.fromhex(content['order']):g}"
    more = {"recovered": ": output {output}", "voided": ": {reason}"}.get(entry.kind, "").format(**content)
    return f"{entry.kind} entry {content['of']}{more}"


def _noise(content: Mapping[str, Any]) -> str:
    noise = content["forms"][0].get("noise")
    return "" if noise is None else f", noise {float.fromhex(noise):.6g}"
