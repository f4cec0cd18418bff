"""Noise for releases at several levels: one Brownian path in parameter space, as sums of independent normals.

The path is a pure function of a secret key and of the noise of the first release, its *root* τ₀. It is defined at v = τ² of the
*rungs* τ = τ₀·2^(k/32). Every rung k is a node of a tree with a standard normal ξ_k of its own for each parameter
(tensors/normals.py), and the path at a rung is a sum over few nodes: octaves above the root by independent increments, octaves
below by the bridge to 0, and rungs inside an octave by bisection. docs/theory.md §9.5 proves that the path is Brownian.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from dpmerge.errors import CheckpointError

_OCTAVE = 32
_LEAST, _MOST = math.ldexp(1.0, -300), math.ldexp(1.0, 300)
# 2^(k/32) rounded down to 53 bits, by five square roots of whole numbers: the same on every machine.
_STEPS = tuple(
    math.isqrt(math.isqrt(math.isqrt(math.isqrt(math.isqrt(1 << (52 * _OCTAVE + k)))))) / 2**52 for k in range(_OCTAVE)
)


@dataclass(frozen=True)
class Part:
    """One normal of a sum: the path has `weight`·√`variance`·ξ of it, and `variance` belongs to the node alone."""

    node: int
    weight: Fraction
    variance: Fraction

    @property
    def square(self) -> Fraction:
        """The square of the normal's coefficient."""
        return self.weight**2 * self.variance


@dataclass(frozen=True)
class NoisePath:
    """A path: whoever knows the key can subtract the noise, so it stays where the private models are."""

    key: bytes = field(repr=False)
    root: float

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise CheckpointError(f"a key of {len(self.key)} bytes cannot make noise; a key has 32 random bytes")
        _check(self.root)

    @cached_property
    def seed(self) -> bytes:
        """What the normals are made of. The root is part of it: paths with two roots would otherwise cancel each other."""
        return hashlib.blake2b(self.root.hex().encode(), digest_size=32, key=self.key, person=b"dpmerge path").digest()

    def rung(self, noise: float) -> float:
        """The smallest rung that is at least this noise."""
        return next_rung(self.root, noise)


@dataclass(frozen=True)
class Noise:
    """Noise of one standard deviation for every parameter: the path at a rung. Tensors `without` it were not trained."""

    path: NoisePath
    deviation: float
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.path.rung(self.deviation) != self.deviation:
            raise CheckpointError(
                f"noise of {self.deviation} is not on the path that begins with {self.path.root}; "
                f"the next noise on it is {self.path.rung(self.deviation)}"
            )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The normals that make up the path at this rung."""
        return parts(self.path.root, _index(self.path.root, self.deviation))

    @cached_property
    def coefficients(self) -> tuple[float, ...]:
        """Those of the normals, in units of the grid, within 2⁻⁵² of themselves."""
        return tuple(_square_root(part.square / Fraction(self.spacing) ** 2) for part in self.parts)

    @cached_property
    def spacing(self) -> float:
        """The grid to which noised numbers are rounded: a power of two, at most 2⁻²⁶ of the noise."""
        return math.ldexp(1.0, math.frexp(self.deviation)[1] - 27)


def next_rung(root: float, noise: float) -> float:
    """The smallest rung of the path with this root that is at least this noise."""
    return rung(root, _index(root, noise))


def rung(root: float, index: int) -> float:
    """τ₀·2^(index/32), as the double that it is on every machine. Strictly increasing in the index."""
    octave, step = divmod(index, _OCTAVE)
    return math.ldexp(root * _STEPS[step], octave)


def parts(root: float, index: int) -> tuple[Part, ...]:
    """The path at a rung, as a sum of independent normals (docs/theory.md §9.5)."""
    octave, step = divmod(index, _OCTAVE)
    if step == 0:
        return _at_octave(root, octave)
    low, high = _OCTAVE * octave, _OCTAVE * (octave + 1)
    below, above = _at_octave(root, octave), _at_octave(root, octave + 1)
    while True:
        middle = (low + high) // 2
        u, v, w = (Fraction(rung(root, k)) ** 2 for k in (low, middle, high))
        share = (v - u) / (w - u)
        found = _mixed(1 - share, below, share, above, Part(middle, Fraction(1), (v - u) * (1 - share)))
        if middle == index:
            return found
        if index < middle:
            high, above = middle, found
        else:
            low, below = middle, found


def _at_octave(root: float, octave: int) -> tuple[Part, ...]:
    start = Fraction(root) ** 2
    found: tuple[Part, ...] = (Part(0, Fraction(1), start),)
    for j in range(1, octave + 1):
        found = (*found, Part(_OCTAVE * j, Fraction(1), 3 * start * 4 ** (j - 1)))
    for j in range(-1, octave - 1, -1):
        new = Part(_OCTAVE * j, Fraction(1), 3 * start / 4 ** (1 - j))
        found = _mixed(Fraction(0), (), Fraction(1, 4), found, new)
    return found


def _mixed(a: Fraction, one: tuple[Part, ...], b: Fraction, other: tuple[Part, ...], new: Part) -> tuple[Part, ...]:
    """a·one + b·other + new. Nodes that both have are the same normals."""
    found: dict[int, Part] = {}
    for factor, half in ((a, one), (b, other)):
        for part in half:
            before = found[part.node].weight if part.node in found else Fraction(0)
            found[part.node] = Part(part.node, before + factor * part.weight, part.variance)
    return (*found.values(), new)


def _square_root(square: Fraction) -> float:
    """The root to 64 bits and more, then rounded to a double."""
    shift = max(0, 64 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    return math.isqrt((square.numerator << 2 * shift) // square.denominator) / (1 << shift)


def _index(root: float, noise: float) -> int:
    _check(root)
    _check(noise)
    index = math.ceil(_OCTAVE * math.log2(noise / root))
    while rung(root, index) < noise:
        index += 1
    while rung(root, index - 1) >= noise:
        index -= 1
    return index


def _check(noise: float) -> None:
    if not _LEAST <= noise <= _MOST:
        raise CheckpointError(f"noise of {noise} cannot be added; a standard deviation is between {_LEAST:.0e} and {_MOST:.0e}")
