"""How products of private gradients are rounded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """float32 products without TF32's shorter mantissa: rounding must not lift a clipped gradient above its norm."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
