"""Running a plan: blocks of every output tensor, computed by a few threads and handed on to be written or compared."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from dpmerge.errors import CheckpointError, DpmergeError
from dpmerge.tensors.checkpoint import Header, Source, Tensor
from dpmerge.tensors.digests import THREADS, PassingDigest, Stopped, in_threads
from dpmerge.tensors.dtypes import Floats, Raw, Scratch, coarsest, fits, narrowed, widened
from dpmerge.tensors.kernel import BLOCK, NotFinite, weighted_sum
from dpmerge.tensors.noising import Noising, TensorNoise

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sum:
    """The weighted sum of the inputs, block by block; the exact one, if noise is added to it."""

    weights: tuple[float, ...]
    noise: TensorNoise | None = None


@dataclass(frozen=True)
class Keep:
    """One of the inputs as it is: integers, and selected models."""

    index: int


@dataclass(frozen=True)
class Whole:
    """Any function of whole tensors in float64; its result is rounded once."""

    function: Callable[[list[Floats]], Floats]


@dataclass(frozen=True, eq=False)
class Output(Header):
    """One tensor of the output: what it is made of, and how."""

    inputs: tuple[Tensor, ...]
    rule: Sum | Keep | Whole

    @classmethod
    def like_first(cls, inputs: tuple[Tensor, ...], rule: Sum | Keep | Whole) -> Output:
        first = inputs[0]
        return cls(first.name, first.dtype, first.shape, inputs, rule)


# What is done with a finished block: the tensor's place in the plan, the first element, the bytes (valid only for the call).
Put = Callable[[int, int, memoryview], None]


class Stream:
    """One pass over a plan. `stop` is set when it fails, so that no thread waits for one that has ended."""

    def __init__(self, outputs: Sequence[Output], threads: int | None = None, progress: Progress | None = None) -> None:
        if threads is not None and threads < 1:
            raise CheckpointError(f"{threads} threads cannot merge anything; give at least 1")
        self.outputs = outputs
        self.stop = threading.Event()
        self._threads = threads or THREADS
        self._progress = progress
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._done, self._total = 0, sum(output.nbytes for output in outputs)

    def run(self, put: Put, digests: Mapping[Source, PassingDigest]) -> None:
        """Compute every block and hand it to `put`, from any thread; `digests` take in what is read from their sources."""
        blocks = self._blocks()
        workers = [threading.Thread(target=self._work, args=(blocks, put, digests)) for _ in range(self._threads - 1)]
        try:
            for worker in workers:
                worker.start()
            self._work(blocks, put, digests)
            for worker in workers:
                worker.join()
        except BaseException:  # interrupted: no thread may write once the caller has closed its files
            self.stop.set()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            raise
        if self._failure is not None:
            raise self._failure

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        for place, output in enumerate(self.outputs):
            step = max(output.size, 1) if isinstance(output.rule, Whole) else BLOCK
            for start in range(0, output.size, step):
                yield place, start, min(step, output.size - start)

    def _work(self, blocks: Iterator[tuple[int, int, int]], put: Put, digests: Mapping[Source, PassingDigest]) -> None:
        reader = _Reader(Scratch(BLOCK), digests)
        try:
            # What overflows or is not a number is refused by name; numpy need not warn.
            with np.errstate(all="ignore"):
                while not self.stop.is_set():
                    with self._lock:
                        place, start, count = next(blocks, (-1, 0, 0))
                    if place < 0:
                        return
                    output = self.outputs[place]
                    put(place, start, _compute(output, start, count, reader).data.cast("B"))
                    if self._progress is not None:
                        with self._lock:
                            self._done += count * output.dtype.size
                            self._progress(self._done, self._total)
        except Stopped:
            pass
        except BaseException as fault:
            with self._lock:
                self._failure = self._failure or fault
            self.stop.set()


def coarsest_spacing(outputs: Sequence[Output]) -> float:
    """How far the stored numbers lie apart at the largest parameter, over all tensors that are averaged (docs/theory.md §3.6).

    Every tensor counts, also one that is equal in all models: whether it is may depend on the data. Values that are not
    finite are refused by name.
    """
    averaged = [output for output in outputs if isinstance(output.rule, Sum)]
    return max(in_threads(_coarsest, averaged), default=0.0)


def _coarsest(output: Output) -> float:
    widest = 0.0
    for start in range(0, output.size, BLOCK):
        count = min(BLOCK, output.size - start)
        for tensor in output.inputs:
            widest = max(widest, coarsest(tensor.part(start, count), tensor.dtype))
            if not math.isfinite(widest):
                raise _not_finite(output, start, count)
    return widest


def require_finite(outputs: Sequence[Output]) -> None:
    """Refuse, by name, numbers that no merge can compute with; what is kept as it is may hold them."""
    computed = [output for output in outputs if not isinstance(output.rule, Keep)]
    in_threads(_require_finite, [tensor for output in computed for tensor in output.inputs])


def _require_finite(tensor: Tensor) -> None:
    for start in range(0, tensor.size, BLOCK):
        if (fault := _first_not_finite(tensor, start, min(BLOCK, tensor.size - start))) is not None:
            raise fault


@dataclass(frozen=True)
class _Reader:
    """Reads blocks of inputs into a thread's scratch memory, past the digests."""

    scratch: Scratch
    digests: Mapping[Source, PassingDigest]

    @cached_property
    def noising(self) -> Noising:
        return Noising(self.scratch.elements)

    def block(self, tensor: Tensor, start: int, count: int) -> Raw:
        raw = self.scratch.raw[: count * tensor.dtype.size]
        self._read(tensor, start, raw.data)
        return raw.view(tensor.dtype.storage)

    def whole(self, tensor: Tensor) -> Raw:
        raw = np.empty(tensor.size, tensor.dtype.storage)
        if raw.size:
            self._read(tensor, 0, raw.data.cast("B"))
        return raw.reshape(tensor.shape)

    def _read(self, tensor: Tensor, start: int, into: memoryview) -> None:
        offset = tensor.offset + start * tensor.dtype.size
        tensor.source.read(offset, into)
        digest = self.digests.get(tensor.source)
        if digest is not None:
            digest.update(offset, into)


