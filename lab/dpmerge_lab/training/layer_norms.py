"""Every example's norm at one layer, and the weighted sum of gradients there, from what it saw and what came back.

An example's gradient is a product of the two, of which clipping needs only the norm: by the product itself, where places are
many, or by two Gram matrices where there are few (Li et al. 2022, Bu et al. 2023). Both are in single precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpmerge.errors import TrainingError
from dpmerge_lab.training import fused
from dpmerge_lab.training.networks import StandardisedConvolution

Weighted = Callable[[Tensor], dict[Tensor, Tensor]]
Found = tuple[Tensor, Weighted]  # each example's squared norm, and the weighted sum of gradients


@dataclass(frozen=True)
class Pass:
    """A layer, what it saw and what came back, for all examples and the copies of each in a row."""

    layer: Any
    a: Tensor
    g: Tensor
    copies: int
    by_kernels: bool
    of_norm: tuple[Tensor, Tensor] | None  # each image's gradients of weight and bias, if a kernel found them on the way

    def together(self, tensor: Tensor) -> Tensor:
        """With the copies of an example as a second axis."""
        return tensor.reshape(-1, self.copies, *tensor.shape[1:])

    def columns(self) -> Tensor:
        """What a convolution sees at each place, of all copies. (torch's `unfold` starts a kernel for every example.)"""
        (down, across), (high, wide), (step, side) = self.layer.padding, self.layer.kernel_size, self.layer.stride
        seen = functional.pad(self.a, (across, across, down, down)).unfold(2, high, step).unfold(3, wide, side)
        ordered = self.together(seen).permute(0, 5, 6, 2, 1, 3, 4)
        return ordered.reshape(len(ordered), high * wide * self.a.shape[1], -1)

    def places(self) -> Tensor:
        """What came back to each place of an image, of all copies."""
        return self.together(self.g).flatten(3).transpose(1, 2).flatten(2)

    def filters(self) -> Tensor:
        """Every example's gradient of the filters as a convolution has them: examples, outputs, then rows, columns, inputs."""
        layer = self.layer
        if self.by_kernels and fused.has_filter_gradients(layer, self.a, self.g, self.copies):
            shape = (layer.kernel_size[0], layer.stride[0], layer.padding[0])
            found: Tensor = fused.filter_gradients(self.a, self.g, self.copies, *shape)
            return found
        return _product(self.places(), self.columns().mT)

    def as_filters(self, rows: Tensor) -> Tensor:
        """From rows, columns and inputs to the order of the layer's weight."""
        outputs, inputs, high, wide = self.layer.weight.shape
        return rows.view(outputs, high, wide, inputs).permute(0, 3, 1, 2)

    def with_bias(self, square: Tensor, weight: Callable[[Tensor], Tensor], places: Tensor) -> Found:
        """What is found of the weight, with what comes back to all places as the gradient of the bias."""
        layer = self.layer
        if layer.bias is None:
            return square, lambda factors: {layer.weight: weight(factors)}
        bias = fused.wide(places).sum(2)
        return square + bias.square().sum(1), lambda factors: {layer.weight: weight(factors), layer.bias: factors @ bias}


def _convolution(one: Pass) -> Found:
    """By the product where places are many, which then also gives the sum; else by Gram matrices."""
    wide, deep, places = one.layer.weight.shape[0], one.layer.weight[0].numel(), one.places()
    if places.shape[2] * (deep + wide) < deep * wide:
        columns = one.columns()
        square, rows = _by_gram(columns, places), partial(_weighted_product, places, columns)
    else:
        filters = one.filters()
        square, rows = filters.square().sum(2).sum(1), partial(_weighted_sum, filters)
    return one.with_bias(square, lambda factors: one.as_filters(rows(factors)), places)


def _linear(one: Pass) -> Found:
    if one.a.dim() != 2:
        raise TrainingError("a linear layer over several places has no rule for norms; use the gradients of the examples")
    columns, places = (fused.wide(one.together(tensor)).mT for tensor in (one.a, one.g))
    square = _by_gram(columns, places)
    return one.with_bias(square, partial(_weighted_product, places, columns), places)


def _by_gram(columns: Tensor, places: Tensor) -> Tensor:
    return (_product(columns.mT, columns) * _product(places.mT, places)).sum((1, 2)).clamp_min(0)


def _weighted_sum(gradients: Tensor, factors: Tensor) -> Tensor:
    return (factors @ gradients.flatten(1)).view(gradients.shape[1:])


def _standardised_convolution(one: Pass) -> Found:
    """The gradient of filters of mean 0 and length `gain`, brought back to the weights they are made of."""
    layer, filters = one.layer, one.filters()
    directions, lengths, free = (part.permute(0, 2, 3, 1).flatten(1) for part in layer.parts())

    def brought_back(filters: Tensor) -> tuple[Tensor, Tensor]:
        gain = (filters * directions).sum(-1)
        along = gain[..., None] * directions * free
        return (filters - filters.mean(-1, keepdim=True) - along) * (layer.gain[:, None] / lengths), gain

    def weighted(factors: Tensor) -> dict[Tensor, Tensor]:
        # Bringing back is linear, and the same for all examples: it can wait until they are summed.
        weight, gain = brought_back(_weighted_sum(filters, factors))
        return {layer.weight: one.as_filters(weight), layer.gain: gain}

    weight, gain = brought_back(filters)
    return weight.square().sum(2).sum(1) + gain.square().sum(1), weighted


def _group_norm(one: Pass) -> Found:
    layer, found = one.layer, one.of_norm
    if found is None:
        normal, g = functional.group_norm(fused.wide(one.a), layer.num_groups, eps=layer.eps), fused.wide(one.g)
        found = (g * normal).flatten(2).sum(2), g.flatten(2).sum(2)
    weight, bias = (one.together(tensor).sum(1) for tensor in found)
    square = weight.square().sum(1) + bias.square().sum(1)
    return square, lambda factors: {layer.weight: factors @ weight, layer.bias: factors @ bias}


def _weighted_product(g: Tensor, a: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factor_i · g_i a_iᵀ. In bfloat16 scaled gradients go in three parts, together as exact as single precision."""
    left, right = fused.wide(g) * factors[:, None, None], a.transpose(0, 1).flatten(1)
    if a.dtype != torch.bfloat16 or a.device.type != "cuda":
        return left.transpose(0, 1).flatten(1) @ fused.wide(right).mT
    total = None
    for _ in range(3):
        part = left.bfloat16()
        product = torch.mm(part.transpose(0, 1).flatten(1), right.mT, out_dtype=torch.float32)
        total = product if total is None else total + product
        left = left - part
    assert total is not None
    return total


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In single precision; of bfloat16 numbers products are exact, and their sums are kept in single precision."""
    if a.dtype == torch.bfloat16 and a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(fused.wide(a), fused.wide(b))


RULES: dict[type[nn.Module], Callable[[Pass], Found]] = {
    nn.Conv2d: _convolution,
    StandardisedConvolution: _standardised_convolution,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
}


def has_rule(layer: nn.Module) -> bool:
    """Whether norms of this layer's gradients can be found so."""
    return type(layer) in RULES and not (isinstance(layer, nn.Conv2d) and _is_odd(layer))


def _is_odd(layer: nn.Conv2d) -> bool:
    return layer.groups != 1 or layer.padding_mode != "zeros" or layer.dilation != (1, 1) or isinstance(layer.padding, str)
