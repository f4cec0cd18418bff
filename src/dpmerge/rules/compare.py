"""The same weights under every rule and baseline, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dpmerge.errors import AccountingError, TargetError, UtilityError
from dpmerge.notebook import frame, html_table, tells
from dpmerge.profiles import ShuffleAsPoisson, run_profile
from dpmerge.records import Portfolio, Weights
from dpmerge.rules.building import DEFAULT_ACCOUNTING, Accounting, Looked, build, counted_besides
from dpmerge.rules.guarantee import Guarantee, ProfileBound, Rule, Target, ask
from dpmerge.rules.joint import PairComposition
from dpmerge.rules.release_noise import least_noise
from dpmerge.rules.statements import assumed_by, require_wanted, round_up, significant, whose
from dpmerge.rules.theorems import THEOREMS

if TYPE_CHECKING:
    from pandas import DataFrame


NO_USE = "no use"
_PROMISES_NOTHING = 1000.0  # an ε above which no number is worth showing


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a guarantee, or why there is none."""

    label: str
    guarantee: Guarantee | None
    refusal: str | None = None
    no_use: bool = False  # a bound that another baseline is always below, or that promises nothing

    @property
    def told(self) -> str:
        if self.guarantee is None:
            return f"refused: {self.refusal}"
        return NO_USE if self.no_use else self.guarantee.claim

    @property
    def cells(self) -> dict[str, object]:
        """The cells of a table, numbers rounded up."""
        found = self.guarantee
        if found is None:
            return {"rule": self.label, "ε": None, "δ": None, "standing": "refused", "by": None, "theorem": self.refusal}
        return {
            "rule": self.label,
            "ε": NO_USE if self.no_use else round_up(found.epsilon),
            "δ": significant(found.delta),
            "standing": found.standing,
            "by": found.by.upper(),
            "theorem": THEOREMS[found.theorem].title,
        }


@dataclass(frozen=True)
class NoFreeLunch:
    """How strongly a merger may react to the least private model if nothing but (ε, δ) pairs is known."""

    model: str
    epsilon_least: float
    threshold: float
    papers_threshold: float


@dataclass(frozen=True, repr=False)
class Comparison:
    """The rows for one question; `no_free_lunch` is for the target that random selection meets."""

    weights: Weights
    epsilon: float | None
    delta: float | None
    rows: tuple[Row, ...]
    no_free_lunch: NoFreeLunch | None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return "\n".join(f"{row.label}: {row.told}" for row in self)

    def _repr_html_(self) -> str:
        shown = html_table(list(self.rows[0].cells), [list(row.cells.values()) for row in self.rows])
        return shown + html_table([], [("assumes", whose(self.assumptions))])

    @property
    def assumptions(self) -> dict[str, list[str]]:
        """Every assumption once, with the rules that make it."""
        return assumed_by((row.label, row.guarantee.assumptions) for row in self.rows if row.guarantee is not None)

    def to_frame(self) -> DataFrame:
        """One row for each rule, with exact numbers; needs pandas."""
        exact = [{"ε": row.guarantee.epsilon, "δ": row.guarantee.delta} if row.guarantee else {} for row in self.rows]
        return frame({**row.cells, **numbers} for row, numbers in zip(self.rows, exact, strict=True))

    def as_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.as_dict(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.weights.portfolio.adjacency,
            "rows": [
                {"label": row.label, "refused": row.refusal, **(row.guarantee.as_dict() if row.guarantee else {})}
                for row in self.rows
            ],
            "no_free_lunch": None if self.no_free_lunch is None else asdict(self.no_free_lunch),
        }


def no_free_lunch_threshold(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> float:
    """How much a merger may react to the least private model if nothing but that model's (ε₂, δ) is known.

    A merger with sup TV(h(x, a), h(x, b)) above t(ε′, δ′)/t(ε₂, δ), t(ε, δ) = (e^ε − 1 + 2δ)/(e^ε + 1), is not
    (ε′, δ′)-DP for every pair of mechanisms (docs/theory.md §6). *Differentially Private Model
    Merging*, Prop. 3.1, states another number, by a proof that uses a mechanism which is private in one direction only:
    `papers_no_free_lunch_threshold`.

    >>> round(no_free_lunch_threshold(1.0, 1e-5, 8.0, 1e-5), 4)
    0.4624
    """
    _check_pairs(epsilon, delta, epsilon_least, delta_each)
    reach = _largest_distance(epsilon_least, delta_each)
    return math.inf if reach == 0 else _largest_distance(epsilon, delta) / reach


def papers_no_free_lunch_threshold(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> float:
    """The paper's Prop. 3.1 as printed: (1 − e^{−ε′}(1−δ′)) / (1 − e^{−ε₂}(1−δ)). Not a theorem (docs/theory.md §6)."""
    _check_pairs(epsilon, delta, epsilon_least, delta_each)
    denominator = 1 - math.exp(-epsilon_least) * (1 - delta_each)
    return math.inf if denominator == 0 else (1 - math.exp(-epsilon) * (1 - delta)) / denominator


def _largest_distance(epsilon: float, delta: float) -> float:
    """The largest total variation distance of an (ε, δ)-DP pair: randomised response's."""
    return math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2))


