"""Networks for private training: no batch normalisation (it mixes examples, so no example has a gradient of its own).

Group normalisation takes its place, with 32 groups where the channels allow it: what Opacus' `ModuleValidator.fix` puts there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from dpmerge.errors import TrainingError

Convolution = Callable[[int, int, int, int, int], nn.Module]  # of inputs, outputs, size, stride and padding


class ResidualBlock(nn.Module):
    """Convolution, normalisation, ReLU, twice, around a shortcut (He et al. 2016): the block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, stride)
        self.norm1 = group_norm(outputs)
        self.conv2 = _convolution(outputs, outputs)
        self.norm2 = group_norm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), group_norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class StandardisedConvolution(nn.Conv2d):
    """Weight standardisation (Qiao et al. 2019): every filter has mean 0 and as length its `gain`, which is trained too.

    As in De et al. 2022; filters shorter than 0.01 before are lengthened a hundred times only.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size, stride, padding, bias=False)
        self.gain = nn.Parameter(torch.ones(outputs))

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The filters' directions, their lengths before, and 1 where a direction stays as it is when the filter grows."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        square = centred.square().sum((1, 2, 3), keepdim=True)
        lengths = square.clamp_min(1e-4).sqrt()
        return centred / lengths, lengths, (square > 1e-4).to(square.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with the standardised filters."""
        found: Tensor = self._conv_forward(x, self.parts()[0] * self.gain[:, None, None, None], None)
        return found


class PreactivatedBlock(nn.Module):
    """Normalisation and ReLU before each convolution: the block of wide residual networks (Zagoruyko and Komodakis 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, convolution: Convolution, groups: int) -> None:
        super().__init__()
        self.norm1 = group_norm(inputs, groups)
        self.conv1 = convolution(inputs, outputs, 3, stride, 1)
        self.norm2 = group_norm(outputs, groups)
        self.conv2 = convolution(outputs, outputs, 3, 1, 1)
        self.shortcut = convolution(inputs, outputs, 1, stride, 0) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        active = torch.relu(self.norm1(x))
        y: Tensor = self.conv2(torch.relu(self.norm2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


def resnet18(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-18 as the literature adapts it to 32×32 images: a 3×3 first convolution with stride 1, no max-pooling."""
    layers = [_convolution(channels, 64), group_norm(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    return _initialised(nn.Sequential(*layers, *_head(512, classes)))


def wide_resnet(
    depth: int = 16, width: int = 4, classes: int = 10, channels: int = 3, *, standardised: bool = False
) -> nn.Module:
    """WRN-depth-width; WRN-16-4 is the usual network of private training on CIFAR-10.

    As De et al. 2022 trained it its convolutions are `standardised`, and normalisation is in 16 groups.
    """
    blocks, groups = (depth - 4) // 6, 16 if standardised else 32
    convolution: Convolution = StandardisedConvolution if standardised else partial(nn.Conv2d, bias=False)
    layers = [convolution(channels, 16, 3, 1, 1)]
    inputs = 16
    for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for index in range(blocks):
            layers.append(PreactivatedBlock(inputs, outputs, stride if index == 0 else 1, convolution, groups))
            inputs = outputs
    return _initialised(nn.Sequential(*layers, group_norm(inputs, groups), nn.ReLU(), *_head(inputs, classes)))


def small_cnn(channels: int = 3, classes: int = 10) -> nn.Module:
    """Two convolutions and one linear layer: for quick runs and tests."""
    return _initialised(
        nn.Sequential(
            nn.Conv2d(channels, 16, 3, 2, 1),
            group_norm(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            group_norm(32),
            nn.ReLU(),
            *_head(32, classes),
        )
    )


def mlp(features: int, hidden: int = 128, classes: int = 10) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(shape: tuple[int, int, int], classes: int = 10) -> nn.Module:
    """Two convolutions and one linear layer over what they found where; tanh, which keeps private gradients small.

    (Papernot et al. 2021, Tempered sigmoid activations for deep learning with differential privacy.)
    """
    channels, height, width = shape
    places = -(-height // 4) * -(-width // 4)  # each convolution halves both, rounding up
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, 2, 1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * places, classes),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet18": resnet18, "wrn-16-4": wide_resnet, "small-cnn": small_cnn}


def build(name: str, shape: tuple[int, ...], classes: int, hidden: int = 128) -> nn.Module:
    """The network of this name for inputs of this shape: any for `mlp`, (channels, height, width) for the others."""
    if name == "mlp":
        return mlp(math.prod(shape), hidden, classes)
    if len(shape) != 3:
        raise TrainingError(f"{name} needs images (channels, height, width); the inputs have shape {shape}: use mlp")
    if name == "cnn":
        return cnn((shape[0], shape[1], shape[2]), classes)
    return resnet18(classes, shape[0]) if name == "resnet18" else wide_resnet(classes=classes, channels=shape[0])


def from_seed(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network whose first parameters come from `seed` alone: public, so that many runs may start from one point.

    This seed decides nothing else: noise and batches of private training have generators of their own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def group_norm(channels: int, groups: int = 32) -> nn.Module:
    """Group normalisation with so many groups, or fewer where they do not divide the channels."""
    return nn.GroupNorm(math.gcd(groups, channels), channels)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def _head(channels: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def _initialised(network: nn.Module) -> nn.Module:
    """Convolutions as in torchvision's ResNets; everything else as torch has it."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
