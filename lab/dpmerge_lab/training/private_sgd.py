"""DP-SGD for torch networks: every example's gradient by Opacus, batches by true Poisson sampling, a record per checkpoint.

The data lie on the device as tensors, so a step costs no copy. Opacus' own loader samples with rate 1/len(loader), which is
not B/N; here the rate is what the recipe says and the record repeats it. Without a rate every step takes the full batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator, Record
from dpmerge.training import GENERATOR, fingerprint, fresh_generator
from dpmerge_lab.training.averaging import AggregatedRun
from dpmerge_lab.training.averaging_torch import flat, load
from dpmerge_lab.training.precision import exact_products
from dpmerge_lab.training.recipe import LabRecipe

State = dict[str, Tensor]
Sums = Callable[[Tensor, Tensor, float, int], list[Tensor]]  # of examples, labels, clip, copies: see `clipped_sums`


@dataclass(frozen=True)
class Trained:
    """The network after some steps, its tensors copied to the CPU, with the record of the run up to there."""

    steps: int
    state: State
    record: Record


class Randomness:
    """The noise and the sampling coins of one run, or of what is left of it: fresh from the operating system."""

    def __init__(self, where: torch.device) -> None:
        self.noise = GaussianNoise(where)
        self.sampler = fresh_generator()
        self.views = torch.Generator(where)  # of images: no guarantee rests on it
        self.views.seed()
        # What a record says of them. Of a network's gradients it says nothing: they have no known Lipschitz constant.
        self.said: dict[str, Any] = {
            "noise": self.noise.fingerprint,
            "sampler": fingerprint(self.sampler),
            "noise_generator": self.noise.generator,
        }


def device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`, checked before anything is computed."""
    try:
        found = torch.device(name)
    except RuntimeError:
        raise TrainingError(f"{name!r} is no device of torch; use cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise TrainingError(f"device {name}: torch sees no CUDA GPU on this machine; use cpu")
    return found


def train(
    network: nn.Module,
    examples: Tensor,
    labels: Tensor,
    recipe: LabRecipe,
    dataset: str,
    run: str,
    keep: Sequence[int] = (),
    micro_batch: int = 512,
    sums: Sums | None = None,
) -> list[Trained]:
    """Train `network` (where `examples` are) and keep it after the steps in `keep` and after the last one.

    Noise and batches come from two generators seeded by the operating system; the records keep a fingerprint of each one's
    first state. `sums` is another way to the sums of clipped gradients (`NormSums`).
    """
    kept, randomness = recipe.kept(keep), Randomness(examples.device)
    said = {**randomness.said, "dataset": dataset, "run": run}
    return [
        Trained(step, snapshot(network, run), recipe.record(step, len(labels), checkpoints_kept=kept.index(step), **said))
        for step in steps(network, examples, labels, recipe, randomness, run, micro_batch=micro_batch, sums=sums)
        if step in kept
    ]


def steps(
    network: nn.Module,
    examples: Tensor,
    labels: Tensor,
    recipe: LabRecipe,
    randomness: Randomness,
    run: str,
    done: int = 0,
    micro_batch: int = 512,
    aggregated: AggregatedRun | None = None,
    divided_for: float | None = None,
    sums: Sums | None = None,
) -> Iterator[int]:
    """Take the recipe's steps after the first `done`; each is answered by its number once the next could start.

    A batch larger than `micro_batch` is computed in parts; that changes nothing but the memory needed. A run on aggregates
    that is continued needs what was `aggregated` so far. Updates are `divided_for` so many examples, a public number; else for
    as many as there are.
    """
    require_no_buffers(network)
    sums = partial(clipped_sums, network) if sums is None else sums
    parameters: list[Tensor] = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if recipe.training_on is not None and aggregated is None:
        if done:
            raise TrainingError(f"run {run}: its aggregate of the first {done} steps is lost; begin it anew")
        aggregated = recipe.training_on.begin(flat(parameters))
    everyone, expected, rates = (
        np.arange(len(labels)),
        recipe.expected_batch(divided_for or len(labels)),
        recipe.learning_rates(),
    )
    for step in range(done + 1, recipe.steps + 1):
        with out_of_memory_is_one_line(run, micro_batch):
            batch = everyone[recipe.batch(randomness.sampler, len(labels), step)]
            total = [torch.zeros_like(parameter) for parameter in parameters]
            for part in np.array_split(batch, -(-batch.size // micro_batch)) if batch.size else []:
                chosen = _sent(part, examples.device)
                seen, answers, copies = examples[chosen], labels[chosen], 1
                if recipe.augmentation is not None:
                    copies = recipe.augmentation.copies
                    seen, answers = recipe.augmentation(seen, randomness.views), answers.repeat_interleave(copies)
                torch._foreach_add_(total, sums(seen, answers, recipe.clip, copies))
            if recipe.noise_multiplier > 0:
                torch._foreach_add_(total, randomness.noise.like(parameters), alpha=recipe.noise_multiplier * recipe.clip)
            with torch.no_grad():
                if recipe.weight_decay > 0:
                    torch._foreach_mul_(parameters, 1 - rates[step - 1] * recipe.weight_decay)
                torch._foreach_add_(parameters, total, alpha=-rates[step - 1] / expected)
            if aggregated is not None:
                load(parameters, aggregated.next_start(flat(parameters)))
        yield step


def _sent(numbers: npt.NDArray[np.int64], where: torch.device) -> Tensor:
    """A copy there. A GPU gets it when it comes to it: nothing waits until its earlier work is done."""
    tensor = torch.from_numpy(numbers)
    return tensor.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else tensor


def require_no_buffers(network: nn.Module) -> None:
    """Refuse what would learn from the data beside the parameters, without noise."""
    for name, _ in network.named_buffers():
        raise TrainingError(
            f"the network keeps {name!r} beside its parameters, which the data would change without noise; use layers without "
            "such buffers (GroupNorm for BatchNorm)"
        )


def snapshot(network: nn.Module, run: str) -> State:
    """The network's tensors, copied to the CPU; refused if training has gone astray."""
    state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise TrainingError(f"run {run}: the parameters are no longer finite; use a smaller learning rate")
    return state


def accuracy(network: nn.Module, examples: Tensor, labels: Tensor) -> float:
    """The share of examples labelled rightly."""
    network.eval()
    with torch.no_grad():
        predicted = torch.cat([network(part).argmax(1) for part in examples.split(1000)])
    network.train()
    return float((predicted == labels).double().mean())


@contextlib.contextmanager
def out_of_memory_is_one_line(run: str, micro_batch: int) -> Iterator[None]:
    """Say so when the memory is too small, of a GPU or of this machine; torch has no class of error for the second."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError, RuntimeError) as fault:
        on_gpu = isinstance(fault, torch.cuda.OutOfMemoryError)
        if not on_gpu and not isinstance(fault, MemoryError) and not _speaks_of_memory(str(fault)):
            raise
        raise TrainingError(
            f"run {run}: the memory of {'the GPU' if on_gpu else 'this machine'} is too small for the gradients of "
            f"{micro_batch} examples; use a smaller micro_batch{'' if on_gpu else ' or fewer jobs'}"
        ) from None


def _speaks_of_memory(text: str) -> bool:
    return "not enough memory" in text or "can't allocate memory" in text


def clipped_sums(network: nn.Module, examples: Tensor, labels: Tensor, clip: float, copies: int = 1) -> list[Tensor]:
    """The sum of the examples' gradients, each scaled to norm at most `clip` over all parameters together (flat clipping).

    Where an example comes as several `copies` in a row, its gradient is their mean.
    """
    gradients = example_gradients(network, examples, labels)
    with torch.no_grad(), exact_products():
        gradients = [one.unflatten(0, (-1, copies)).mean(1) for one in gradients] if copies > 1 else gradients
        # In parts: over millions of numbers at once torch's norm on a CPU comes out too small by 4e-5.
        parts = [part.norm(dim=1) for gradient in gradients for part in gradient.flatten(1).split(1 << 16, dim=1)]
        norms = torch.stack(parts).norm(dim=0)
        factors = (clip * NORM_MARGIN / norms.clamp_min(1e-30)).clamp_max(1.0)
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

    On the CPU a cryptographic one. On a GPU torch's Philox, which is none, and whose seeds have 64 bits: few enough to be
    searched for, so a record must not show a hash of one. There a key of 256 bits gives every step a seed of its own, and
    the fingerprint is another hash of the key: it shows when two runs have one key, and helps nobody to find a seed.
    """

    def __init__(self, where: torch.device) -> None:
        self._where, self._drawn = where, 0
        self._numpy, self._key = fresh_generator(), secrets.token_bytes(32)
        self._torch = torch.Generator(where) if where.type == "cuda" else None
        self.generator: NoiseGenerator = GENERATOR if self._torch is None else "torch-philox"
        on_gpu = hashlib.sha256(b"fingerprint" + self._key).hexdigest()[:32]
        self.fingerprint = fingerprint(self._numpy) if self._torch is None else on_gpu

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Fresh numbers in these shapes."""
        sizes = [tensor.numel() for tensor in tensors]
        if self._torch is None:
            flat = torch.from_numpy(self._numpy.standard_normal(sum(sizes), dtype=np.float32))
        else:
            self._torch.manual_seed(self._next_seed())
            flat = torch.randn(sum(sizes), generator=self._torch, device=self._where)
        return [part.view_as(tensor) for part, tensor in zip(flat.split(sizes), tensors, strict=True)]

    def _next_seed(self) -> int:
        self._drawn += 1
        return int.from_bytes(hashlib.sha256(b"seed %d " % self._drawn + self._key).digest()[:8])
