"""`python -m benchmarks.gpu [NETWORK …]`: private gradients of networks on a GPU, against Opacus (docs/benchmarks.md).

With `--check` only whether they are right, in a minute for each network, most of it to compile: to be run before anything is
trained with them, which then finds the compiled kernels in the cache. Batches are as large as the experiments'. Needs CUDA,
torch and Opacus, and so is none of the benchmarks that `make bench` runs.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

from dpmerge_lab.training.networks import resnet18, wide_resnet
from dpmerge_lab.training.norm_sums import NormSums, Step, traced

CHECKED, CLIP = 64, 1.0
# How each is built, the views of an example, and how many examples the experiments take at once.
NETWORKS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "resnet18": (resnet18, 1, 304),
    "wrn-16-4": (wide_resnet, 1, 528),
    "wrn-16-4-standardised": (partial(wide_resnet, standardised=True), 4, 528),
}


def rate(work: Callable[[], Any], images: int, repeats: int = 8) -> str:
    """Images a second."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return f"{images * repeats / (time.perf_counter() - begun):,.0f}"


def flat(tensors: list[Any]) -> Any:
    return torch.cat([one.flatten().double() for one in tensors])


def tensor_float(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def pictures(count: int, copies: int) -> tuple[Any, Any]:
    """Noise that is smooth, as images are: pure noise makes the first layers' gradients a matter of rounding."""
    coarse = torch.randn(count * copies, 3, 4, 4, device="cuda")
    labels = torch.randint(0, 10, (count,), device="cuda").repeat_interleave(copies)
    return torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic"), labels


def check(name: str, network: Any, copies: int, size: int) -> NormSums:
    """The compiled sums, or an error where sums are not those of the examples' gradients."""
    x, y = pictures(CHECKED, copies)
    tensor_float(False)
    plain = NormSums(network)(x, y, CLIP, copies)
    if copies == 1:  # Opacus has no rule for standardised filters
        fresh: Any = GradSampleModule(copy.deepcopy(network))
        cross_entropy(fresh(x), y, reduction="sum").backward()
        gradients = [parameter.grad_sample.double() for parameter in fresh.parameters()]
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)
        wanted = [torch.tensordot((0.99999 * CLIP / norms).clamp_max(1.0), one, dims=1) for one in gradients]
        report(name, "without kernels, to Opacus'", apart(plain, wanted), 1e-5)
    given = [x, y, torch.ones(CHECKED, dtype=torch.bool, device="cuda"), torch.full((), CLIP, device="cuda").double()]
    step = Step(network, half=False, by_kernels=True)
    by_kernels = traced(step, given)(step.parameters_now(), *given)
    # Normalisation is rounded differently, and at a few places among millions a ReLU opens or closes by that. (On a CPU the
    # plain sums of few examples are up to 2e-3 from those in double precision.)
    report(name, "by kernels in single precision", apart(by_kernels, plain), 1e-2)
    half = NormSums(network, half=True, compiled=True, size=size)
    cosine = least_cosine(half(x, y, CLIP, copies), plain)
    report(name, "compiled in bfloat16, one less the least cosine of a parameter's sum", 1 - cosine, 0.3)
    alone = torch.stack([flat(half(x[i : i + copies], y[i : i + copies], 0.01, copies)) for i in range(0, len(x), copies)])
    together = flat(half(x, y, 0.01, copies))
    report(name, "by how much an example exceeds the clip there", float(alone.norm(dim=1).max()) / 0.01 - 1, 0.0)
    report(name, "the sum there to those of each alone", float((together - alone.sum(0)).norm()) / (0.01 * CHECKED), 1e-5)
    return half


def apart(found: list[Any], wanted: list[Any]) -> float:
    return float((flat(found) - flat(wanted)).norm() / flat(wanted).norm())


def least_cosine(found: list[Any], wanted: list[Any]) -> float:
    """Of each parameter's sum with the wanted one, where that is not small beside the rest; nan if one is."""
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b.norm() > 1e-3 * flat(wanted).norm()]
    # By torch: Python's `min` passes over nan.
    return float(torch.stack([torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in pairs]).min())


def report(name: str, what: str, error: float, most: float) -> None:
    print(f"{name}: {what}: {error:.1e} (at most {most:g})", flush=True)
    if not error <= most:
        sys.exit("error: these gradients are wrong; train nothing with them")


def measure(name: str, network: Any, half: NormSums, copies: int) -> None:
    """How many images a second, views of an example counted each."""
    x, y = pictures(half.size, copies)
    if copies == 1:
        against(name, network, x, y)
    speed = rate(lambda: half(x, y, CLIP, copies), len(x))
    print(f"{name}, compiled, bfloat16: NormSums {speed} images a second, {len(x)} at once", flush=True)


def against(name: str, network: Any, x: Any, y: Any) -> None:
    """The same without compiling, and by others."""
    opacus: Any = GradSampleModule(copy.deepcopy(network))
    inner = torch.optim.SGD(opacus.parameters(), lr=0.1)
    optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=len(x))

    def by_opacus() -> None:
        optimizer.zero_grad()
        cross_entropy(opacus(x), y).backward()
        optimizer.step()

    def without_privacy() -> None:
        torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters()))

    plain = NormSums(network)
    for on in (False, True):
        tensor_float(on)
        format = "TF32" if on else "single precision"
        print(f"{name}, {format}: without privacy {rate(without_privacy, len(x))}, ", end="")
        sums = rate(lambda: plain(x, y, CLIP), len(x))
        print(f"Opacus {rate(by_opacus, len(x))}, NormSums {sums} images a second, {len(x)} at once", flush=True)
    tensor_float(False)


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    asked = [one for one in sys.argv[1:] if one != "--check"] or list(NETWORKS)
    for called in asked:
        build, views, at_once = NETWORKS[called]
        torch.manual_seed(0)
        built = build().to("cuda")
        compiled = check(called, built, views, at_once)
        if "--check" not in sys.argv:
            measure(called, built, compiled, views)
