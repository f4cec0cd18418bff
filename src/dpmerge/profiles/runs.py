"""From the record of a run to its profile: what every iterate up to that checkpoint costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from dpmerge.errors import UnsupportedMechanism
from dpmerge.profiles.law import Law
from dpmerge.profiles.laws import ApproxDpLaw, GaussianLaw, NonPrivateLaw, RenyiLaw
from dpmerge.profiles.pairs import MixtureLaw, ReplaceOnePoissonLaw
from dpmerge.profiles.profile import Profile
from dpmerge.records import (
    EVERYWHERE,
    Adjacency,
    ApproxDp,
    DpFtrl,
    DpSgd,
    FullPhase,
    Gaussian,
    Model,
    Place,
    Rdp,
    distinct_runs,
    require_independent,
)


@dataclass(frozen=True)
class ShuffleAsPoisson:
    """The user's assumption that shuffled batches may be accounted as Poisson ones; rate 1 claims no amplification."""

    rate: float = 1.0


@dataclass(frozen=True)
class RunProfile:
    """A run's profile with what it assumes beyond its record; `conditional` if that is not a fact about the run."""

    profile: Profile
    assumptions: tuple[str, ...] = ()
    conditional: bool = False


def gathered(runs: Iterable[RunProfile]) -> tuple[tuple[str, ...], bool]:
    """What several runs assume together, each statement once, and whether any of it is conditional."""
    known = list(runs)
    return tuple(dict.fromkeys(text for run in known for text in run.assumptions)), any(run.conditional for run in known)


def record_effect(adjacency: Adjacency) -> float:
    """How many clipping norms one record moves a sum by (theory.md §0): 2 when it is replaced, else 1."""
    return 2.0 if adjacency == "replace-one" else 1.0


def sampling_rate(phase: FullPhase, model: str, shuffle: ShuffleAsPoisson | None) -> float:
    """The Poisson rate of a phase, 1 for full batches; shuffled ones are refused unless `shuffle` treats them as Poisson."""
    if phase.sampling.scheme == "shuffle":
        if shuffle is None:
            raise UnsupportedMechanism(
                f"model {model!r} was trained on shuffled batches, for which no amplification theorem holds; train with "
                "Poisson sampling, or account them as Poisson batches (ShuffleAsPoisson) for a conditional guarantee"
            )
        return shuffle.rate
    return 1.0 if phase.sampling.rate is None else phase.sampling.rate


def run_profile(model: Model, shuffle: ShuffleAsPoisson | None = None, place: Place = EVERYWHERE) -> RunProfile:
    """The profile of the runs that made `model`: its own up to this checkpoint, and once each those it starts from.

    At a `place` only what may have seen the record counts (theory.md §10).
    """
    runs = distinct_runs((model,))
    made = [_own_steps(run, shuffle) for run in runs if place.touches(run)]
    if len(runs) == len(made) == 1:
        return made[0]
    assumed, conditional = gathered(made)
    return RunProfile(Profile.composed(one.profile for one in made), (*require_independent(runs), *assumed), conditional)


def _own_steps(model: Model, shuffle: ShuffleAsPoisson | None) -> RunProfile:
    mechanism, adjacency = model.mechanism, model.record.adjacency
    if isinstance(mechanism, DpSgd):
        return _dp_sgd(model, mechanism, shuffle)
    if isinstance(mechanism, Gaussian):
        return RunProfile(Profile.of([(GaussianLaw(mechanism.sensitivity / mechanism.noise_std), 1)]))
    if isinstance(mechanism, DpFtrl):
        return _dp_ftrl(model, mechanism, adjacency)
    if isinstance(mechanism, ApproxDp):
        return RunProfile(Profile.of([(ApproxDpLaw(mechanism.epsilon, mechanism.delta), 1)]))
    if isinstance(mechanism, Rdp):
        return RunProfile(Profile.of([(RenyiLaw(tuple(mechanism.orders), tuple(mechanism.values)), 1)]))
    return RunProfile(Profile.of([(NonPrivateLaw(), 1)]))


def step_law(rate: float, noise_multiplier: float, adjacency: Adjacency) -> Law:
    """One step of one run with Poisson sampling (or a full batch: rate 1)."""
    if noise_multiplier == 0:
        return NonPrivateLaw()
    if rate >= 1:
        return GaussianLaw(record_effect(adjacency) / noise_multiplier)
    if adjacency == "replace-one":
        return ReplaceOnePoissonLaw(rate, 1 / noise_multiplier)
    return MixtureLaw.poisson(rate, 1 / noise_multiplier)


def dp_sgd_steps(
    model: Model, mechanism: DpSgd, shuffle: ShuffleAsPoisson | None, limit: int | None = None
) -> Iterator[tuple[Law, int]]:
    """The laws of a run's steps with their counts, phase by phase; only the first `limit` steps, if given."""
    adjacency = model.record.adjacency
    left = mechanism.steps if limit is None else limit
    for phase in mechanism.settings():
        taken = min(phase.steps, left)
        if taken <= 0:
            return
        left -= taken
        if phase.sampling.scheme == "fixed-size":
            assert phase.sampling.rate is not None
            yield _fixed_size(model.name, phase.sampling.rate, phase.noise_multiplier, adjacency), taken
        else:
            yield step_law(sampling_rate(phase, model.name, shuffle), phase.noise_multiplier, adjacency), taken


