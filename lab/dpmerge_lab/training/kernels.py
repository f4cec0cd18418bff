"""What private training on a GPU does by kernels of Triton, for tensors with channels last; `fused.py` calls them.

Every example's gradient of a convolution's filters: cuBLAS needs what the convolution sees at each place written out, nine
times the activations: on an H200 2.2 ms for a layer of 64 channels of 2112 images, with the product. Here each place is read
where it lies: 0.37 ms. Products of bfloat16 numbers are exact, and their sums are kept in single precision.

Group normalisation with the ReLU after it, and backwards with each image's gradient of its weights: what torch.compile made of
it took 17 of a step's 34 ms; with these kernels the step takes 24.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _filter_gradients(  # type: ignore[no-untyped-def]
    a_pointer,
    g_pointer,
    out_pointer,
    PLACES: tl.constexpr,  # of all copies of an example
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    HIGH_OUT: tl.constexpr,
    WIDE_OUT: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One example, one row of the filters, some outputs and inputs: for each position in the row Σ over places of g·aᵀ."""
    tile, example = tl.program_id(0), tl.program_id(1).to(tl.int64)
    down, tile = tile % SIZE, tile // SIZE
    inputs = tile % (INPUTS // BLOCK_IN) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    outputs = tile // (INPUTS // BLOCK_IN) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    g_pointer += example * PLACES * OUTPUTS
    a_pointer += example * (PLACES // (HIGH_OUT * WIDE_OUT)) * HIGH * WIDE * INPUTS
    first = tl.zeros((BLOCK_OUT, BLOCK_IN), dtype=tl.float32)
    second = tl.zeros((BLOCK_OUT, BLOCK_IN), dtype=tl.float32)
    third = tl.zeros((BLOCK_OUT, BLOCK_IN), dtype=tl.float32)
    for start in range(0, PLACES, BLOCK):
        place = start + tl.arange(0, BLOCK)
        copy, inside = place // (HIGH_OUT * WIDE_OUT), place % (HIGH_OUT * WIDE_OUT)
        row = inside // WIDE_OUT * STRIDE + down - PADDING
        column = inside % WIDE_OUT * STRIDE - PADDING
        at = (copy * HIGH + row) * WIDE + column
        there = (row >= 0) & (row < HIGH)
        g = tl.trans(tl.load(g_pointer + place[:, None] * OUTPUTS + outputs[None, :]))
        here = there & (column >= 0) & (column < WIDE)
        a = tl.load(a_pointer + at[:, None] * INPUTS + inputs[None, :], mask=here[:, None], other=0.0)
        first = tl.dot(g, a, first, input_precision="ieee")
        if SIZE == 3:
            here = there & (column + 1 >= 0) & (column + 1 < WIDE)
            a = tl.load(a_pointer + (at + 1)[:, None] * INPUTS + inputs[None, :], mask=here[:, None], other=0.0)
            second = tl.dot(g, a, second, input_precision="ieee")
            here = there & (column + 2 >= 0) & (column + 2 < WIDE)
            a = tl.load(a_pointer + (at + 2)[:, None] * INPUTS + inputs[None, :], mask=here[:, None], other=0.0)
            third = tl.dot(g, a, third, input_precision="ieee")
    out_pointer += example * OUTPUTS * SIZE * SIZE * INPUTS
    to = out_pointer + outputs[:, None] * (SIZE * SIZE * INPUTS) + down * (SIZE * INPUTS) + inputs[None, :]
    tl.store(to, first)
    if SIZE == 3:
        tl.store(to + INPUTS, second)
        tl.store(to + 2 * INPUTS, third)


@triton.jit  # type: ignore[untyped-decorator]
def _in_groups(sums, GROUPS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """For each channel the sum over its group."""
    total = tl.sum(tl.reshape(sums, (GROUPS, SIZE)), axis=1)
    return tl.reshape(tl.broadcast_to(total[:, None], (GROUPS, SIZE)), (GROUPS * SIZE,))


@triton.jit  # type: ignore[untyped-decorator]
def _norm(  # type: ignore[no-untyped-def]
    x_pointer,
    weight_pointer,
    bias_pointer,
    y_pointer,
    mean_pointer,
    scale_pointer,
    eps,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,  # of a group
    RECTIFIED: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some groups of one image, read twice: the second time it still lies in the cache."""
    view = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    at = view * PLACES * CHANNELS + tl.arange(0, BLOCK)[:, None] * CHANNELS + channels[None, :]
    first = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)
    second = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)
    for start in range(0, PLACES, BLOCK):
        x = tl.load(x_pointer + at + start * CHANNELS).to(tl.float32)
        first += x
        second += x * x
    mean = _in_groups(tl.sum(first, axis=0), BLOCK_CHANNELS // SIZE, SIZE) / (SIZE * PLACES)
    square = _in_groups(tl.sum(second, axis=0), BLOCK_CHANNELS // SIZE, SIZE) / (SIZE * PLACES)
    scale = 1 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + eps)
    tl.store(mean_pointer + view * CHANNELS + channels, mean)
    tl.store(scale_pointer + view * CHANNELS + channels, scale)
    weight, bias = tl.load(weight_pointer + channels), tl.load(bias_pointer + channels)
    for start in range(0, PLACES, BLOCK):
        x = tl.load(x_pointer + at + start * CHANNELS).to(tl.float32)
        y = (x - mean[None, :]) * scale[None, :] * weight[None, :] + bias[None, :]
        if RECTIFIED:
            y = tl.maximum(y, 0.0)
        tl.store(y_pointer + at + start * CHANNELS, y.to(y_pointer.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _norm_backward(  # type: ignore[no-untyped-def]
    g_pointer,
    x_pointer,
    weight_pointer,
    bias_pointer,
    mean_pointer,
    scale_pointer,
    out_pointer,
    weights_pointer,
    biases_pointer,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    RECTIFIED: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of one image's groups, and of weight and bias from it alone."""
    view = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    at = view * PLACES * CHANNELS + tl.arange(0, BLOCK)[:, None] * CHANNELS + channels[None, :]
    weight, bias = tl.load(weight_pointer + channels), tl.load(bias_pointer + channels)
    mean = tl.load(mean_pointer + view * CHANNELS + channels)
    scale = tl.load(scale_pointer + view * CHANNELS + channels)
    for_weight = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)
    for_bias = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)
    for start in range(0, PLACES, BLOCK):
        g = tl.load(g_pointer + at + start * CHANNELS).to(tl.float32)
        normal = (tl.load(x_pointer + at + start * CHANNELS).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RECTIFIED:
            g = tl.where(normal * weight[None, :] + bias[None, :] > 0, g, 0.0)
        for_weight += g * normal
        for_bias += g
    weights, biases = tl.sum(for_weight, axis=0), tl.sum(for_bias, axis=0)
    tl.store(weights_pointer + view * CHANNELS + channels, weights)
    tl.store(biases_pointer + view * CHANNELS + channels, biases)
    along = _in_groups(weights * weight, BLOCK_CHANNELS // SIZE, SIZE) / (SIZE * PLACES)
    level = _in_groups(biases * weight, BLOCK_CHANNELS // SIZE, SIZE) / (SIZE * PLACES)
    for start in range(0, PLACES, BLOCK):
        g = tl.load(g_pointer + at + start * CHANNELS).to(tl.float32)
        normal = (tl.load(x_pointer + at + start * CHANNELS).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RECTIFIED:
            g = tl.where(normal * weight[None, :] + bias[None, :] > 0, g, 0.0)
        out = (g * weight[None, :] - level[None, :] - normal * along[None, :]) * scale[None, :]
        tl.store(out_pointer + at + start * CHANNELS, out.to(out_pointer.dtype.element_ty))


def filter_gradients(a: Tensor, g: Tensor, out: Tensor, copies: int, size: int, stride: int, padding: int) -> None:
    """Into `out`: examples, outputs, and then rows, columns and inputs of a filter. An example has so many copies in a row."""
    (_, inputs, high, wide), (count, outputs, high_out, wide_out) = a.shape, g.shape
    places = copies * high_out * wide_out
    block_out, block_in, block = (_divisor(number, most) for number, most in ((outputs, 64), (inputs, 64), (places, 32)))
    grid = ((outputs // block_out) * (inputs // block_in) * size, count // copies)
    shapes = (places, high, wide, high_out, wide_out, inputs, outputs, size, stride, padding)
    _filter_gradients[grid](a, g, out, *shapes, block_out, block_in, block, num_warps=4, num_stages=4)


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, mean: Tensor, scale: Tensor, groups: int, eps: float, rectified: bool
) -> None:
    """Into `y`, and each image's and channel's `mean` and `scale`."""
    grid, shapes, blocks = _of_images(x, groups)
    _norm[grid](x, weight, bias, y, mean, scale, eps, *shapes, rectified, *blocks)


def norm_backward(tensors: tuple[Tensor, ...], groups: int, rectified: bool) -> None:
    """Of g, x, weight, bias, mean and scale into the last three: the gradient of x, and of each image's weight and bias."""
    grid, shapes, blocks = _of_images(tensors[1], groups)
    _norm_backward[grid](*tensors, *shapes, rectified, *blocks)


def _of_images(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, int, int], tuple[int, int]]:
    """A program for every image and 64 channels, or a whole group if that is more."""
    count, channels, high, wide = x.shape
    block = min(channels, max(64, channels // groups))
    return (channels // block, count), (high * wide, channels, channels // groups), (block, min(high * wide, 64))


def _divisor(number: int, most: int) -> int:
    """The largest power of two up to `most` that divides it."""
    return min(most, number & -number)
