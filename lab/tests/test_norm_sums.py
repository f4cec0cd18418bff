"""Sums of clipped gradients by norms alone: the same sums as from every example's gradient, and no example above its clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
from torch import nn  # noqa: E402

from dpmerge.errors import TrainingError  # noqa: E402
from dpmerge_lab.training.networks import from_seed, mlp, small_cnn, wide_resnet  # noqa: E402
from dpmerge_lab.training.norm_sums import NormSums  # noqa: E402
from dpmerge_lab.training.private_sgd import clipped_sums  # noqa: E402


def pictures(count: int, dtype: Any = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(count, 3, 32, 32, generator=generator).to(dtype),
        torch.randint(0, 10, (count,), generator=generator),
    )


@pytest.mark.parametrize("build", [small_cnn, lambda: wide_resnet(10, 1), lambda: mlp(3 * 32 * 32)], ids=["cnn", "wrn", "mlp"])
@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_sums_are_those_of_the_examples_gradients(build: Callable[[], Any], dtype: Any, error: float) -> None:
    network = from_seed(build, 1).to(dtype)
    sums = NormSums(network)
    for count, clip in ((6, 0.1), (4, 5.0), (6, 100.0), (1, 0.5)):
        x, y = pictures(count, dtype)
        wanted, found = clipped_sums(network, x, y, clip), sums(x, y, clip)
        size = torch.stack([one.norm() for one in wanted]).norm()
        assert torch.stack([(a - b).norm() for a, b in zip(wanted, found, strict=True)]).norm() < error * size
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


def test_in_bfloat16_no_example_exceeds_the_clip() -> None:
    network = from_seed(lambda: wide_resnet(10, 1), 1)
    x, y = pictures(8)
    sums, clip = NormSums(network, half=True), 0.01
    alone = [torch.cat([one.flatten().double() for one in sums(x[i : i + 1], y[i : i + 1], clip)]) for i in range(8)]
    assert all(0.997 * clip < one.norm() <= clip for one in alone)
    together = torch.cat([one.flatten().double() for one in sums(x, y, clip)])
    assert (together - torch.stack(alone).sum(0)).norm() < 1e-5 * clip


def test_frozen_layers_are_left_out() -> None:
    network = from_seed(small_cnn, 1)
    network[0].requires_grad_(False)  # type: ignore[index]
    x, y = pictures(3)
    found = NormSums(network)(x, y, 1.0)
    for a, b in zip(clipped_sums(network, x, y, 1.0), found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(self.layer(x))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)), "Conv2d has no rule"),
        (nn.Sequential(nn.Conv2d(3, 6, 3, dilation=2)), "Conv2d has no rule"),
        (nn.Sequential(nn.LayerNorm(4)), "LayerNorm has no rule"),
    ],
)
def test_layers_without_a_rule_are_refused(network: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        NormSums(network)


def test_a_layer_that_is_used_twice_is_refused() -> None:
    sums = NormSums(Twice())
    with pytest.raises(TrainingError, match="passed through twice"):
        sums(torch.randn(2, 4), torch.tensor([0, 1]), 1.0)
