"""The weighted sum: a pure function of stored blocks and weights.

Definition, for every floating format: Σ wᵢ·xᵢ in IEEE float64, one multiplication and one addition at a time, in the order of
the models, beginning with the first product; then one rounding to the tensors' own format, ties to even. Models of weight 0
take no part. The weights are used exactly as given. So the result is the same on every machine and for any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpmerge.tensors.dtypes import Dtype, Raw, Scratch, fits

BLOCK = 1 << 17  # elements: small enough for the cache, large enough that threads rarely meet


class NotFinite(ArithmeticError):
    """A NaN or an infinity among the values, or a sum beyond the format's range. The caller knows the names."""


def weighted_sum(terms: Iterable[tuple[float, Raw]], dtype: Dtype, scratch: Scratch) -> Raw:
    """Σ w·x over blocks of one size, rounded to `dtype`; valid until the next call.

    Each term is used up before the next is asked for, so all may be read into the same memory. One look at the sums finds a
    NaN or an infinity in any term: with a positive weight neither can be cancelled.
    """
    total = scratch.sum[:0]
    for number, (weight, raw) in enumerate(terms):
        if number == 0:
            total = scratch.sum[: raw.size]
            scratch.widen(raw, dtype, total)
            np.multiply(total, weight, out=total)
        else:
            term = scratch.term[: raw.size]
            scratch.widen(raw, dtype, term)
            np.multiply(term, weight, out=term)
            np.add(total, term, out=total)
    if not fits(total, dtype):
        raise NotFinite
    return scratch.narrow(total, dtype)
