"""Operations of a private step that are one kernel on a GPU, for `NormSums`; elsewhere they are computed by torch's own.

torch.compile takes them as they are, and gives them tensors as they lie: each brings what it gets to channels last first.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional


def has_filter_gradients(layer: nn.Conv2d, a: Tensor, g: Tensor, copies: int) -> bool:
    """Whether there is a kernel for such a layer: 1×1 or 3×3, alike in both directions, channels and places by sixteens."""
    even = (a.shape[1], g.shape[1], copies * g.shape[2] * g.shape[3])
    alike = layer.stride[0] == layer.stride[1] and layer.padding[0] == layer.padding[1]
    return layer.kernel_size in ((1, 1), (3, 3)) and alike and all(number % 16 == 0 for number in even)


@torch.library.custom_op("dpmerge_lab::filter_gradients", mutates_args=(), device_types="cuda")
def filter_gradients(a: Tensor, g: Tensor, copies: int, size: int, stride: int, padding: int) -> Tensor:
    """Every example's gradient of a convolution's filters, from its inputs and what came back; it has `copies` in a row.

    The result has examples, outputs, and then rows, columns and inputs of a filter.
    """
    from dpmerge_lab.training import kernels

    out = _filters(a, g, copies, size)
    kernels.filter_gradients(_last(a), _last(g), out, copies, size, stride, padding)
    return out


@filter_gradients.register_fake
def _(a: Tensor, g: Tensor, copies: int, size: int, stride: int, padding: int) -> Tensor:
    return _filters(a, g, copies, size)


@filter_gradients.register_kernel("cpu")
def _(a: Tensor, g: Tensor, copies: int, size: int, stride: int, padding: int) -> Tensor:
    seen = functional.unfold(wide(a), size, padding=padding, stride=stride).view(
        len(a) // copies, copies, a.shape[1], size**2, -1
    )
    found = torch.einsum("nvop,nvckp->nokc", wide(g).reshape(len(a) // copies, copies, g.shape[1], -1), seen)
    return found.flatten(2).contiguous()


def _filters(a: Tensor, g: Tensor, copies: int, size: int) -> Tensor:
    return a.new_empty(
        (len(g) // copies, g.shape[1], size * size * a.shape[1]), dtype=torch.promote_types(a.dtype, torch.float32)
    )


def has_group_norm(layer: nn.GroupNorm, x: Tensor) -> bool:
    """Whether there are kernels for such a layer: powers of two."""
    numbers = (layer.num_channels, layer.num_groups, x.shape[2:].numel())
    return layer.affine and x.dim() == 4 and all(number & (number - 1) == 0 for number in numbers)


@torch.library.custom_op("dpmerge_lab::group_norm", mutates_args=(), device_types="cuda")
def group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised images, if asked without what is negative; and each image's and channel's mean and scale."""
    from dpmerge_lab.training import kernels

    y, mean, scale = _of_norm(x)
    kernels.norm(_last(x), weight, bias, y, mean, scale, groups, eps, rectified)
    return y, mean, scale


@group_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, rectified: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _of_norm(x)


@group_norm.register_kernel("cpu")
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, rectified: bool) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, scale = _of_norm(x)
    rows = wide(x).reshape(len(x), groups, -1)
    deviation = (rows.var(2, correction=0) + eps).rsqrt()
    for to, one in ((mean, rows.mean(2)), (scale, deviation)):
        to.copy_(one.repeat_interleave(x.shape[1] // groups, dim=1))
    normal = functional.group_norm(wide(x), groups, weight, bias, eps)
    y.copy_(normal.relu() if rectified else normal)
    return y, mean, scale


@torch.library.custom_op("dpmerge_lab::group_norm_backward", mutates_args=(), device_types="cuda")
def group_norm_backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the images, and of weight and bias from each image alone."""
    from dpmerge_lab.training import kernels

    found = _of_norm(x)
    kernels.norm_backward((_last(g), _last(x), weight, bias, mean, scale, *found), groups, rectified)
    return found


@group_norm_backward.register_fake
def _(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _of_norm(x)


@group_norm_backward.register_kernel("cpu")
def _(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, groups: int, rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    out, weights, biases = _of_norm(x)
    normal = (wide(x) - mean[:, :, None, None]) * scale[:, :, None, None]
    live = normal * weight[:, None, None] + bias[:, None, None] > 0 if rectified else torch.ones_like(normal)
    g = wide(g) * live
    weights.copy_((g * normal).sum((2, 3)))
    biases.copy_(g.sum((2, 3)))
    inner = g * weight[:, None, None]
    level, along = (
        one.reshape(len(x), groups, -1).mean(2).repeat_interleave(x.shape[1] // groups, dim=1)[:, :, None, None]
        for one in (inner, inner * normal)
    )
    out.copy_((inner - level - normal * along) * scale[:, :, None, None])
    return out, weights, biases


def _of_norm(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, torch.float32)
    first, second = (x.new_empty(x.shape[:2], dtype=dtype) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.channels_last), first, second


def wide(tensor: Tensor) -> Tensor:
    """In single precision, or in double where it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def normalised(x: Tensor, layer: nn.GroupNorm, found: dict[nn.Module, tuple[Tensor, Tensor]]) -> Tensor:
    """Group normalisation by the two above. `found` gets each image's gradients of weight and bias on the way back."""
    y: Tensor = _Norm.apply(x, layer, found)  # type: ignore[no-untyped-call]
    return y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, layer: nn.GroupNorm, found: dict[nn.Module, tuple[Tensor, Tensor]]) -> Any:
        y, mean, scale = group_norm(x, layer.weight, layer.bias, layer.num_groups, layer.eps, False)
        context.save_for_backward(x, layer.weight, layer.bias, mean, scale)
        context.layer, context.found = layer, found
        return y

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, weight, bias, mean, scale = context.saved_tensors
        g = gradients[0].to(x.dtype)
        out, weights, biases = group_norm_backward(g, x, weight, bias, mean, scale, context.layer.num_groups, False)
        context.found[context.layer] = (weights, biases)
        return out, None, None


def rectify(traced: GraphModule) -> None:
    """Let a normalisation do the ReLU that follows it, forwards and backwards, where nothing else uses what is before it."""
    aten, ours, graph = torch.ops.aten, torch.ops.dpmerge_lab, traced.graph
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph.eliminate_dead_code()
    for relu in graph.find_nodes(op="call_function", target=aten.relu.default):
        before = relu.args[0]
        if before.target is not operator.getitem or len(before.users) > 1:
            continue
        masks = [user for user in relu.users if user.target is aten.threshold_backward.default]
        back = [user for mask in masks for user in mask.users]
        if before.args[0].target is not ours.group_norm.default or not all(
            one.target is ours.group_norm_backward.default and one.args[0] in masks for one in back
        ):
            continue
        for one in (before.args[0], *back):
            one.args = (*one.args[:-1], True)
        for mask in masks:
            mask.replace_all_uses_with(mask.args[0])
            graph.erase_node(mask)
        relu.replace_all_uses_with(before)
        graph.erase_node(relu)
    graph.eliminate_dead_code()
    traced.recompile()
