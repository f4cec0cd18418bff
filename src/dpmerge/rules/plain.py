"""Guarantees in plain words, for readers who decide about privacy and do not compute it."""

from __future__ import annotations

import math
from functools import lru_cache

from dpmerge.records import Adjacency
from dpmerge.rules.statements import round_up
from dpmerge.rules.theorems import COINS, LAST, NOISE, REAL, RECORD, SECRET_PARTS, SHARDS, SPARED, WEIGHTS

_UNKNOWN: dict[Adjacency, str] = {
    "add-remove": "whether one person is part of it",
    "replace-one": "which of two records one person has in it",
    "zero-out": "whether one person's record in it was blanked",
}
# By how an assumption begins. Models and numbers that follow stand in the assumption itself, one click away.
_PLAIN = {
    RECORD: "The records of the trainings are true, and nothing about a training was set by looking at the data.",
    WEIGHTS: "Nobody looked at the models or the data to choose the weights.",
    LAST: "Nothing else of these trainings is ever shown to anyone: no other checkpoint, no curve of private scores.",
    REAL: "The rounding of the computer that trained was far below the noise of the training.",
    COINS: "Nobody can find out which records were in which batch of the training.",
    NOISE: "The noise of the release is fresh and cannot be predicted: dpmerge draws it that way.",
    SPARED: "Parts of the model that were not trained are public already; they carry no noise.",
    SHARDS: "The data were divided into parts by the records' names, whatever the records hold; each training saw one part.",
    SECRET_PARTS: "Nobody could know or choose beforehand which part a record would be in.",
    "training noise of a generator": "The random numbers of the training were good enough to count as true noise.",
    "the mean clipped gradient": "Trainings are as smooth as stated: small changes of a model change its next step little.",
    "every clipped per-example gradient": "The models are of a simple (convex) kind, as stated.",
    "the dataset has at most": "The dataset is no larger than stated.",
    "the draw uses fresh": "Which model is drawn cannot be predicted: dpmerge draws it that way.",
}
GLOSSARY = {
    "ε": "Epsilon: the most that a release can tell about one person. At 0 it tells nothing; each step up raises the odds with "
    "which somebody can guess right about that person. With ε, odds of 1 to 1 become at most e^ε to 1.",
    "δ": "Delta: a small chance, added to that of a right guess, that ε does not bound. It should be far below one over the "
    "number of people in the data.",
    "noise": "Random numbers that are added to every number of a model. They hide what one person changed in it; more noise is "
    "more private, and less useful.",
    "standard deviation": "The usual size of the noise: two thirds of it are smaller, one third is larger.",
    "proved": "A mathematical theorem, under the assumptions that are printed with it.",
    "conditional": "It holds only under an assumption that fails in general and that the user stated.",
    "average": "One model whose numbers are the weighted means of the numbers of several models.",
    "recipients": "Those who get a copy. Copies of one model with different noise are made so that a noisier one tells nothing "
    "that a less noisy one does not tell.",
    "budget": "The ε and δ that all releases from this data may have together, for all time. A ledger adds them up.",
    "one person": "One record of the data. Whoever has several records is protected less.",
}


def chance_of_guessing(epsilon: float, delta: float) -> float:
    """How often, at most, a guess between two equally likely worlds is right: (e^ε + δ) / (1 + e^ε).

    >>> chance_of_guessing(0.0, 0.0)
    0.5
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def meaning(epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """What ε and δ mean, to be read aloud."""
    return (
        f"Suppose somebody knows all of the data except {_UNKNOWN[adjacency]}, and can only guess: right 50 % of the time. "
        f"With the released model in hand, no method whatever guesses right more than "
        f"{round_up(100 * chance_of_guessing(epsilon, delta), 2)} % of the time."
    )


@lru_cache(1024)
def plainly(assumption: str) -> str:
    """An assumption in plain words; one that has none is told as it is."""
    told = next((words for start, words in _PLAIN.items() if assumption.startswith(start)), None)
    return told or f"{assumption[:1].upper()}{assumption[1:]}."
