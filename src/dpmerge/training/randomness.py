"""Fresh generators for every run, and fingerprints by which two runs with the same randomness are recognised."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np


def fresh_generator() -> np.random.Generator:
    """Seeded with 256 bits by the operating system."""
    return np.random.Generator(np.random.PCG64(secrets.randbits(256)))


def fingerprint(generator: np.random.Generator) -> str:
    """Of the state it is in."""
    return hashlib.sha256(repr(generator.bit_generator.state).encode()).hexdigest()[:32]