def _check_pairs(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> None:
    for name, value in (("epsilon", epsilon), ("epsilon_least", epsilon_least)):
        if not value >= 0:
            raise TargetError(f"{name} is {value}; it must not be negative")
    for name, value in (("delta", delta), ("delta_each", delta_each)):
        if not 0 <= value <= 1:
            raise TargetError(f"{name} is {value}; it must lie in [0, 1]")


def no_free_lunch(
    weights: Weights, epsilon: float, delta: float, shuffle: ShuffleAsPoisson | None = None
) -> NoFreeLunch | None:
    """The threshold for a target that lies below the least private model, which is the case it is about."""
    alone = [(ask(ProfileBound(run_profile(m, shuffle).profile), Target(delta=delta)).epsilon, m.name) for m, _ in weights.used]
    least, name = max(alone)
    if not epsilon < least:
        return None
    arguments = (epsilon, delta, least, delta)
    return NoFreeLunch(name, least, no_free_lunch_threshold(*arguments), papers_no_free_lunch_threshold(*arguments))


def _with_noise(weights: Weights, accounting: Accounting, provenance: Looked | None, noise: float) -> Rule:
    made = build("combination", weights, accounting, provenance=provenance, noise=noise)
    if not accounting.only_release:
        raise AccountingError(
            "noise at release hides nothing once something else of these runs is published: every step of them counts, as above"
        )
    return made


def _least_noise(weights: Weights, accounting: Accounting, provenance: Looked | None, epsilon: float, delta: float) -> Row:
    label = f"linear combination (noise for ε ≤ {epsilon:g})"
    try:
        _with_noise(weights, accounting, provenance, 1.0)
        noise, found = least_noise(weights, epsilon=epsilon, delta=delta, accounting=accounting)
    except (AccountingError, TargetError, UtilityError) as error:
        return Row(label, None, str(error))
    return Row(f"linear combination (noise {significant(noise, 4)} for ε ≤ {epsilon:g})", found)


@tells
def compare(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    provenance: Looked | None = None,
    noise: float = 0.0,
    progress: Callable[[str], None] = lambda label: None,
) -> Comparison:
    """Every rule, the papers' formula, and the three compositions of (ε, δ) pairs.

    `provenance` says who chose the weights, as for a release (`build`): after looking, selection and combination are
    refused; joint release and compositions count every model, unless the weights were fixed beforehand. `noise` is added to
    the average at its release, in a row of its own. With both ε and δ every row answers ε at this δ, and one more row has the
    least noise with which the average meets them.
    """
    Portfolio.require(portfolio)
    require_wanted(delta, accounting.any_delta)
    wanted = None if delta is None else epsilon
    if wanted is not None:
        Target(epsilon=wanted)
        epsilon = None
    given, shuffle = portfolio.weights(weights), accounting.shuffle
    plain, formula = (replace(accounting, assume_smoothness=assumed) for assumed in (None, 0.0))
    every_step = replace(accounting, only_release=False)
    looked = counted_besides(given, provenance)
    rule = partial(build, weights=given, provenance=provenance)
    last = ("linear combination (last iterate only)", partial(rule, "combination", accounting=accounting))
    noised = f"linear combination (noise {significant(noise, 4)} at release)"
    rules: list[tuple[str, Callable[[], Rule]]] = [
        ("random selection", partial(rule, "selection", accounting=plain)),
        ("linear combination (proved)", partial(rule, "combination", accounting=every_step)),
        *([last] if accounting.only_release else []),
        *([(noised, lambda: _with_noise(given, accounting, provenance, noise))] if noise else []),
        ("linear combination (papers' formula)", partial(rule, "combination", accounting=formula)),
        ("joint release", partial(rule, "joint", accounting=plain)),
        ("optimal composition", lambda: PairComposition(given, "optimal", shuffle, looked)),
        ("advanced composition", lambda: PairComposition(given, "advanced", shuffle, looked)),
        ("basic composition", lambda: PairComposition(given, "basic", shuffle, looked)),
    ]
    rows = []
    for label, made in rules:
        progress(label)
        try:
            rows.append(Row(label, accounting.guarantee(made(), delta=delta, epsilon=epsilon)))
        except (AccountingError, UtilityError) as error:
            rows.append(Row(label, None, str(error)))
    if wanted is not None and delta is not None:
        progress("noise at release")
        rows.insert(2 + accounting.only_release + bool(noise), _least_noise(given, accounting, provenance, wanted, delta))
    drawn = rows[0].guarantee
    lunch = None if drawn is None else no_free_lunch(given, drawn.epsilon, drawn.delta, shuffle)
    return Comparison(given, epsilon, delta, tuple(row if epsilon is not None else _judged(row, rows) for row in rows), lunch)


def _judged(row: Row, rows: Sequence[Row]) -> Row:
    """Whether an ε is worth showing: not above 1000, nor advanced composition above the basic one, which adds up."""
    if row.guarantee is None or not math.isfinite(row.guarantee.epsilon):
        return row
    plain = [one.guarantee.epsilon for one in rows if one.guarantee and one.guarantee.theorem == "basic-composition"]
    worse = row.guarantee.theorem == "advanced-composition" and row.guarantee.epsilon > min(plain, default=math.inf)
    return replace(row, no_use=worse or row.guarantee.epsilon > _PROMISES_NOTHING)
