"""The theorems a guarantee can name. Each is stated and proved in docs/theory.md under the same key; a test checks that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    """A theorem's title, where it is from, and what it always assumes."""

    title: str
    source: str
    assumptions: tuple[str, ...] = ()


RECORD = (
    "each record describes the run that made its model; its initialisation and settings (batch sizes, rates and learning rates "
    "among them) do not depend on the data"
)
WEIGHTS = "the weights were chosen without looking at the models or the data"
LAST = (
    "nothing of these runs but this release has been or will be published, or used to decide anything: no other checkpoint, no "
    "curve of private scores"
)
REAL = "the training computed with real numbers: the rounding of its floating-point steps is far below their noise"
NOISE = (
    "the noise of the release is fresh, of a cryptographic generator, 1024 spacings of the stored numbers or more, and added "
    "to the exact average before any rounding; no parameter is stored under two names"
)
SPARED = "tensors that training left as they were before it are public, and carry no noise"
NOISE_PAYS = (
    "it pays for convex models trained by plain SGD with flat clipping, whose records state a smoothness, if nothing else of "
    "their runs is published"
)
RENOISED = (
    "the noise is fresh, of a cryptographic generator, and 1024 spacings of the stored numbers or more; it was added to the "
    "exact average before any rounding, and more of it to the rounded numbers, which had been cut at a bound; bound and noise "
    "were chosen without looking at the numbers; no parameter is stored under two names"
)
COINS = "which records were in which batch stays secret: sampling was seeded by what nobody can guess"
SHARDS = (
    "which part of the data a record is in depends on its id and a key alone, not on its content or on which other records "
    "there are; models of one partition share one key, and different partitions were drawn independently; rates, batch sizes "
    "and numbers of steps do not depend on how many records a part has"
)
SECRET_PARTS = (
    "the key of the parts was fresh and secret, or each record's part was drawn fairly: whoever chose or contributed records "
    "did not know their parts; a keyed hash (HMAC-SHA256) is as good as a random function"
)
_DATA_INDEPENDENT = (RECORD, WEIGHTS)
_MERGING = "Differentially Private Model Merging, arXiv 2604.20985"

_BEST_OF_K = (
    "the number of runs is drawn from the stated distribution with fresh, secure randomness and is not published, nor is "
    "anything of the runs but the best one",
    "every run draws its hyper-parameters anew from one distribution that does not depend on the data, and its own noise; nor "
    "does its initialisation depend on the data",
    "the score of a run is a function of what that run releases, of public data and of fresh randomness",
)

THEOREMS: dict[str, Theorem] = {
    "selection-pld": Theorem(
        "random selection, privacy loss distributions",
        f"{_MERGING}v1, Thm 5.2",
        (*_DATA_INDEPENDENT, "the draw uses fresh, secure randomness"),
    ),
    "selection-rdp": Theorem(
        "random selection, Rényi divergences",
        f"{_MERGING}v1, Thm 5.1",
        (*_DATA_INDEPENDENT, "the draw uses fresh, secure randomness"),
    ),
    "mean-estimation-selection": Theorem(
        "random selection of Gaussian means, by the law of what is released",
        "theory.md §3.4",
        (
            *_DATA_INDEPENDENT,
            "the draw uses fresh, secure randomness, and which model was drawn is not published",
            "all models estimate the same statistic",
        ),
    ),
    "tempered-selection": Theorem(
        "tempered selection",
        "theory.md §4",
        (
            RECORD,
            "tempered selection, its base probabilities and κ were chosen without looking at the models or the data",
            "scores lie in [0, 1] and come from public data",
            "the draw uses fresh, secure randomness, and nothing else of the scores is published",
        ),
    ),
    "private-validation": Theorem(
        "a noisy choice by scores on a private validation set",
        "theory.md §4",
        ("the choice is the only thing that is published of the scores",),
    ),
    "several-releases": Theorem(
        "several releases from one portfolio, by the set of models that have leaked",
        "theory.md §5",
        (
            RECORD,
            "the weights of every draw, and whether to draw, were chosen without looking at the models, the data or what "
            "earlier releases showed; releases for which this does not hold are of models that were all declared before the "
            "first release, and all of these are counted",
            "every draw uses fresh, secure randomness",
        ),
    ),
    "adaptive-filter": Theorem(
        "releases chosen by what earlier ones showed, by a Rényi filter: the whole budget, whatever is released within it",
        "theory.md §5; Feldman and Zrnic 2021",
        (
            RECORD,
            "what each release is, and whether it is made, was chosen by what earlier releases showed and by nothing else of "
            "the models or the data",
            "every draw uses fresh, secure randomness",
        ),
    ),
    "joint-release": Theorem(
        "joint release of all runs, and post-processing",
        f"{_MERGING}v1, Thm 6.1",
        (RECORD,),
    ),
    "shards": Theorem("joint release of models of disjoint parts of the data", "theory.md §10", (RECORD,)),
    "transport": Theorem("linear combination by transport", "theory.md §3.3", _DATA_INDEPENDENT),
    "transport-poisson": Theorem("linear combination by transport, Poisson sampling", "theory.md §3.3", _DATA_INDEPENDENT),
    "transport-replace-one": Theorem(
        "linear combination by transport, Poisson sampling, coins revealed", "theory.md §3.3", _DATA_INDEPENDENT
    ),
    "coupled-coins": Theorem(
        "linear combination by transport, coupled runs by the law of their coins", "theory.md §3.3", _DATA_INDEPENDENT
    ),
    "hidden-run": Theorem(
        "last iterate only: later noise hides earlier steps", "theory.md §9", (*_DATA_INDEPENDENT, LAST, REAL)
    ),
    "mean-estimation-combination": Theorem("linear combination of Gaussian means", "theory.md §3.4", _DATA_INDEPENDENT),
    "sweep": Theorem(
        "trials of a search, each chosen by what earlier ones showed",
        "theory.md §7",
        (
            "each record describes its trial; settings and initialisation of a trial, and whether it is made, stopped or "
            "shown, depend on the data only by what earlier trials and its own iterates showed",
            "every trial has noise and sampling coins of its own",
            "scores are functions of the trained models, of public data and of fresh randomness",
        ),
    ),
    "tuning-profile": Theorem("best of a random number of runs, by the curve of one run", "theory.md §7", _BEST_OF_K),
    "tuning-rdp": Theorem(
        "best of a random number of runs, Rényi divergences", "Papernot and Steinke 2022, Thm 2 and 6", _BEST_OF_K
    ),
    "papers-formula": Theorem(
        "linear combination by the papers' formula",
        f"{_MERGING}v1, Thm 6.2 and 6.4, v2, Thm 6.2 and 6.3",
        _DATA_INDEPENDENT,
    ),
    "single-run": Theorem("one run alone", "theory.md §1", (RECORD,)),
    "basic-composition": Theorem("basic composition of (ε, δ) pairs", "Dwork et al. 2006", (RECORD,)),
    "advanced-composition": Theorem(
        "advanced composition of (ε, δ) pairs", "Dwork, Rothblum and Vadhan 2010, Thm III.3", (RECORD,)
    ),
    "optimal-composition": Theorem(
        "optimal composition of (ε, δ) pairs", "Kairouz, Oh and Viswanath 2015; Murtagh and Vadhan 2016", (RECORD,)
    ),
}
