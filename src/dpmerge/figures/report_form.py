"""A report's document as typed data: what the page reads of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dpmerge.figures.picture import Form
from dpmerge.planning import Epsilon
from dpmerge.rules import MixtureAccountant, ShownStanding


class Sampled(Form):
    """How the batch of one step was drawn."""

    scheme: str
    rate: float | None = None


class Card(Form):
    """One model alone, by every accountant that applies."""

    name: str
    kind: str
    steps: int | None
    noise_multiplier: float | None
    sampling: Sampled | None
    utility: float | None
    epsilon: dict[MixtureAccountant, Epsilon]
    standing: ShownStanding
    warnings: list[str]


class Details(Form):
    """`revealed`: the models accounted by joint release, and why."""

    revealed: dict[str, str] = Field(default_factory=dict)


class ReportedOption(Form):
    rule: str
    by: str
    weights: dict[str, float]
    epsilon: Epsilon
    delta: float
    standing: ShownStanding
    claim: str
    sentence: str
    theorem: str
    theorem_title: str | None
    theorem_source: str | None
    assumptions: list[str]
    details: Details
    noise: float = 0.0
    expected_utility: float | None
    utility_kind: str
    feasible: bool
    why: str


class ReportedPlan(Form):
    """The options for one target, best first."""

    epsilon: float
    delta: float
    options: list[ReportedOption]


class Weights(Form):
    """The document of a picture over all weights, or why there is none."""

    picture: dict[str, Any] | None
    why: str | None


class Target(Form):
    epsilon: Epsilon
    delta: float


class Spent(Form):
    epsilon: Epsilon
    standing: ShownStanding


class Fits(Form):
    alone: list[str]
    in_selection_with: str | None
    largest_probability: dict[str, float]


class Budget(Form):
    budget: Target
    spent: Spent
    releases: int
    counted: list[str]
    fits: Fits


class Entry(Form):
    """One entry of a ledger; `of` is the number of the release that it ends."""

    number: int
    kind: str
    at: str
    of: int | None
    name: str | None
    rule: str | None
    models: list[str]
    total: Target | None
    hash: str


class LedgerState(Form):
    budget: Budget
    entries: list[Entry]


class Report(Form):
    """What may be released from a portfolio (docs/report.md describes the document)."""

    version: str
    dataset: str
    adjacency: str
    delta: float
    warning: str | None
    aloud: list[str]
    glossary: dict[str, str]
    models: list[Card]
    targets_chosen: str
    plans: list[ReportedPlan]
    frontier: dict[str, Any]
    weights: Weights
    ledger: LedgerState | None
