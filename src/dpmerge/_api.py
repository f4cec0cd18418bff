"""What `import dpmerge` offers, written once: the nouns, the errors, and the calls that need several rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dpmerge import notebook, planning, release, rules as theorems
from dpmerge._version import __version__ as __version__
from dpmerge.errors import (
    AccountingError as AccountingError,
    BudgetExceeded as BudgetExceeded,
    CertificateError as CertificateError,
    CheckpointError as CheckpointError,
    DependentRuns as DependentRuns,
    DpmergeError as DpmergeError,
    FigureError as FigureError,
    LedgerError as LedgerError,
    MissingLibrary as MissingLibrary,
    PortfolioError as PortfolioError,
    RecordError as RecordError,
    SignatureError as SignatureError,
    TargetError as TargetError,
    UnsupportedMechanism as UnsupportedMechanism,
    UtilityError as UtilityError,
    WeightsError as WeightsError,
)
from dpmerge.planning import (
    RULES,
    Frontier as Frontier,
    Option as Option,
    OptionRule,
    Plan as Plan,
    Question as Question,
    Utilities as Utilities,
    frontier as frontier,
)
from dpmerge.profiles import ShuffleAsPoisson as ShuffleAsPoisson
from dpmerge.records import Model as Model, Portfolio as Portfolio, Record as Record, Weights as Weights
from dpmerge.release import (
    Certificate as Certificate,
    Ledger as Ledger,
    Merge as Merge,
    Released as Released,
    Verdict as Verdict,
)
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    Accounting as Accounting,
    Combination as Combination,
    Comparison as Comparison,
    Guarantee as Guarantee,
    Joint as Joint,
    Looked,
    Provenance,
    Rule as Rule,
    RuleName,
    Selection as Selection,
    compare as compare,
    no_free_lunch_threshold as no_free_lunch_threshold,
)


def _png(result: Frontier) -> bytes | None:
    """The picture of a result in a notebook; None without the library for it."""
    from dpmerge import figures

    try:
        return figures.render(result, ".png")
    except FigureError:
        return None


notebook.draw_with(_png)


def example_portfolio() -> Path:
    """The folder of the records that ship with the package.

    Three softmax regressions on MNIST, as in App. H.1 of "Differentially Private Model Merging".
    """
    return Path(__file__).parent / "data" / "portfolio"


def selection(portfolio: Portfolio, weights: Mapping[str, float], *, accounting: Accounting = DEFAULT_ACCOUNTING) -> Rule:
    """Random selection: one model, drawn with these probabilities; which one is published, as `merge` does.

    A rule takes from `accounting` what it grants; `accounting.guarantee(rule, delta=…)` also uses its accountant and precision.
    """
    Portfolio.require(portfolio)
    return theorems.build("selection", portfolio.weights(weights), accounting)


def combination(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    noise: float = 0.0,
    accounting: Accounting = DEFAULT_ACCOUNTING,
) -> Rule:
    """Linear combination: the average of the parameters with these weights; of one model, its last iterate.

    `noise` is the standard deviation of fresh Gaussian noise that is added to every parameter at the release.
    """
    Portfolio.require(portfolio)
    return theorems.build("combination", portfolio.weights(weights), accounting, noise=noise)


def joint(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    provenance: Looked | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
) -> Rule:
    """Joint release: covers any merge, and weights chosen after looking at every model of the portfolio.

    With provenance `a-priori` the weights were fixed beforehand, and only the models that have weight are counted.
    """
    Portfolio.require(portfolio)
    return theorems.build("joint", portfolio.weights(weights), accounting, provenance=provenance)


@notebook.tells
def plan(
    portfolio: Portfolio,
    *,
    epsilon: float,
    delta: float,
    utility: Utilities | Mapping[str, float] | None = None,
    rules: Sequence[OptionRule] = RULES,
    kappa: float | None = None,
    validation_epsilon: float | None = None,
    candidates: Sequence[Mapping[str, float]] = (),
    accounting: Accounting = DEFAULT_ACCOUNTING,
    search: Sequence[OptionRule] | None = None,
    ledger: str | Path | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> Plan:
    """Rank what may be released under (ε, δ): `plan(...).best.release(out)` releases the best, and enters it in `ledger`.

    With a `ledger`, each option says what the total would be with it, and only what its budget still allows fits.
    `candidates` are linear combinations to try besides those searched for. κ is the strength of tempered selection; for scores
    on a private validation set it may be given as the ε that its records pay. `search` is that of `Plan.at`.
    """
    Portfolio.require(portfolio)
    known = Utilities.of(portfolio, utility)
    validation = None if known is None else known.validation
    opened = None if ledger is None else Ledger(ledger)
    if opened is not None:
        opened.require_same_data(portfolio)
    question = Question(
        portfolio,
        float(delta),
        known,
        kappa=planning.draw_strength(kappa, validation_epsilon, validation, portfolio.adjacency),
        rules=tuple(rules),
        candidates=tuple(map(portfolio.weights, candidates)),
        accounting=accounting,
        with_noise=True,
        progress=progress,
        releasing=partial(_release, opened=ledger),
        counting=None if opened is None else partial(release.total_after, opened),
    )
    return Plan.of(question, epsilon, search)


def merge(
    portfolio: Portfolio,
    weights: Mapping[str, float] | None = None,
    *,
    out: str | Path,
    rule: RuleName,
    delta: float,
    epsilon: float | None = None,
    utility: Utilities | Mapping[str, float] | None = None,
    provenance: Provenance | None = None,
    kappa: float | None = None,
    noise: float | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    ledger: str | Path | None = None,
    sign: str | Path | None = None,
    dependent: bool = False,
    recipient: str | None = None,
    tensors: Merge | None = None,
    card_template: str | Path | None = None,
) -> Released:
    """Release a model into the new folder `out`: with these weights, or with the best ones for (ε, δ).

    `noise` is the standard deviation of noise that is added to every parameter of an average; if it is not given, an average
    that needs noise to be (ε, δ)-DP gets the least. All releases of one average share their noise, and cost what the least
    noisy one costs.
    It is entered in the `ledger`, and its certificate signed with the private key `sign`, if they are given. `dependent` says
    that the weights depend on what earlier releases showed; `tensors` describes other merges than the weighted average, which
    only joint release covers. `recipient` is noted in certificate and ledger. `card_template` is a file of
    Markdown for README.md: the certified section replaces its line `<!-- dpmerge:certified -->`; its YAML header is kept.
    """
    Portfolio.require(portfolio)
    chosen = release.choose(
        portfolio,
        rule,
        delta=delta,
        epsilon=epsilon,
        weights=None if weights is None else portfolio.weights(weights),
        utility=Utilities.of(portfolio, utility),
        provenance=provenance,
        kappa=kappa,
        noise=noise,
        accounting=accounting,
    )
    return _release(
        chosen,
        out,
        ledger=ledger,
        sign=sign,
        dependent=dependent,
        recipient=recipient,
        tensors=tensors,
        card_template=card_template,
    )


def renoise(
    folder: str | Path,
    *,
    out: str | Path,
    delta: float,
    epsilon: float | None = None,
    noise: float | None = None,
    bound: float | None = None,
    recipient: str | None = None,
    sign: str | Path | None = None,
    card_template: str | Path | None = None,
) -> Released:
    """Write a release that one holds again with more noise, and a certificate of the better guarantee that this has.

    Needs no private model. Either the target ε or the `noise` in all is given; see `release.renoise`.
    """
    return release.renoise(
        Path(folder),
        Path(out),
        delta=delta,
        epsilon=epsilon,
        noise=noise,
        bound=bound,
        recipient=recipient,
        signer=None if sign is None else release.Signer(Path(sign)),
        template=_template(card_template),
    )


def _release(
    option: Option,
    out: str | Path,
    *,
    weights: Mapping[str, float] | None = None,
    ledger: str | Path | None = None,
    opened: str | Path | None = None,
    sign: str | Path | None = None,
    dependent: bool = False,
    recipient: str | None = None,
    tensors: Merge | None = None,
    card_template: str | Path | None = None,
) -> Released:
    where = opened if ledger is None else ledger
    return release.release(
        option.weights.portfolio,
        release.chosen(option, weights),
        Path(out),
        merge=tensors or Merge(),
        ledger=None if where is None else Ledger(where),
        dependent=dependent,
        recipient=recipient,
        signer=None if sign is None else release.Signer(Path(sign)),
        template=_template(card_template),
        progress=notebook.amounts("merging"),
    )


def _template(path: str | Path | None) -> release.CardTemplate:
    return release.CardTemplate() if path is None else release.CardTemplate.load(Path(path))


def verify(
    folder: str | Path,
    *,
    portfolio: Portfolio | None = None,
    ledger: str | Path | None = None,
    trust: str | Path | None = None,
    base: str | Path | None = None,
    method: str | None = None,
    strict: bool = False,
    seconds: float = release.MOST_SECONDS,
) -> Verdict:
    """Recheck a release from its files, and from the private portfolio, the ledger and a public key if they are given.

    Files that are not certified are listed as `uncovered`; with `strict` they break the verdict. `base` is the folder of the
    public base model, and `method` the user's own function, that the merge was made with. The guarantee is computed again for
    `seconds` at most. `left_out` says what the verdict does not speak of.
    """
    if portfolio is not None:
        Portfolio.require(portfolio)
    return release.verify(
        Path(folder),
        portfolio=portfolio,
        ledger=None if ledger is None else Ledger(ledger),
        trust=None if trust is None else release.trusted_key(Path(trust)),
        base=None if base is None else Path(base),
        method=method,
        strict=strict,
        seconds=seconds,
    )
