"""`python -m benchmarks.gpu`: private gradients of convolutional networks on a GPU, against Opacus (docs/benchmarks.md).

Needs CUDA, torch and Opacus, and so is none of the benchmarks that `make bench` runs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

from dpmerge_lab.training.networks import resnet18, wide_resnet
from dpmerge_lab.training.norm_sums import NormSums

BATCH, CHECKED, CLIP = 512, 64, 1.0


def rate(work: Callable[[], Any], repeats: int = 8) -> str:
    """Examples a second."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return f"{BATCH * repeats / (time.perf_counter() - begun):,.0f}"


def flat(tensors: list[Any]) -> Any:
    return torch.cat([one.flatten().double() for one in tensors])


def tensor_float(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def measure(name: str, network: Any) -> None:
    x, y = torch.randn(BATCH, 3, 32, 32, device="cuda"), torch.randint(0, 10, (BATCH,), device="cuda")
    opacus: Any = GradSampleModule(copy.deepcopy(network))
    inner = torch.optim.SGD(opacus.parameters(), lr=0.1)
    optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=BATCH)

    def by_opacus() -> None:
        optimizer.zero_grad()
        cross_entropy(opacus(x), y).backward()
        optimizer.step()

    def without_privacy() -> None:
        torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters()))

    plain = NormSums(network)
    half = NormSums(network, half=True, compiled=True, size=BATCH)
    for on in (False, True):
        tensor_float(on)
        format = "TF32" if on else "single precision"
        print(f"{name}, {format}: without privacy {rate(without_privacy)}, Opacus {rate(by_opacus)}, ", end="")
        print(f"NormSums {rate(lambda: plain(x, y, CLIP))} examples a second", flush=True)
    tensor_float(False)
    print(f"{name}, compiled, bfloat16: NormSums {rate(lambda: half(x, y, CLIP))} examples a second", flush=True)
    alone = torch.stack([flat(half(x[i : i + 1], y[i : i + 1], 0.01)) for i in range(CHECKED)])
    apart = (flat(half(x[:CHECKED], y[:CHECKED], 0.01)) - alone.sum(0)).norm() / (0.01 * CHECKED)
    most = float(alone.norm(dim=1).max()) / 0.01
    print(f"  one example moves the sum by at most {most:.6f} clips; sums add up to {float(apart):.1e}")
    fresh: Any = GradSampleModule(copy.deepcopy(network))
    cross_entropy(fresh(x[:CHECKED]), y[:CHECKED], reduction="sum").backward()
    gradients = [parameter.grad_sample.double() for parameter in fresh.parameters()]
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)
    wanted = flat([torch.tensordot((0.99999 * CLIP / norms).clamp_max(1.0), one, dims=1) for one in gradients])
    error = (flat(plain(x[:CHECKED], y[:CHECKED], CLIP)) - wanted).norm() / wanted.norm()
    print(f"  in single precision the sum differs from Opacus' by {float(error):.1e} of its length", flush=True)


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    for called, build in (("ResNet-18", resnet18), ("WRN-16-4", wide_resnet)):
        torch.manual_seed(0)
        measure(called, build().to("cuda"))
