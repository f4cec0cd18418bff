"""Sums of clipped gradients without any example's gradient: its norm is found from what each layer saw and what came back.

Per layer an example's gradient is a product of its activations and backpropagated gradients, of which clipping needs only the
norm: by the product itself, where places are many, or by two Gram matrices where there are few (Li et al. 2022,
Bu et al. 2023). The sum is then one weighted gradient of the whole batch. In bfloat16 only activations and backpropagated
gradients are rounded; they decide what an example's gradient is. Norms and sums of it are in single precision. Of 64 examples
none moved a sum by more than 1.0000002 times what it was scaled to (WRN-16-4 with standardised weights on an H200; 1.00013
before the sums were kept from losing roundings, also for ResNet-18), so they are scaled to 0.999 of the clip there. Without
bfloat16 sums agree with Opacus' gradients to 4e-7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import TrainingError
from dpmerge_lab.training.networks import StandardisedConvolution
from dpmerge_lab.training.precision import exact_products

_HALF_MARGIN = 0.999


class NormSums:
    """Like `clipped_sums`, for networks of convolutions, linear layers and group normalisation, each passed through once.

    `half`: forward and backward pass in bfloat16. `compiled`: by torch.compile, for batches of up to `size` examples, which are
    all computed as one of that size.
    """

    def __init__(self, network: nn.Module, *, half: bool = False, compiled: bool = False, size: int = 512) -> None:
        self.network, self.half, self.compiled, self.size = network, half, compiled, size
        self.layers = [layer for layer in network.modules() if _trained(layer)]
        for layer in self.layers:
            if type(layer) not in _RULES or (isinstance(layer, nn.Conv2d) and _is_odd(layer)):
                raise TrainingError(f"{type(layer).__name__} has no rule for norms; use the gradients of the examples")
        self._seen: list[Tensor] = []
        self._taps: list[Tensor] = []
        self._look = torch.compile(self._forward) if compiled else self._forward
        # Without the option a fused kernel leaves out roundings to bfloat16 that `_weighted_product` counts on.
        exact: dict[str, str | int | bool | Callable[..., Any]] = {"emulate_precision_casts": True}
        self._add = torch.compile(self._summed, options=exact) if compiled else self._summed

    @property
    def precision(self) -> str:
        """In words, for what is kept of a run."""
        passes = "passes in bfloat16, norms and sums in float32" if self.half else "as the parameters'"
        return f"{'compiled; ' if self.compiled else ''}{passes}"

    def __call__(self, examples: Tensor, labels: Tensor, clip: float, copies: int = 1) -> list[Tensor]:
        """The sums for every trained parameter, in the network's order. An example may come as several copies in a row."""
        count = len(examples) // copies
        if self.compiled and count < self.size:
            examples, labels = _filled(examples, self.size * copies), _filled(labels, self.size * copies)
        if not self._taps or len(self._taps[0]) != len(examples):
            self._taps = self._new_taps(examples)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        hooks = [layer.register_forward_hook(self._remember) for layer in self.layers]
        for parameter in trained:  # their gradients are not wanted: only those at the layers' outputs
            parameter.requires_grad_(False)
        try:
            with torch.autocast(examples.device.type, torch.bfloat16, enabled=self.half):
                logits, seen = self._look(examples, self._taps)
            loss = functional.cross_entropy(_wide(logits), labels, reduction="sum") / copies
            backprops = torch.autograd.grad(loss, self._taps)
        finally:
            for hook in hooks:
                hook.remove()
            for parameter in trained:
                parameter.requires_grad_(True)
        real = torch.arange(len(examples) // copies, device=examples.device) < count
        with torch.no_grad(), exact_products():
            sums = self._add(seen, list(backprops), real, clip)
        return [sums[parameter] for parameter in trained]

    def _remember(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        tap = self._taps[len(self._seen)]
        self._seen.append(inputs[0].detach())
        return output + tap

    def _forward(self, examples: Tensor, taps: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        self._seen, self._taps = [], taps
        return self.network(examples), self._seen

    def _new_taps(self, examples: Tensor) -> list[Tensor]:
        """A zero for every number that a layer gives: the gradient there is that of the layer's output."""
        found: list[Tensor] = []
        order: list[nn.Module] = []

        def note(layer: nn.Module, _: Any, output: Tensor) -> None:
            order.append(layer)
            found.append(torch.zeros_like(output).requires_grad_(True))

        hooks = [layer.register_forward_hook(note) for layer in self.layers]
        with torch.no_grad(), torch.autocast(examples.device.type, torch.bfloat16, enabled=self.half):
            self.network(examples)
        for hook in hooks:
            hook.remove()
        if sorted(map(id, order)) != sorted(map(id, self.layers)):
            raise TrainingError("a layer is passed through twice, or not at all; use the gradients of the examples")
        self.layers = order
        return found

    def _summed(self, seen: list[Tensor], backprops: list[Tensor], real: Tensor, clip: float) -> dict[Tensor, Tensor]:
        # An input is what the layer computes with: rounded, where autocast rounds it.
        count = len(real)
        passes = zip(self.layers, seen, backprops, strict=True)
        found = [_RULES[type(one)](one, _together(a.to(g.dtype), count), _together(g, count)) for one, a, g in passes]
        norms = torch.stack([square for square, _ in found]).sum(0).sqrt()
        factors = (clip * (_HALF_MARGIN if self.half else NORM_MARGIN) / norms.clamp_min(1e-30)).clamp_max(1.0) * real
        sums: dict[Tensor, Tensor] = {}
        for _, weighted in found:
            sums.update(weighted(factors))
        return sums


def _trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _filled(tensor: Tensor, size: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])


def _together(tensor: Tensor, examples: int) -> Tensor:
    """With the copies of an example as a second axis."""
    return tensor.reshape(examples, -1, *tensor.shape[1:])


Weighted = Callable[[Tensor], dict[Tensor, Tensor]]
Found = tuple[Tensor, Weighted]  # each example's squared norm, and the weighted sum of gradients


def _convolution(layer: Any, a: Tensor, g: Tensor) -> Found:
    return _matrix(layer, _columns(layer, a), _places(g))


def _linear(layer: Any, a: Tensor, g: Tensor) -> Found:
    if a.dim() != 3:
        raise TrainingError("a linear layer over several places has no rule for norms; use the gradients of the examples")
    return _matrix(layer, _wide(a).mT, _wide(g).mT)


def _matrix(layer: Any, columns: Tensor, places: Tensor) -> Found:
    """By the product where places are many, which then also gives the sum; else by Gram matrices."""
    deep, wide, count = columns.shape[1], places.shape[1], places.shape[2]
    bias = None if layer.bias is None else _wide(places).sum(2)
    if count * (deep + wide) < deep * wide:
        gradients = None
        square = (_product(columns.mT, columns) * _product(places.mT, places)).sum((1, 2)).clamp_min(0)
    else:
        gradients = _product(places, columns.mT).flatten(1)
        square = gradients.square().sum(1)

    def weighted(factors: Tensor) -> dict[Tensor, Tensor]:
        total = _weighted_product(places, columns, factors) if gradients is None else factors @ gradients
        found = {layer.weight: total.view_as(layer.weight)}
        return found | ({} if bias is None else {layer.bias: factors @ bias})

    return (square if bias is None else square + bias.square().sum(1)), weighted


def _standardised_convolution(layer: StandardisedConvolution, a: Tensor, g: Tensor) -> Found:
    """The gradient of filters of mean 0 and length `gain`, brought back to the weights they are made of."""
    filters = _product(_places(g), _columns(layer, a).mT)
    directions, lengths, free = (one.flatten(1) for one in layer.parts())
    gain = (filters * directions).sum(2)
    along = gain[:, :, None] * directions * free
    gradients = ((filters - filters.mean(2, keepdim=True) - along) * (layer.gain[:, None] / lengths)).flatten(1)

    def weighted(factors: Tensor) -> dict[Tensor, Tensor]:
        return {layer.weight: (factors @ gradients).view_as(layer.weight), layer.gain: factors @ gain}

    return gradients.square().sum(1) + gain.square().sum(1), weighted


def _columns(layer: Any, a: Tensor) -> Tensor:
    """What the convolution sees at each place. (torch's `unfold` starts a kernel for every example.)"""
    (down, across), (high, wide), (step, side) = layer.padding, layer.kernel_size, layer.stride
    seen = functional.pad(a, (across, across, down, down)).unfold(3, high, step).unfold(4, wide, side)
    return seen.permute(0, 2, 5, 6, 1, 3, 4).reshape(len(a), a.shape[2] * high * wide, -1)


def _places(g: Tensor) -> Tensor:
    """What came back to each place, of all copies."""
    return g.flatten(3).transpose(1, 2).flatten(2)


def _weighted_product(g: Tensor, a: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factor_i · g_i a_iᵀ. In bfloat16 scaled gradients go in three parts, together as exact as single precision."""
    left, right = _wide(g) * factors[:, None, None], a.transpose(0, 1).flatten(1)
    if a.dtype != torch.bfloat16 or a.device.type != "cuda":
        return left.transpose(0, 1).flatten(1) @ _wide(right).mT
    total = None
    for _ in range(3):
        part = left.bfloat16()
        product = torch.mm(part.transpose(0, 1).flatten(1), right.mT, out_dtype=torch.float32)
        total = product if total is None else total + product
        left = left - part
    assert total is not None
    return total


def _is_odd(layer: nn.Conv2d) -> bool:
    return layer.groups != 1 or layer.padding_mode != "zeros" or layer.dilation != (1, 1) or isinstance(layer.padding, str)


def _group_norm(layer: Any, a: Tensor, g: Tensor) -> Found:
    normal = functional.group_norm(_wide(a).flatten(0, 1), layer.num_groups, eps=layer.eps).view_as(a)
    weight, bias = (x.flatten(3).sum((1, 3)) for x in (g * normal, _wide(g)))

    def weighted(factors: Tensor) -> dict[Tensor, Tensor]:
        return {layer.weight: factors @ weight, layer.bias: factors @ bias}

    return weight.square().sum(1) + bias.square().sum(1), weighted


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In single precision; of bfloat16 numbers products are exact, and their sums are kept in single precision."""
    if a.dtype == torch.bfloat16 and a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(_wide(a), _wide(b))


def _wide(numbers: Tensor) -> Tensor:
    return numbers.float() if numbers.dtype == torch.bfloat16 else numbers


_RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Found]] = {
    nn.Conv2d: _convolution,
    StandardisedConvolution: _standardised_convolution,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
}
