"""What a budget still allows, on top of everything released before."""

from __future__ import annotations

from typing import Any

from dpmerge.records import Portfolio, Weights
from dpmerge.release.forms import RuleForm
from dpmerge.release.ledger import Ledger, Planned
from dpmerge.weights.feasible import blend


def what_fits(ledger: Ledger, portfolio: Portfolio) -> dict[str, Any]:
    """Which models may still be released alone, and how much weight each may have in a selection with a safer one."""
    alone = [name for name in portfolio.names if _fits(ledger, portfolio, portfolio.weights({name: 1.0}))]
    shares: dict[str, float] = {}
    if alone:
        start = portfolio.weights({alone[0]: 1.0})
        for name in portfolio.names:
            if name not in alone:
                shares[name] = largest_share(ledger, portfolio, start, portfolio.weights({name: 1.0}))
    text = [f"  may be released alone: {', '.join(alone) or 'none'}"]
    text += [f"  {name}: with probability up to {share:.4g} in a selection with {alone[0]}" for name, share in shares.items()]
    return {"alone": alone, "in_selection_with": alone[0] if alone else None, "largest_probability": shares, "text": text}


def largest_share(ledger: Ledger, portfolio: Portfolio, start: Weights, end: Weights) -> float:
    """How far selection weights may go from `start`, which fits, to `end`: from below, to three digits."""
    low, high = 0.0, 1.0
    if _fits(ledger, portfolio, end):
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2 if low > 0 else high / 8
        if _fits(ledger, portfolio, blend(start, end, middle)):
            low = middle
        else:
            high = middle
        if high - low <= 1e-3 * low or high < 1e-12:
            break
    return low


def _fits(ledger: Ledger, portfolio: Portfolio, weights: Weights) -> bool:
    form = RuleForm(rule="selection", weights={model.name: weight.hex() for model, weight in weights.used})
    return ledger.would_allow(Planned((form,), portfolio, form.exposure(portfolio, False), (), ""))


def in_words(ledger: Ledger, portfolio: Portfolio, weights: Weights) -> str:
    """What would still fit instead of a release that does not: the same selection with more weight on a safer model."""
    alone = [name for name in portfolio.names if _fits(ledger, portfolio, portfolio.weights({name: 1.0}))]
    if not alone:
        return "nothing of this portfolio would still fit"
    start = portfolio.weights({alone[0]: 1.0})
    share = largest_share(ledger, portfolio, start, weights)
    mixed = blend(start, weights, share)
    parts = ", ".join(f"{model.name}={weight:.4g}" for model, weight in mixed.used)
    return f"what would still fit: {', '.join(alone)} alone, or a selection with {parts}"
