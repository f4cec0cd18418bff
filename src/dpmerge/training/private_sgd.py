"""DP-SGD for torch networks: every example's gradient by Opacus, batches by true Poisson sampling, a record per checkpoint.

The data lie on the device as tensors, so a step costs no copy. Opacus' own loader samples with rate 1/len(loader), which is
not B/N; here the rate is what the recipe says and the record repeats it.
"""

# torch and Opacus are not installed where the types are checked, so what comes from them is Any there.
# mypy: disable-error-code="import-not-found,misc,no-any-return,no-untyped-call,unused-ignore"

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from dpmerge.errors import TrainingError
from dpmerge.records import Record
from dpmerge.training.randomness import fingerprint, fresh_generator

State = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a run is made. Poisson sampling with `rate`; noise with standard deviation noise_multiplier · clip on the sum."""

    steps: int
    rate: float
    learning_rate: float
    clip: float
    noise_multiplier: float


@dataclass(frozen=True)
class Trained:
    """The network after some steps, its tensors copied to the CPU, with the record of the run up to there."""

    steps: int
    state: State
    record: Record


def device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`, checked before anything is computed."""
    try:
        found = torch.device(name)
    except RuntimeError:
        raise TrainingError(f"{name!r} is no device of torch; use cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise TrainingError(f"device {name}: torch sees no CUDA GPU on this machine; use --device cpu")
    return found


def train(
    network: nn.Module,
    examples: Tensor,
    labels: Tensor,
    recipe: Recipe,
    dataset: str,
    run: str,
    keep: Sequence[int] = (),
    micro_batch: int = 512,
) -> list[Trained]:
    """Train `network` (where `examples` are) and keep it after the steps in `keep` and after the last one.

    Noise and batches come from two generators seeded by the operating system; the records keep a fingerprint of each one's
    first state. A batch larger than `micro_batch` is computed in parts; that changes nothing but the memory needed.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    noise, sampler = GaussianNoise(examples.device), fresh_generator()
    fingerprints = (noise.fingerprint, fingerprint(sampler))
    expected = recipe.rate * len(labels)
    trained = []
    try:
        for step in range(1, recipe.steps + 1):
            batch = np.flatnonzero(sampler.random(len(labels)) < recipe.rate)
            total = [torch.zeros_like(parameter) for parameter in parameters]
            for part in np.array_split(batch, -(-batch.size // micro_batch)) if batch.size else []:
                chosen = torch.from_numpy(part).to(examples.device)
                torch._foreach_add_(total, clipped_sums(network, examples[chosen], labels[chosen], recipe.clip))
            if recipe.noise_multiplier > 0:
                torch._foreach_add_(total, noise.like(parameters), alpha=recipe.noise_multiplier * recipe.clip)
            with torch.no_grad():
                torch._foreach_add_(parameters, total, alpha=-recipe.learning_rate / expected)
            if step in keep or step == recipe.steps:
                state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
                trained.append(Trained(step, state, record(recipe, step, expected, dataset, run, *fingerprints)))
    except torch.cuda.OutOfMemoryError:
        raise TrainingError(
            f"run {run}: the GPU's memory is too small for the gradients of {micro_batch} examples; use a smaller micro_batch"
        ) from None
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise TrainingError(f"run {run}: the parameters are no longer finite; use a smaller learning rate")
    return trained


def clipped_sums(network: nn.Module, examples: Tensor, labels: Tensor, clip: float) -> list[Tensor]:
    """The sum of the examples' gradients, each scaled to norm at most `clip` over all parameters together (flat clipping)."""
    gradients = example_gradients(network, examples, labels)
    with torch.no_grad(), _exact_products():
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (clip / norms.clamp_min(1e-30)).clamp_max(1.0)
        return [torch.tensordot(factors, gradient, dims=1) for gradient in gradients]


def example_gradients(network: nn.Module, examples: Tensor, labels: Tensor) -> list[Tensor]:
    """Every example's gradient, one tensor a parameter with the examples as first axis, by Opacus' rule for each kind of layer.

    What Opacus' `GradSampleModule` gives, in two thirds of its time (ResNet-18 on a GPU): the gradients of the sum are not
    computed beside those of the examples, and nothing is copied.
    """
    passes: list[tuple[nn.Module, Tensor, Tensor]] = []

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        passes.append((layer, inputs[0].detach(), output))

    hooks = [layer.register_forward_hook(remember) for layer in _trained_layers(network)]
    try:
        loss = torch.nn.functional.cross_entropy(network(examples), labels, reduction="sum")
    finally:
        for hook in hooks:
            hook.remove()
    backprops = torch.autograd.grad(loss, [output for _, _, output in passes])
    found: dict[Tensor, Tensor] = {}
    with torch.no_grad():
        for (layer, activations, _), backprop in zip(passes, backprops, strict=True):
            rule = GradSampleModule.GRAD_SAMPLERS[type(layer)]
            # Contiguous, because the rule for convolutions is wrong for tensors stored channels last.
            for parameter, gradient in rule(layer, [activations.contiguous()], backprop.contiguous()).items():
                found[parameter] = found[parameter] + gradient if parameter in found else gradient
    return [found[parameter] for parameter in network.parameters() if parameter.requires_grad]


def _trained_layers(network: nn.Module) -> list[nn.Module]:
    """The layers with parameters of their own that are trained; each must have a gradient for every example."""
    layers = [layer for layer in network.modules() if any(p.requires_grad for p in layer.parameters(recurse=False))]
    for layer in layers:
        if type(layer) not in GradSampleModule.GRAD_SAMPLERS:
            raise TrainingError(
                f"{type(layer).__name__} has no gradient for every example; use another layer (GroupNorm for BatchNorm)"
            )
    return layers


class GaussianNoise:
    """Standard normal numbers from a generator of its own, seeded by the operating system.

    On a GPU torch's generator, whose state is 64 bits; on the CPU numpy's, since torch's would use 32 bits of its seed.
    """

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._torch = torch.Generator(where) if where.type == "cuda" else None
        self._numpy = fresh_generator()
        if self._torch is None:
            self.fingerprint = fingerprint(self._numpy)
        else:
            self._torch.manual_seed(secrets.randbits(64))
            self.fingerprint = hashlib.sha256(self._torch.get_state().numpy().tobytes()).hexdigest()[:32]

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Fresh numbers in these shapes."""
        sizes = [tensor.numel() for tensor in tensors]
        if self._torch is None:
            flat = torch.from_numpy(self._numpy.standard_normal(sum(sizes), dtype=np.float32))
        else:
            flat = torch.randn(sum(sizes), generator=self._torch, device=self._where)
        return [part.view_as(tensor) for part, tensor in zip(flat.split(sizes), tensors, strict=True)]


def record(recipe: Recipe, steps: int, expected: float, dataset: str, run: str, noise: str, sampler: str) -> Record:
    """What was run up to `steps`. A network's gradients have no known Lipschitz constant: nothing is claimed of them."""
    mechanism = {
        "kind": "dp-sgd",
        "run": run,
        "noise_fingerprint": noise,
        "sampler_fingerprint": sampler,
        "optimizer": "sgd",
        "sampling": {"scheme": "poisson", "rate": recipe.rate},
        "expected_batch": expected,
        "noise_multiplier": recipe.noise_multiplier,
        "clip": recipe.clip,
        "clipping": "flat",
        "phases": [{"steps": steps, "learning_rate": recipe.learning_rate}],
        "smoothness": None,
        "convex": None,
    }
    content = {"schema": 1, "dataset": dataset, "adjacency": "add-remove", "mechanism": mechanism}
    return Record.parse(json.dumps(content), source=run)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products without TF32's shorter mantissa: rounding must not lift a clipped gradient above its norm."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
