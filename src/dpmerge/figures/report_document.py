"""What a report says, checked once: models, plans for some targets, pictures, and perhaps a ledger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.figures.documents import Epsilon, Finite, Form, Standing, Text, Utility

Judged = Standing | Literal["refused", "none"]


class Sampling(Form):
    """How batches were drawn."""

    scheme: Text
    rate: Finite | None = None


class Card(Form):
    """One model: how it was trained, what it guarantees alone, and what to beware of."""

    name: Text
    kind: Text
    steps: int | None
    noise_multiplier: Finite | None
    sampling: Sampling | None
    utility: Utility
    epsilon: dict[str, Epsilon]
    standing: Judged
    warnings: list[Text]


class Details(Form):
    """The models of a combination that are accounted by joint release, and why."""

    revealed: Annotated[dict[Text, Text], Field(default_factory=dict)]


class Option(Form):
    """One way to release something, and what it guarantees."""

    rule: Text
    by: Text
    weights: dict[Text, Finite]
    epsilon: Epsilon
    delta: Finite
    standing: Judged
    theorem: Text
    theorem_title: Text | None
    theorem_source: Text | None
    claim: Text
    sentence: Text
    expected_utility: Utility
    utility_kind: Text
    feasible: bool
    why: Text
    assumptions: list[Text]
    details: Details


class Plan(Form):
    """The options for one target, best first."""

    epsilon: Finite
    delta: Finite
    options: list[Option]

    def shown(self) -> list[Option]:
        """The best that fits for each rule."""
        best: dict[str, Option] = {}
        for option in self.options:
            if option.feasible:
                best.setdefault(option.rule, option)
        return list(best.values())


class OverWeights(Form):
    """A picture of ε over all weights, or why there is none."""

    picture: dict[str, Any] | None
    why: Text | None


class Pair(Form):
    """An ε and a δ."""

    epsilon: Epsilon
    delta: Finite


class Spent(Form):
    """What all releases together guarantee."""

    epsilon: Epsilon
    delta_at_budget_epsilon: Finite
    standing: Standing


class Fits(Form):
    """What may still be released: models alone, or with a probability in a selection with the safest."""

    alone: list[Text]
    in_selection_with: Text | None
    largest_probability: dict[Text, Finite]


class Budget(Form):
    """The declared budget, and what is left."""

    budget: Pair
    spent: Spent
    releases: int
    counted: list[Text]
    fits: Fits


class Entry(Form):
    """One line of the ledger."""

    number: int
    kind: Text
    at: Text
    of: int | None
    name: Text | None
    rule: Text | None
    models: list[Text]
    total: Pair | None
    hash: Text


class Ledger(Form):
    """One dataset's releases, added up."""

    budget: Budget
    entries: list[Entry]


class Report(Form):
    """Everything on the page."""

    kind: Literal["report"]
    version: Text
    dataset: Text
    adjacency: Text
    delta: Finite
    provenance: Text
    utilities_source: Text
    warning: Text | None
    models: list[Card]
    targets_chosen: Text
    plans: list[Plan]
    frontier: dict[str, Any]
    weights: OverWeights
    ledger: Ledger | None
