"""Fresh generators for every run, fingerprints by which runs with the same randomness are recognised, and Poisson batches."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from randomgen import ChaCha

from dpmerge.records import NoiseGenerator

GENERATOR: NoiseGenerator = "chacha20"  # what `fresh_generator` gives, as a record says it


def fresh_generator() -> np.random.Generator:
    """ChaCha20 with a key from the operating system, for one run alone: cryptographic, at twice the price of numpy's own."""
    return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))


def fingerprint(generator: np.random.Generator) -> str:
    """Hash of the generator state; its key is too long to brute-force."""
    return hashlib.sha256(repr(generator.bit_generator.state).encode()).hexdigest()[:32]


def together(generators: Sequence[NoiseGenerator | None]) -> NoiseGenerator | None:
    """What a record states for all generators of one run; None if one of them is not known."""
    known = set(generators)
    if None in known:
        return None
    return next(iter(known)) if len(known) == 1 else "several"


def poisson_batch(generator: np.random.Generator, count: int, rate: float) -> npt.NDArray[np.int64]:
    """The members of a batch that each of `count` examples joins with probability `rate`, independently of all others.

    The gaps between successes of independent coins are independent and geometric: as many draws as the batch has members
    instead of `count`. Dense batches toss the coins. Either way the probability is `rate` up to the rounding of a float.
    """
    if rate > 0.1:
        return np.flatnonzero(generator.random(count) < rate)
    parts, last = [], -1
    while last < count:
        left = (count - last) * rate
        # A gap beyond the end is as good as the longest one, and does not overflow the sum.
        gaps = np.minimum(generator.geometric(rate, int(left + 4 * math.sqrt(left) + 8)), count + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    places = np.concatenate(parts)
    return places[places < count]