def _dp_sgd(model: Model, mechanism: DpSgd, shuffle: ShuffleAsPoisson | None) -> RunProfile:
    factors = list(dp_sgd_steps(model, mechanism, shuffle))
    assumptions: list[str] = []
    shuffled = any(phase.sampling.scheme == "shuffle" for phase in mechanism.settings())
    if shuffled:
        assert shuffle is not None
        assumptions.append(_shuffle_assumption(model.name, shuffle))
    adaptive = mechanism.clipping == "adaptive"
    if adaptive:
        assumptions.append(
            f"model {model.name!r}: the recorded noise multiplier also pays for the private counts by which the clipping norm "
            "was adapted, and the batch sizes by which they were divided count as public; this is not proved"
        )
    return RunProfile(Profile.of(factors), tuple(assumptions), shuffled or adaptive)


def _shuffle_assumption(name: str, shuffle: ShuffleAsPoisson) -> str:
    if shuffle.rate >= 1:
        return (
            f"model {name!r}: shuffled batches are accounted as Poisson batches with rate 1, that is without amplification "
            "(a shuffle rate below 1 would claim more)"
        )
    return f"model {name!r}: shuffled batches leak no more than Poisson batches with rate {shuffle.rate:g}; this is not proved"


def _dp_ftrl(model: Model, mechanism: DpFtrl, adjacency: Adjacency) -> RunProfile:
    """A record is in ⌈log2(n+1)⌉ nodes of a tree over n steps, or in ⌈n/b⌉ columns of a banded matrix (docs/theory.md §1)."""
    if adjacency == "add-remove":
        raise UnsupportedMechanism(
            f"model {model.name!r}: DP-FTRL is analysed for a record that keeps its place in the stream; state the "
            "record under zero-out (or replace-one) adjacency"
        )
    if mechanism.separation is None:
        counted = tree_nodes(mechanism)
        once = "between two restarts of the tree, whose virtual steps (if it is completed) are counted in its steps"
    else:
        counted = columns(mechanism.steps, mechanism.separation)
        once = (
            f"in any {mechanism.separation} consecutive steps, and the lower triangular matrix of the noise has no more bands "
            "than that, and columns of norm at most 1"
        )
    assumption = f"model {model.name!r}: each record takes part at most once {once}"
    if mechanism.noise_multiplier == 0:
        return RunProfile(Profile.of([(NonPrivateLaw(), 1)]), (assumption,))
    mu = record_effect(adjacency) * math.sqrt(counted) / mechanism.noise_multiplier
    return RunProfile(Profile.of([(GaussianLaw(mu), 1)]), (assumption,))


def columns(steps: int, separation: int) -> int:
    """The most columns of a banded matrix that one record can be in, one for each time that it takes part (`banded-matrix`)."""
    return -(-steps // separation)


def tree_nodes(mechanism: DpFtrl) -> int:
    """The most nodes that one record can be in, whatever length of the trees the record allows (`tree-aggregation`).

    r trees have a length L, and the last has the T − rL steps that are left. For one height of the full trees the last is
    longest if L is the least such: so L is a power of 2, or the least of all.
    """
    steps, restarts = mechanism.steps, mechanism.restarts
    if not restarts:
        return steps.bit_length()
    least, most = mechanism.tree_lengths
    lengths = [least, *(1 << bits for bits in range(least.bit_length(), int(most).bit_length()))]
    return max(restarts * length.bit_length() + (steps - restarts * length).bit_length() for length in lengths)


_FIXED_SIZE_ORDERS = (1.5, 2.0, 2.5, *map(float, range(3, 33)), 40.0, 48.0, 56.0, 64.0, 96.0, 128.0, 192.0, 256.0)


def _fixed_size(name: str, rate: float, noise_multiplier: float, adjacency: Adjacency) -> Law:
    """Batches of fixed size without replacement: dp-accounting's Rényi bound (Wang, Balle and Kasiviswanathan 2019).

    The theorem compares batches in which one record is exchanged for another, also when the neighbours differ by a
    zeroed record, so the sensitivity is 2C in every case; dp-accounting's RDP leaves that factor to the caller.
    """
    if adjacency == "add-remove":
        raise UnsupportedMechanism(
            f"model {name!r}: batches of fixed size have no amplification theorem for add-remove neighbours (the size would "
            "tell); state the record under replace-one or zero-out adjacency, or train with Poisson sampling"
        )
    if noise_multiplier == 0:
        return NonPrivateLaw()
    if rate >= 1:
        return GaussianLaw(record_effect(adjacency) / noise_multiplier)
    return _fixed_size_law(rate, noise_multiplier)


@lru_cache(maxsize=256)  # dp-accounting takes 0.2 s for one, and every rule over the same models asks again
def _fixed_size_law(rate: float, noise_multiplier: float) -> RenyiLaw:
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(_FIXED_SIZE_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    try:
        accountant.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(1, rate, dp_accounting.GaussianDpEvent(noise_multiplier / 2))
        )
    except (ArithmeticError, ValueError):
        raise UnsupportedMechanism(
            f"batches of fixed size at rate {rate:g} with σ = {noise_multiplier:g} are beyond what dp-accounting computes"
        ) from None
    return RenyiLaw(_FIXED_SIZE_ORDERS, tuple(float(value) for value in accountant.rdp))
