"""The kernels of Triton against torch's own operations, on a CPU: Triton's interpreter runs them, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for CUDA")

from dpmerge_lab.training import fused  # noqa: E402

# Examples, copies of each, inputs, outputs, side, size of a filter, stride; and images, channels, groups, side.
CONVOLUTIONS = [(3, 2, 16, 32, 8, 3, 1), (2, 1, 64, 128, 8, 3, 2), (2, 1, 32, 64, 8, 1, 2), (2, 2, 256, 16, 8, 3, 1)]
NORMS = [(3, 64, 16, 8), (2, 16, 16, 16), (1, 512, 32, 4), (2, 128, 1, 8)]


def test_kernels_give_what_torch_gives() -> None:
    told = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    errors = [float(line) for line in told.stdout.split()]
    assert len(errors) == len(CONVOLUTIONS) + 12 * len(NORMS)
    assert all(error < 1e-6 for error in errors), errors  # one that is nan too


def images(*shape: int) -> Any:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def apart(found: Any, wanted: Any) -> None:
    print(float((found - wanted).norm() / wanted.norm()))


def compare() -> None:
    """Print how far each result is from torch's."""
    from dpmerge_lab.training import kernels

    torch.manual_seed(1)
    for count, copies, inputs, outputs, side, size, stride in CONVOLUTIONS:
        a, g = images(count * copies, inputs, side, side), images(count * copies, outputs, side // stride, side // stride)
        wanted = fused.filter_gradients(a, g, copies, size, stride, size // 2)
        found = torch.full_like(wanted, float("nan"))
        kernels.filter_gradients(a, g, found, copies, size, stride, size // 2)
        apart(found, wanted)
    for count, channels, groups, side in NORMS:
        x, g = images(count, channels, side, side) + 0.3, images(count, channels, side, side)
        weight, bias = torch.randn(channels), torch.randn(channels)
        for rectified in (False, True):
            wanted = fused.group_norm(x, weight, bias, groups, 1e-5, rectified)
            y, mean, scale = found = [torch.full_like(one, float("nan")) for one in wanted]
            kernels.norm(x, weight, bias, y, mean, scale, groups, 1e-5, rectified)
            given = (g, x, weight, bias, *wanted[1:])
            back = fused.group_norm_backward(*given, groups, rectified)
            found += [torch.full_like(one, float("nan")) for one in back]
            kernels.norm_backward((*given, *found[3:]), groups, rectified)
            for one, other in zip(found, (*wanted, *back), strict=True):
                apart(one, other)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent))
    compare()
