"""Sums of clipped gradients by norms alone: the same sums as from every example's gradient, and no example above its clip."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks import gpu  # noqa: E402
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


RECTIFIED = pytest.mark.parametrize(
    ("build", "rectified"),
    [(lambda: wide_resnet(10, 1, standardised=True), 7), (lambda: wide_resnet(10, 1), 7), (resnet_in_small, 3)],
    ids=["standardised", "wrn", "resnet"],
)


def traced(step: norm_sums.Step, given: list[Any], rectified: int) -> Any:
    """The program with its kernels in place, so many of which do a ReLU too; on a CPU torch's own operations stand for each."""
    program = norm_sums.traced(step, given)
    called = [node for node in program.graph.nodes if str(node.target).startswith("dpmerge_lab")]
    assert {str(node.target) for node in called} >= {
        "dpmerge_lab.group_norm_backward.default",
        "dpmerge_lab.filter_gradients.default",
    }
    assert sum(node.args[-1] is True for node in called if "group_norm." in str(node.target)) == rectified
    return program


@pytest.mark.parametrize("copies", [1, 2])
@RECTIFIED
def test_what_is_traced_for_a_gpu_gives_the_same_sums(build: Callable[[], Any], rectified: int, copies: int) -> None:
    network = from_seed(build, 1).double()
    x, y = pictures(4 * copies, torch.float64)
    given = [x[:, :, :16, :16], y[:4].repeat_interleave(copies), torch.tensor([True, True, True, False])]
    given.append(torch.full((), 0.5, dtype=torch.float64))
    plain, fast = (norm_sums.Step(network, half=False, by_kernels=by_kernels) for by_kernels in (False, True))
    program = traced(fast, given, rectified)
    wanted, found = plain.with_parameters(plain.parameters_now(), *given), program(fast.parameters_now(), *given)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@RECTIFIED
def test_traced_in_bfloat16_no_example_exceeds_the_clip(build: Callable[[], Any], rectified: int) -> None:
    """The casts of autocast are in the graph then."""
    step = norm_sums.Step(from_seed(build, 1), half=True, by_kernels=True)
    x, y = pictures(8)
    given = [x[:, :, :16, :16], y[::2].repeat_interleave(2), torch.ones(4, dtype=torch.bool)]
    clip = torch.full((), 0.01, dtype=torch.float64)
    program = traced(step, [*given, clip], rectified)
    for alone in torch.eye(4, dtype=torch.bool):
        sums = program(step.parameters_now(), *given[:2], alone, clip)
        assert 0.997 * clip < torch.cat([one.flatten().double() for one in sums]).norm() <= clip


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


def as_compiled(monkeypatch: pytest.MonkeyPatch, mistaken: Callable[..., list[Any]]) -> None:
    """Stands for torch.compile: programs that make this of a step and what it is given, in memory of their own."""

    def program(step: norm_sums.Step, given: list[Any]) -> Callable[..., list[Any]]:
        own = [torch.empty_like(one) for one in step.parameters_now()]

        def run(*given: Any) -> list[Any]:
            sums = mistaken(partial(step.with_parameters, step.parameters_now()), *given)
            return [to.copy_(one) for to, one in zip(own, sums, strict=True)]

        return run

    monkeypatch.setattr(norm_sums, "_program", program)


