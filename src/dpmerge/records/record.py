"""`record.json`: what a run *was*. Immutable, versioned, nothing computed, unknown fields refused.

This is a public format (schema 1). `dpmerge tools schema` prints it as JSON Schema, and `docs/records.md` explains every field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from dpmerge.errors import RecordError
from dpmerge.records.strict import Extended, Strict, load_strict, parse_strict

Adjacency = Literal["add-remove", "replace-one", "zero-out"]
Scheme = Literal["poisson", "full-batch", "fixed-size", "shuffle"]
Clipping = Literal["flat", "per-output", "per-layer", "adaptive"]
Convex = Literal["glm", "unclipped"]  # why clipped gradients are those of convex functions
Source = Literal["recorded", "stated-by-user"]
Assignment = Literal["keyed-hash", "fair-draw", "by-id"]  # how a record's part of the data was decided
NoiseGenerator = Literal["chacha20", "operating-system", "torch-philox", "torch-mt19937", "numpy-pcg64", "several", "other"]
CRYPTOGRAPHIC = frozenset[NoiseGenerator]({"chacha20", "operating-system"})  # outputs do not reveal other outputs

# Squares of products of such numbers are floats, and not 0: accounting needs both, and no training has others.
SMALLEST, LARGEST = 1e-30, 1e30


def _not_too_large(value: float) -> float:
    if value > LARGEST:
        raise ValueError(f"numbers of a record are at most {LARGEST:g}")
    return value


def _of_some_size(value: float) -> float:
    if 0 < value < SMALLEST:
        raise ValueError(f"numbers of a record that are not 0 are at least {SMALLEST:g}")
    return _not_too_large(value)


Positive = Annotated[float, Field(gt=0), AfterValidator(_of_some_size)]
NonNegative = Annotated[float, Field(ge=0), AfterValidator(_of_some_size)]
_Loss = Annotated[float, Field(ge=0), AfterValidator(_not_too_large)]  # an ε, or a Rényi divergence, however small
_MOST = 2**53  # of whole numbers: all up to it are floats
Count = Annotated[int, Field(ge=1, le=_MOST)]
Steps = Count


class Sampling(Strict):
    """How the batch of one step is drawn. `rate` belongs to poisson and fixed-size alone."""

    scheme: Scheme
    rate: Annotated[Positive, Field(le=1)] | None = None

    @model_validator(mode="after")
    def _rate_where_it_belongs(self) -> Sampling:
        needs_rate = self.scheme in ("poisson", "fixed-size")
        if needs_rate and self.rate is None:
            raise ValueError(f"{self.scheme} sampling needs a rate in (0, 1]")
        if not needs_rate and self.rate is not None:
            raise ValueError(f"{self.scheme} sampling has no rate: remove it")
        return self


class Shard(Strict):
    """The part of the data that a run was trained on, by record ids alone (theory.md §10).

    `keyed-hash`: HMAC-SHA256 of the id under a fresh secret key. `fair-draw`: a fair draw for each record, kept secret.
    `by-id`: any other function of the id, which may be known.
    """

    partition: Annotated[str, Field(min_length=1)]
    part: Count
    of: Annotated[int, Field(ge=2, le=_MOST)]
    assignment: Assignment

    @field_validator("assignment", mode="before")
    @classmethod
    def _by_ids_alone(cls, given: object) -> object:
        if given not in get_args(Assignment):
            raise ValueError(
                f"must be one of {', '.join(get_args(Assignment))}: a part that depends on a record's content, or on which "
                "other records there are (equal sizes, a shuffle), bounds nothing"
            )
        return given

    @model_validator(mode="after")
    def _one_of_them(self) -> Shard:
        if self.part > self.of:
            raise ValueError(f"part {self.part} of {self.of}: parts are numbered from 1")
        return self

    @property
    def is_secret(self) -> bool:
        """Whether nobody knew beforehand which part a record would be in."""
        return self.assignment != "by-id"


class Phase(Extended):
    """Consecutive steps with the same settings; what is not given here is as in the mechanism.

    `weight_decay` is decoupled, as SGD applies it: θ ← (1 − ηω)θ − η(…), outside clip and noise. Not given, it is 0.
    """

    added: ClassVar[frozenset[str]] = frozenset({"weight_decay"})

    steps: Steps
    learning_rate: NonNegative
    noise_multiplier: NonNegative | None = None
    clip: Positive | None = None
    sampling: Sampling | None = None
    expected_batch: Positive | None = None
    weight_decay: NonNegative | None = None


class FullPhase(Strict):
    """A phase with nothing left to inherit."""

    steps: Steps
    learning_rate: NonNegative
    noise_multiplier: NonNegative
    clip: Positive
    sampling: Sampling
    expected_batch: Positive
    weight_decay: NonNegative = 0.0


class DpSgd(Extended):
    """A DP-SGD or DP-GD run up to one checkpoint (Opacus' convention; theory.md §0).

    `left_out` names tensors that changed without noise: they are not in the model, and no loss was computed with them.
    `others_unchanged` says that all others were trained with noise or never changed: stated by the user; the recorder
    checks it. `checkpoints_kept` is how many earlier checkpoints the training wrote beside this one. `established` says how
    smoothness and convex were found, where the recorder checked them. A fork says what it `starts_from`; its phases are its
    own steps alone. `shard` is the part of the data that these saw. `trained` names the tensors that steps changed, where
    others never were: what the run began with.
    """

    added: ClassVar[frozenset[str]] = frozenset(
        {
            "left_out",
            "others_unchanged",
            "noise_generator",
            "checkpoints_kept",
            "established",
            "starts_from",
            "shard",
            "trained",
        }
    )

    kind: Literal["dp-sgd"]
    run: Annotated[str, Field(min_length=1)]
    noise_fingerprint: str | None
    sampler_fingerprint: str | None
    optimizer: Annotated[str, Field(min_length=1)]
    sampling: Sampling
    expected_batch: Positive
    noise_multiplier: NonNegative
    clip: Positive
    clipping: Clipping
    phases: Annotated[list[Phase], Field(min_length=1)]
    smoothness: NonNegative | None
    convex: Convex | None
    left_out: Annotated[list[str], Field(min_length=1)] | None = None
    others_unchanged: Literal[True] | None = None
    noise_generator: NoiseGenerator | None = None
    checkpoints_kept: Count | None = None
    established: Annotated[str, Field(min_length=1)] | None = None
    starts_from: StartsFrom | None = None
    shard: Shard | None = None
    trained: Annotated[list[str], Field(min_length=1)] | None = None

    def settings(self) -> list[FullPhase]:
        """The phases with nothing left to inherit."""
        own = {name: getattr(self, name) for name in ("noise_multiplier", "clip", "sampling", "expected_batch")}
        return [FullPhase(**own | {name: value for name, value in phase if value is not None}) for phase in self.phases]

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


class StartsFrom(Extended):
    """The private checkpoint that a fork begins with: which step of which run, the digest of its tensors, and what was run.

    Where a record is published the digest is left out.
    """

    added: ClassVar[frozenset[str]] = frozenset({"digest", "source"})

    run: Annotated[str, Field(min_length=1)]
    step: Steps
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    mechanism: DpSgd
    source: Source | None = None  # of what is said about it; nothing counts as stated by a user

    @model_validator(mode="after")
    def _of_that_step(self) -> StartsFrom:
        if (self.run, self.step) != (self.mechanism.run, self.mechanism.steps):
            raise ValueError(
                f"step {self.step} of run {self.run!r} is said to be the start, but its mechanism is that of step "
                f"{self.mechanism.steps} of run {self.mechanism.run!r}"
            )
        return self


DpSgd.model_rebuild()


class _Run(Extended):
    """What every mechanism may say about its randomness; a model without a run id is a run of its own."""

    added: ClassVar[frozenset[str]] = frozenset({"noise_generator", "shard"})
    run: Annotated[str, Field(min_length=1)] | None = None
    noise_fingerprint: str | None = None
    sampler_fingerprint: str | None = None
    noise_generator: NoiseGenerator | None = None
    shard: Shard | None = None


class Gaussian(_Run):
    """The Gaussian mechanism once: mean estimation. `sensitivity` is the ℓ2 sensitivity under the record's adjacency."""

    kind: Literal["gaussian"]
    sensitivity: Positive
    noise_std: Positive
    dimension: Count | None = None


class DpFtrl(_Run):
    """DP-FTRL with tree aggregation: `steps` in all, the tree restarted `restarts` times, after every `tree_steps`.

    Where `tree_steps` is not stated, the worst that the other two allow is taken. With `separation` there is no tree: noise is
    that of a banded matrix, and a record takes part at most once in so many consecutive steps.
    """

    added: ClassVar[frozenset[str]] = frozenset({"noise_generator", "tree_steps", "separation", "shard"})
    kind: Literal["dp-ftrl"]
    noise_multiplier: NonNegative
    steps: Steps
    restarts: Annotated[int, Field(ge=0, le=_MOST)]
    tree_steps: Count | None = None
    separation: Count | None = None

    @model_validator(mode="after")
    def _restarts_fit(self) -> DpFtrl:
        if self.separation is not None and (self.restarts or self.tree_steps is not None):
            raise ValueError("separation is stated for a banded matrix, which has no trees: no tree_steps, and 0 restarts")
        least, most = self._allowed
        if self.restarts >= self.steps or least > most:
            raise ValueError(f"{self.restarts} restarts at equal distances do not fit into {self.steps} steps")
        if self.tree_steps is not None and not least <= self.tree_steps <= most:
            raise ValueError(f"trees of {self.tree_steps} steps do not have {self.restarts} restarts within {self.steps} steps")
        return self

    @property
    def _allowed(self) -> tuple[int, float]:
        """r trees are complete, and the last has some of its steps, perhaps none or all: rL ≤ T ≤ (r + 1)L."""
        return -(-self.steps // (self.restarts + 1)), self.steps // self.restarts if self.restarts else math.inf

    @property
    def tree_lengths(self) -> tuple[int, float]:
        """The least and the largest number of steps that every complete tree may have."""
        return self._allowed if self.tree_steps is None else (self.tree_steps, self.tree_steps)


class MadeOf(Strict):
    """What a release was made of: the runs whose randomness it shares, and what its guarantee assumes (theory.md §5)."""

    runs: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    assumes: list[str]


class ApproxDp(_Run):
    """A mechanism of which only (ε, δ)-DP is known. A release says what it was `made_of`."""

    added: ClassVar[frozenset[str]] = frozenset({"noise_generator", "shard", "made_of"})
    kind: Literal["approx-dp"]
    epsilon: _Loss
    delta: Annotated[float, Field(ge=0, lt=1)]
    made_of: MadeOf | None = None

    @model_validator(mode="after")
    def _a_run_of_its_own(self) -> ApproxDp:
        if self.made_of is not None and (self.run is None or self.run in self.made_of.runs):
            raise ValueError("a release is a run of its own: give it a run id that is not one of those it was made of")
        return self


class Rdp(_Run):
    """A mechanism of which only a Rényi curve is known."""

    kind: Literal["rdp"]
    orders: Annotated[list[Annotated[float, Field(gt=1), AfterValidator(_not_too_large)]], Field(min_length=1)]
    values: Annotated[list[_Loss], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_value_for_each_order(self) -> Rdp:
        if len(self.orders) != len(self.values):
            raise ValueError(f"{len(self.orders)} orders but {len(self.values)} values")
        if any(b <= a for a, b in zip(self.orders, self.orders[1:], strict=False)):
            raise ValueError("orders must be strictly increasing")
        return self


class NonPrivate(_Run):
    """A model trained without privacy: H_ε ≡ 1."""

    kind: Literal["non-private"]


Mechanism = Annotated[DpSgd | Gaussian | DpFtrl | ApproxDp | Rdp | NonPrivate, Field(discriminator="kind")]


class DataFingerprint(Strict):
    """HMAC-SHA-256 of the examples, in any order, under a secret key of their owner's; `key` is the key's public id."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(Extended):
    """The whole of one `record.json`. `source` says who wrote it: the training itself, or someone after it.

    `data_fingerprint` is of the data that the run's own steps saw: with a shard, of that part. No certificate has it.
    """

    added: ClassVar[frozenset[str]] = frozenset({"source", "data_fingerprint"})

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    dataset: Annotated[str, Field(min_length=1)]
    adjacency: Adjacency
    source: Source | None = None
    data_fingerprint: DataFingerprint | None = None
    mechanism: Mechanism

    @model_validator(mode="after")
    def _parts_of_ids_that_stay(self) -> Record:
        sharded = any(mechanism.shard is not None for mechanism in self.lineage)
        if sharded and self.adjacency == "replace-one":
            raise ValueError(
                "a record that is replaced by another may change its part, so a shard bounds nothing for replace-one "
                "neighbours: state it under add-remove or zero-out adjacency, or leave out the shard"
            )
        return self

    @property
    def lineage(self) -> Iterator[Mechanism]:
        """What made the model: its own mechanism, that of the checkpoint it starts from, and so on."""
        mechanism: Mechanism | None = self.mechanism
        while mechanism is not None:
            yield mechanism
            start = mechanism.starts_from if isinstance(mechanism, DpSgd) else None
            mechanism = None if start is None else start.mechanism

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read and validate one file; any fault is one line that names file and field."""
        return load_strict(cls, path, RecordError, "every model's folder needs a record.json")

    @classmethod
    def parse(cls, text: str, source: str = "record") -> Record:
        """Validate a record given as text; `source` names it in errors."""
        return parse_strict(cls, text, source, RecordError)
