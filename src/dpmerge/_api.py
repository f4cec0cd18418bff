"""The library's front door: what `import dpmerge` offers, each thing loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Portfolio
from dpmerge.rules import Combination, Joint, Looked, Selection, looked_at

if TYPE_CHECKING:
    from dpmerge.planning import Accounting, Provenance, Utilities
    from dpmerge.release import Merge, Released, RuleName, Verdict


def selection(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    shuffle: ShuffleAsPoisson | None = None,
    index_published: bool = True,
) -> Selection:
    """Random selection: one model, drawn with these probabilities; which one is published, as `merge` does."""
    return Selection(portfolio.weights(weights), shuffle, index_published)


def combination(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
) -> Combination:
    """Linear combination: the average of the parameters with these weights."""
    return Combination(portfolio.weights(weights), assume_smoothness, shuffle)


def joint(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    shuffle: ShuffleAsPoisson | None = None,
    provenance: Looked | None = None,
) -> Joint:
    """Joint release: covers any merge, and weights chosen after looking at every model of the portfolio.

    With provenance `a-priori` the weights were fixed beforehand, and only the models that have weight are counted.
    """
    given = portfolio.weights(weights)
    return Joint(given, shuffle, looked_at(given, provenance))


def merge(
    portfolio: Portfolio,
    out: str | Path,
    *,
    rule: RuleName,
    delta: float,
    epsilon: float | None = None,
    weights: Mapping[str, float] | None = None,
    utility: Utilities | Mapping[str, float] | None = None,
    provenance: Provenance | None = None,
    kappa: float | None = None,
    accounting: Accounting | None = None,
    tensors: Merge | None = None,
    ledger: str | Path | None = None,
    sign: str | Path | None = None,
) -> Released:
    """Release a model into the new folder `out`: with these weights, or with the best ones for (ε, δ)."""
    from dpmerge.planning import Utilities
    from dpmerge.release import Ledger, Merge, Signer, choose, release

    known = utility if utility is None or isinstance(utility, Utilities) else Utilities.stated(portfolio, utility)
    choice = choose(
        portfolio,
        rule,
        delta=delta,
        epsilon=epsilon,
        weights=None if weights is None else portfolio.weights(weights),
        utility=known,
        provenance=provenance,
        kappa=kappa,
        accounting=accounting,
    )
    return release(
        portfolio,
        choice,
        Path(out),
        merge=tensors or Merge(),
        ledger=None if ledger is None else Ledger(ledger),
        signer=None if sign is None else Signer(Path(sign)),
    )


def verify(
    folder: str | Path,
    *,
    portfolio: Portfolio | None = None,
    ledger: str | Path | None = None,
    trust: str | Path | None = None,
    base: str | Path | None = None,
    method: str | None = None,
) -> Verdict:
    """Recheck a release from its files, and from the private portfolio, the ledger and a public key if they are given."""
    from dpmerge.release import Ledger, trusted_key, verify as recheck

    return recheck(
        Path(folder),
        portfolio=portfolio,
        ledger=None if ledger is None else Ledger(ledger),
        trust=None if trust is None else trusted_key(Path(trust)),
        base=None if base is None else Path(base),
        method=method,
    )


def example_portfolio() -> Path:
    """The folder of the records that ship with the package: three softmax regressions on MNIST (M1, App. H.1)."""
    return Path(__file__).parent / "data" / "portfolio"