def _compute(output: Output, start: int, count: int, reader: _Reader) -> Raw:
    rule = output.rule
    if isinstance(rule, Sum):
        blocks = (reader.block(tensor, start, count) for tensor in output.inputs)
        terms = zip(rule.weights, blocks, strict=True)
        try:
            if rule.noise is None:
                return weighted_sum(terms, output.dtype, reader.scratch)
            exactly = partial(_exact_average, output, rule.weights, start)
            return reader.noising.noised_sum(terms, output.dtype, reader.scratch, rule.noise, start, exactly)
        except NotFinite:
            raise _not_finite(output, start, count) from None
    if isinstance(rule, Keep):
        kept = np.empty(0, output.dtype.storage)
        for place, tensor in enumerate(output.inputs):
            block = reader.block(tensor, start, count)
            if place == rule.index:
                kept = block.copy()
        return kept
    return _whole(output, rule, reader)


def _exact_average(output: Output, weights: tuple[float, ...], start: int, place: int) -> Fraction:
    """The average at one place of the block that starts at `start`, as the rational number it is."""
    values = [widened(tensor.part(start + place, 1), tensor.dtype)[0] for tensor in output.inputs]
    return sum((Fraction(weight) * Fraction(float(value)) for weight, value in zip(weights, values, strict=True)), Fraction(0))


def _whole(output: Output, rule: Whole, reader: _Reader) -> Raw:
    values = [widened(reader.whole(tensor), tensor.dtype) for tensor in output.inputs]
    for tensor, value in zip(output.inputs, values, strict=True):
        if not np.isfinite(value).all():
            raise _not_finite(output, 0, tensor.size)
    try:
        result = np.asarray(rule.function(values), np.float64)
    except (DpmergeError, OSError):  # raised by our own reading
        raise
    except Exception as fault:  # whatever a user's function does
        raise CheckpointError(f"tensor {output.name!r}: the method raised {fault!r}") from fault
    if result.shape != output.shape:
        raise CheckpointError(
            f"tensor {output.name!r}: the method returned shape {list(result.shape)}, not {list(output.shape)}"
        )
    if not fits(result, output.dtype):
        raise CheckpointError(f"tensor {output.name!r}: the method returned values that are not finite in {output.dtype.name}")
    return narrowed(result, output.dtype).reshape(-1)


def _not_finite(output: Output, start: int, count: int) -> CheckpointError:
    """Say which model it was; a sum of finite values that is not finite has overflowed."""
    for tensor in output.inputs:
        if (fault := _first_not_finite(tensor, start, count)) is not None:
            return fault
    return CheckpointError(
        f"tensor {output.name!r}: the weighted sum is beyond the range of {output.dtype.name}; weights that sum to 1 never are "
        "unless noise is added"
    )


def _first_not_finite(tensor: Tensor, start: int, count: int) -> CheckpointError | None:
    values = widened(tensor.part(start, count), tensor.dtype)
    places = np.flatnonzero(~np.isfinite(values))
    if not places.size:
        return None
    first = int(places[0])
    return CheckpointError(f"{tensor}: element {start + first} is {values[first]}; a merge needs finite values")
