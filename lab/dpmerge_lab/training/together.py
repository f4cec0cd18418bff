"""Many private runs of one small network in one program: each has parameters, batches and noise of its own.

The network is `networks.cnn`, written as matrix products over patches of the images: for many networks at once torch's
convolutions would be computed in as many groups as there are examples, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpmerge.datasets import NORM_MARGIN
from dpmerge_lab.training.networks import cnn, from_seed
from dpmerge_lab.training.precision import exact_products
from dpmerge_lab.training.private_sgd import Randomness
from dpmerge_lab.training.recipe import LabRecipe

Networks = dict[str, Tensor]  # parameters by name, a network for each index of the first axis

_PATCH, _STRIDE, _PADDING = 3, 2, 1  # of both convolutions
_EVEN = 32  # batches are filled up to a multiple, so that memory is found again


def patches(images: Tensor) -> Tensor:
    """What a convolution sees at each place, as columns: channels and positions first, then places.

    By slices: torch's `unfold` takes one image after the other on a GPU.
    """
    height, width = ((side - 1) // _STRIDE + 1 for side in images.shape[-2:])
    wide = functional.pad(images, (_PADDING,) * 4)
    slices = [
        wide[..., row : row + _STRIDE * height : _STRIDE, column : column + _STRIDE * width : _STRIDE]
        for row in range(_PATCH)
        for column in range(_PATCH)
    ]
    return torch.stack(slices, dim=-3).flatten(-4, -3).flatten(-2)


def _layers(networks: Networks, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What each layer sees and gives, of square images given by their `patches`; networks come first, and may see the same."""

    def convolved(name: str, columns: Tensor) -> Tensor:
        filters, biases = networks[f"{name}.weight"].flatten(2), networks[f"{name}.bias"]
        return filters[:, None] @ columns + biases[:, None, :, None]

    first = convolved("0", columns).requires_grad_(torch.is_grad_enabled())  # the parameters need no gradients of their own
    side = math.isqrt(first.shape[-1])
    seen = patches(torch.tanh(first).unflatten(-1, (side, side)))
    second = convolved("2", seen)
    last = torch.tanh(second).flatten(2)
    return [(columns, first), (seen, second), (last, last @ networks["5.weight"].mT + networks["5.bias"][:, None])]


def clipped_sums(networks: Networks, columns: Tensor, labels: Tensor, real: Tensor, clip: float) -> Networks:
    """For each network the sum of its own examples' gradients, each scaled to norm at most `clip`; of the `real` ones only.

    All have the networks as first axis and the examples as second. An example's gradient of the last weight, the largest, is a
    product of two vectors and so is its norm: it is never made.
    """
    with exact_products():
        with torch.enable_grad():
            layers = _layers(networks, columns)
            scores = layers[-1][1].flatten(0, 1)
            loss = functional.cross_entropy(scores, labels.flatten(), reduction="sum")
            back = torch.autograd.grad(loss, [given for _, given in layers])
        last, to_scores = layers[-1][0].detach(), back[-1]
        gradients = {"5.bias": to_scores}
        for name, (seen, _), g in zip("02", layers[:2], back[:2], strict=True):
            gradients |= {f"{name}.weight": g @ seen.detach().mT, f"{name}.bias": g.sum(-1)}
        squares = [one.flatten(2).square().sum(2) for one in gradients.values()]
        square = torch.stack([*squares, to_scores.square().sum(2) * last.square().sum(2)]).sum(0)
        factors = (clip * NORM_MARGIN / square.sqrt().clamp_min(1e-30)).clamp_max(1.0) * real
        sums = {name: torch.bmm(factors[:, None], one.flatten(2)).view_as(networks[name]) for name, one in gradients.items()}
        return sums | {"5.weight": (factors[..., None] * to_scores).mT @ last}


def first(shape: tuple[int, int, int], seed: int, count: int, where: torch.device) -> Networks:
    """So many equal networks for images of this shape, from a public seed."""
    network = from_seed(lambda: cnn(shape), seed).to(where)
    return {name: tensor.detach().expand(count, *tensor.shape).clone() for name, tensor in network.named_parameters()}


def steps(
    networks: Networks, columns: Tensor, labels: Tensor, recipe: LabRecipe, randomness: Sequence[Randomness]
) -> Iterator[int]:
    """Take the recipe's steps with all networks, in place; each is answered by its number."""
    expected, rates = recipe.expected_batch(len(labels)), recipe.learning_rates()
    everyone = np.arange(len(labels))
    # A processor takes one network after the other: what it computes stays in its cache.
    places = [slice(k, k + 1) for k in range(len(randomness))] if labels.device.type == "cpu" else [slice(None)]
    for step in range(1, recipe.steps + 1):
        batches = [everyone[recipe.batch(one.sampler, len(labels), step)] for one in randomness]
        size = -(-max(1, *(len(batch) for batch in batches)) // _EVEN) * _EVEN
        chosen = np.stack([np.pad(batch, (0, size - len(batch))) for batch in batches])
        real = np.arange(size) < np.array([[len(batch)] for batch in batches])
        which = torch.from_numpy(chosen).to(labels.device)
        those = torch.from_numpy(real).to(labels.device)
        parts = []
        for part in places:
            some = {name: tensor[part] for name, tensor in networks.items()}
            parts.append(clipped_sums(some, columns[which[part]], labels[which[part]], those[part], recipe.clip))
        noise = [one.noise.like([tensor[index] for tensor in networks.values()]) for index, one in enumerate(randomness)]
        for position, (name, tensor) in enumerate(networks.items()):
            fresh = torch.stack([drawn[position] for drawn in noise])
            total = torch.cat([one[name] for one in parts])
            tensor -= rates[step - 1] / expected * (total + recipe.noise_multiplier * recipe.clip * fresh)
        yield step


def probabilities(networks: Networks, columns: Tensor, at_once: int = 1000) -> Tensor:
    """Of every network for every image: networks, images, classes."""
    with torch.no_grad(), exact_products():
        scores = [_layers(networks, part)[-1][1] for part in columns.split(at_once)]
        return torch.cat([torch.softmax(one.double(), dim=2) for one in scores], dim=1)
