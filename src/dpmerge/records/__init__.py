"""What was run: mechanism records of models and runs, and the portfolio. No numerics."""

from dpmerge.records.looks import looks_like as looks_like
from dpmerge.records.one_dataset import by_name_only as by_name_only, data_contradiction as data_contradiction
from dpmerge.records.portfolio import (
    WEIGHT_SUM_TOLERANCE as WEIGHT_SUM_TOLERANCE,
    Portfolio as Portfolio,
    Weights as Weights,
)
from dpmerge.records.record import (
    CRYPTOGRAPHIC as CRYPTOGRAPHIC,
    LARGEST as LARGEST,
    SMALLEST as SMALLEST,
    Adjacency as Adjacency,
    ApproxDp as ApproxDp,
    Clipping as Clipping,
    Convex as Convex,
    DataFingerprint as DataFingerprint,
    DpFtrl as DpFtrl,
    DpSgd as DpSgd,
    FullPhase as FullPhase,
    Gaussian as Gaussian,
    MadeOf as MadeOf,
    Mechanism as Mechanism,
    NoiseGenerator as NoiseGenerator,
    NonNegative as NonNegative,
    NonPrivate as NonPrivate,
    Phase as Phase,
    Positive as Positive,
    Rdp as Rdp,
    Record as Record,
    Sampling as Sampling,
    Shard as Shard,
    Source as Source,
    StartsFrom as StartsFrom,
)
from dpmerge.records.runs import (
    Model as Model,
    distinct_runs as distinct_runs,
    joined as joined,
    latest_checkpoints as latest_checkpoints,
    renamed_generators as renamed_generators,
    require_independent as require_independent,
    trained_tensors as trained_tensors,
)
from dpmerge.records.shards import EVERYWHERE as EVERYWHERE, Place as Place, places as places
from dpmerge.records.strict import (
    Extended as Extended,
    Strict as Strict,
    load_strict as load_strict,
    meant as meant,
    named_numbers as named_numbers,
    parse_strict as parse_strict,
    refuse_duplicates as refuse_duplicates,
)
