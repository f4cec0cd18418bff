"""Sums of clipped gradients by norms alone: the same sums as from every example's gradient, and no example above its clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from dpmerge.datasets import NORM_MARGIN  # noqa: E402
from dpmerge.errors import TrainingError  # noqa: E402
from dpmerge_lab.training import fused, norm_sums  # noqa: E402
from dpmerge_lab.training.augmentation import Augmentation  # noqa: E402
from dpmerge_lab.training.networks import StandardisedConvolution, from_seed, mlp, resnet18, small_cnn, wide_resnet  # noqa: E402
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
    for count, clip, copies in ((6, 0.1, 1), (4, 5.0, 2), (6, 100.0, 1), (6, 0.1, 3), (1, 0.5, 1)):
        x, y = pictures(count, dtype)
        y = y[::copies].repeat_interleave(copies)
        wanted, found = clipped_sums(network, x, y, clip, copies), sums(x, y, clip, copies)
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


@pytest.mark.parametrize("copies", [1, 3])
def test_filters_that_are_standardised(copies: int) -> None:
    """Against autograd, example by example: Opacus has no rule for them. One filter is too short to get its length."""
    network = from_seed(lambda: wide_resnet(10, 1, standardised=True), 1).double()
    layers = [layer for layer in network.modules() if isinstance(layer, StandardisedConvolution)]
    assert len(layers) == 9  # every convolution
    with torch.no_grad():
        layers[1].weight[0] *= 1e-3
        layers[2].gain.add_(0.5)
    x, y = pictures(6, torch.float64)
    y = y[::copies].repeat_interleave(copies)
    parameters = list(network.parameters())
    for clip in (0.1, 1e6):
        wanted = [torch.zeros_like(parameter) for parameter in parameters]
        for i in range(0, 6, copies):
            loss = nn.functional.cross_entropy(network(x[i : i + copies]), y[i : i + copies])
            gradient = torch.autograd.grad(loss, parameters)
            factor = min(1.0, clip * NORM_MARGIN / float(torch.stack([one.norm() for one in gradient]).norm()))
            wanted = [a + factor * b for a, b in zip(wanted, gradient, strict=True)]
        for a, b in zip(wanted, NormSums(network)(x, y, clip, copies), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def resnet_in_small() -> Any:
    """Its first two blocks: a normalisation before a ReLU, and one before a sum."""
    return nn.Sequential(*list(resnet18().children())[:5], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    ("build", "rectified"),
    [(lambda: wide_resnet(10, 1, standardised=True), 7), (lambda: wide_resnet(10, 1), 7), (resnet_in_small, 3)],
    ids=["standardised", "wrn", "resnet"],
)
def test_what_is_traced_for_a_gpu_gives_the_same_sums(build: Callable[[], Any], rectified: int, copies: int) -> None:
    """The program with its kernels in place; on a CPU torch's own operations stand for each kernel."""
    network = from_seed(build, 1).double()
    x, y = pictures(4 * copies, torch.float64)
    given = [x[:, :, :16, :16], y[:4].repeat_interleave(copies), torch.tensor([True, True, True, False])]
    given.append(torch.full((), 0.5, dtype=torch.float64))
    plain, fast = (norm_sums.Step(network, half=False, by_kernels=by_kernels) for by_kernels in (False, True))
    traced = norm_sums.traced(fast, given)
    called = [node for node in traced.graph.nodes if str(node.target).startswith("dpmerge_lab")]
    assert {str(node.target) for node in called} >= {
        "dpmerge_lab.group_norm_backward.default",
        "dpmerge_lab.filter_gradients.default",
    }
    assert sum(node.args[-1] is True for node in called if "group_norm." in str(node.target)) == rectified
    wanted, found = plain.with_parameters(plain.parameters_now(), *given), traced(fast.parameters_now(), *given)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("shape", "there_is"), [({}, True), ({"stride": (1, 2)}, False), ({"padding": (1, 0)}, False)])
def test_filters_that_differ_in_their_directions_have_no_kernel(shape: dict[str, Any], there_is: bool) -> None:
    layer = nn.Conv2d(16, 16, 3, **{"padding": 1, **shape})
    a = torch.zeros(1, 16, 16, 16)
    assert fused.has_filter_gradients(layer, a, torch.zeros(1, 16, 16, 16), 1) == there_is


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, as it compiles
def test_compiled_it_gives_the_same_sums_and_takes_no_more_than_it_was_compiled_for() -> None:
    network = from_seed(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.Tanh(), nn.Linear(4, 10)), 1)
    sums, (x, y) = NormSums(network, compiled=True, size=4), pictures(5)
    for count in (3, 4):
        with torch.no_grad():
            network[1].weight.mul_(1.1)  # type: ignore[index]
        for a, b in zip(clipped_sums(network, x[:count], y[:count], 0.5), sums(x[:count], y[:count], 0.5), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with pytest.raises(TrainingError, match="compiled for 4"):
        sums(x, y, 0.5)


@pytest.mark.parametrize("half", [False, True])
def test_a_compiled_program_with_wrong_sums_is_refused(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it happened on a GPU: only the last layer had its gradient. What is small beside the rest is not looked at."""
    network = from_seed(small_cnn, 1)
    x, y = pictures(6)

    def program(step: Any, given: list[Any]) -> Any:
        def run(*given: Any) -> Any:
            sums = step.with_parameters(step.parameters_now(), *given)
            return [one if index >= first else torch.randn_like(one) for index, one in enumerate(sums)]

        return run

    monkeypatch.setattr(norm_sums, "_program", program)
    first = 0
    for copies in (1, 2):
        given = x, y[::copies].repeat_interleave(copies), 0.5, copies
        found = NormSums(network, half=half, compiled=True, size=8)(*given)
        for a, b in zip(found, NormSums(network, half=half)(*given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    first = 8
    with pytest.raises(TrainingError, match=r"0\.weight: the compiled sum of gradients is not that of the examples"):
        NormSums(network, half=half, compiled=True, size=8)(x, y, 0.5)


def test_standardised_filters_have_mean_zero_and_the_length_of_their_gain() -> None:
    layer = StandardisedConvolution(3, 5, 3)
    with torch.no_grad():
        layer.gain.copy_(torch.arange(1.0, 6.0))
    # An image with a single one shows the filter.
    shown = layer(torch.eye(27).view(27, 3, 3, 3)).flatten(1)
    torch.testing.assert_close(shown.norm(dim=0), layer.gain.detach())
    torch.testing.assert_close(shown.mean(0), torch.zeros(5), rtol=0, atol=1e-6)


def test_views_are_the_image_moved_and_mirrored_with_its_reflection_at_the_border() -> None:
    image = torch.arange(25.0).view(1, 1, 5, 5)
    padded = np.pad(image[0, 0].numpy(), 2, mode="reflect")
    possible = {
        part.tobytes()
        for down in range(5)
        for right in range(5)
        for part in (padded[down : down + 5, right : right + 5], padded[down : down + 5, right : right + 5][:, ::-1])
    }
    views = Augmentation(copies=2000, border=2)(image, torch.Generator().manual_seed(1))
    assert {np.ascontiguousarray(view[0].numpy()).tobytes() for view in views} == possible
    together = Augmentation(3, 0)(torch.cat([image, image + 100]), torch.Generator().manual_seed(1))
    assert [bool((view >= 100).all()) for view in together] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("given", [{"copies": 0}, {"copies": 1, "border": -1}])
def test_no_views_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(TrainingError, match="at least one copy"):
        Augmentation(**given)


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