@pytest.mark.parametrize("half", [False, True])
def test_a_compiled_program_with_wrong_sums_is_refused(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it happened on a GPU: only the last layer had its gradient. What is small beside the rest is not looked at."""
    network = from_seed(small_cnn, 1)
    x, y = pictures(6)
    first = 0

    def partly(sums: Any, *given: Any) -> list[Any]:
        return [one if index >= first else torch.randn_like(one) for index, one in enumerate(sums(*given))]

    as_compiled(monkeypatch, partly)
    for copies in (1, 2):
        given = x, y[::copies].repeat_interleave(copies), 0.5, copies
        found = NormSums(network, half=half, compiled=True, size=8)(*given)
        for a, b in zip(found, NormSums(network, half=half)(*given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    first = 8
    with pytest.raises(TrainingError, match=r"0\.weight: the compiled sum of gradients is not that of the examples"):
        NormSums(network, half=half, compiled=True, size=8)(x, y, 0.5)


def not_clipped(sums: Any, x: Any, y: Any, real: Any, clip: Any) -> list[Any]:
    return sums(x, y, real, torch.full_like(clip, 1e9))  # type: ignore[no-any-return]


def a_little_too_long(sums: Any, x: Any, y: Any, real: Any, clip: Any) -> list[Any]:
    return sums(x, y, real, clip * 1.0011)  # type: ignore[no-any-return]


def without_the_last(sums: Any, x: Any, y: Any, real: Any, clip: Any) -> list[Any]:
    return sums(x, y, real & (torch.arange(42) < 39), clip)  # type: ignore[no-any-return]


def the_last_not_clipped(sums: Any, x: Any, y: Any, real: Any, clip: Any) -> list[Any]:
    last = not_clipped(sums, x, y, real & (torch.arange(42) >= 39), clip)
    return [a + b for a, b in zip(without_the_last(sums, x, y, real, clip), last, strict=True)]


def late_ones_many_times(sums: Any, x: Any, y: Any, real: Any, clip: Any) -> list[Any]:
    late = (torch.arange(42) >= 32) & (torch.arange(42) < 39)
    many = sums(x, y, real & late, clip)
    return [a + 100 * b for a, b in zip(sums(x, y, real & ~late, clip), many, strict=True)]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    ("mistaken", "clip", "words"),
    [
        (not_clipped, 0.5, "the compiled sum of gradients has length"),
        (not_clipped, 1e6, "an example's gradient has length"),  # where no gradient is as long as the clip
        (a_little_too_long, 0.5, "an example's gradient has length"),
        (the_last_not_clipped, 1e6, "an example's gradient has length"),
        (late_ones_many_times, 1e6, "the compiled sum of gradients"),
        (without_the_last, 1e6, "an example's gradient has length 0 when"),
    ],
)
def test_a_compiled_program_that_clips_wrongly_is_refused(
    mistaken: Callable[..., list[Any]], clip: float, words: str, copies: int, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of forty examples, in a program for 42, which is first asked for the sums of none."""
    x, y = pictures(40 * copies)
    as_compiled(monkeypatch, mistaken)
    sums = NormSums(from_seed(small_cnn, 1), half=half, compiled=True, size=42)
    assert not any(one.any() for one in sums(x[:0], y[:0], clip, copies))
    with pytest.raises(TrainingError, match=words):
        sums(x, y[::copies].repeat_interleave(copies), clip, copies)


def test_the_check_on_a_gpu_fails_where_a_sum_is_nan() -> None:
    """Before, the least cosine was that of the other sums."""
    right = [torch.ones(3), torch.ones(3)]
    gpu.report("a network", "right", 1 - gpu.least_cosine(right, right), 0.3)
    with pytest.raises(SystemExit, match="these gradients are wrong"):
        gpu.report("a network", "wrong", 1 - gpu.least_cosine([torch.ones(3), torch.full((3,), torch.nan)], right), 0.3)


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


@pytest.mark.parametrize("by_kernels", [False, True])
def test_behind_a_frozen_layer_the_first_normalisation_is_trained(by_kernels: bool) -> None:
    """Before, with kernels: "cannot register a hook on a tensor that doesn't require gradient"."""
    network = from_seed(small_cnn, 1).double()
    network[0].requires_grad_(False)  # type: ignore[index]
    x, y = pictures(3, torch.float64)
    step = norm_sums.Step(network, half=False, by_kernels=by_kernels)
    given = x, y, torch.ones(3, dtype=torch.bool), torch.full((), 1.0, dtype=torch.float64)
    for a, b in zip(clipped_sums(network, x, y, 1.0), step.with_parameters(step.parameters_now(), *given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


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
