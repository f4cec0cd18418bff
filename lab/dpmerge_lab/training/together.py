"""Many private runs of one small network in one program: each has parameters, batches and noise of its own.

The network is `networks.cnn`, written as matrix products over patches of the images: for many networks at once torch's
convolutions would be computed in as many groups as there are examples, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
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


def scores(network: Mapping[str, Tensor], columns: Tensor) -> Tensor:
    """Of one network for one square image, given by its `patches`."""
    seen = torch.tanh(network["0.weight"].flatten(1) @ columns + network["0.bias"][:, None])
    side = math.isqrt(seen.shape[1])
    seen = patches(seen.unflatten(1, (side, side)))
    seen = torch.tanh(network["2.weight"].flatten(1) @ seen + network["2.bias"][:, None])
    return network["5.weight"] @ seen.flatten() + network["5.bias"]


def clipped_sums(networks: Networks, columns: Tensor, labels: Tensor, real: Tensor, clip: float) -> Networks:
    """For each network the sum of its own examples' gradients, each scaled to norm at most `clip`; of the `real` ones only.

    All have the networks as first axis and the examples as second.
    """

    def loss(network: Networks, columns: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(scores(network, columns), label)

    with exact_products():
        gradients = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(networks, columns, labels)
        square = torch.stack([one.flatten(2).square().sum(2) for one in gradients.values()]).sum(0)
        factors = (clip * NORM_MARGIN / square.sqrt().clamp_min(1e-30)).clamp_max(1.0) * real
        return {
            name: torch.bmm(factors[:, None], one.flatten(2))[:, 0].unflatten(1, one.shape[2:])
            for name, one in gradients.items()
        }


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
    for step in range(1, recipe.steps + 1):
        batches = [everyone[recipe.batch(one.sampler, len(labels), step)] for one in randomness]
        size = -(-max(1, *(len(batch) for batch in batches)) // _EVEN) * _EVEN
        chosen = np.stack([np.pad(batch, (0, size - len(batch))) for batch in batches])
        real = np.arange(size) < np.array([[len(batch)] for batch in batches])
        which = torch.from_numpy(chosen).to(labels.device)
        those = torch.from_numpy(real).to(labels.device)
        total = clipped_sums(networks, columns[which], labels[which], those, recipe.clip)
        noise = [one.noise.like([tensor[index] for tensor in networks.values()]) for index, one in enumerate(randomness)]
        for position, (name, tensor) in enumerate(networks.items()):
            fresh = torch.stack([drawn[position] for drawn in noise])
            tensor -= rates[step - 1] / expected * (total[name] + recipe.noise_multiplier * recipe.clip * fresh)
        yield step


def probabilities(networks: Networks, columns: Tensor, at_once: int = 1000) -> Tensor:
    """Of every network for every image: networks, images, classes."""
    every = vmap(vmap(scores, in_dims=(None, 0)), in_dims=(0, None))
    with torch.no_grad(), exact_products():
        return torch.cat([torch.softmax(every(networks, part).double(), dim=2) for part in columns.split(at_once)], dim=1)
