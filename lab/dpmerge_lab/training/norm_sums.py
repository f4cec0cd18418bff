"""Sums of clipped gradients without any example's gradient: its norm is found from what each layer saw and what came back.

The norms are those of `layer_norms.py`; the sum is then one weighted gradient of the whole batch. In bfloat16 only activations
and backpropagated gradients are rounded; they decide what an example's gradient is. Norms and sums of it are in single
precision: none of 32 examples moved a sum by more than 1.0000013 times what it was scaled to, which is 0.999 of the clip there.
Without bfloat16 sums agree with Opacus' gradients to 4e-7. What was compiled is compared with the plain passes before it is
used; `python -m benchmarks.gpu --check` says by how much they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import TrainingError
from dpmerge_lab.training import fused
from dpmerge_lab.training.layer_norms import RULES, Pass, has_rule
from dpmerge_lab.training.precision import exact_products

_HALF_MARGIN = 0.999
# Of a compiled program's sums with the plain ones, and of how many examples. Clipping gives each example's gradient its length,
# rounded or not: bfloat16 changed that of a sum by 0.5 % at most, with or without clipping, in new networks and trained ones.
_LEAST_COSINE, _MOST_LONGER, _COMPARED = 0.7, 1.1, 32
_WARM_UPS = 3  # before a graph of CUDA is recorded, as torch advises


class NormSums:
    """Like `clipped_sums`, for networks of convolutions, linear layers and group normalisation, each passed through once.

    `half`: forward and backward pass in bfloat16. `compiled`: both passes, norms and sums as one program by torch.compile, for
    batches of up to `size` examples, which are all computed as one of that size; on a GPU it is recorded and replayed.
    """

    def __init__(self, network: nn.Module, *, half: bool = False, compiled: bool = False, size: int = 512) -> None:
        self.network, self.half, self.compiled, self.size = network, half, compiled, size
        self._step = Step(network, half, by_kernels=compiled and _on_gpu(network))
        self._programs: dict[int, Callable[..., list[Tensor]]] = {}  # by the number of copies of an example

    @property
    def precision(self) -> str:
        """In words, for what is kept of a run."""
        passes = "passes in bfloat16, norms and sums in float32" if self.half else "as the parameters'"
        return f"{'compiled; ' if self.compiled else ''}{passes}"

    def __call__(self, examples: Tensor, labels: Tensor, clip: float, copies: int = 1) -> list[Tensor]:
        """The sums for every trained parameter, in the network's order. An example may come as several copies in a row.

        What a compiled program gives is overwritten by its next call.
        """
        count = len(examples) // copies
        if not count:  # nothing that a program could be compared on
            return [torch.zeros_like(one) for one in self.network.parameters() if one.requires_grad]
        size = max(count, self.size) if self.compiled else count
        examples, labels = _filled(examples, size * copies), _filled(labels, size * copies)
        real = torch.arange(size, device=examples.device) < count
        given = [examples, labels, real, torch.full((), clip, dtype=torch.float64, device=examples.device)]
        with exact_products():
            if not self.compiled:
                return self._step.with_parameters(self._step.parameters_now(), *given)
            if size > self.size:
                raise TrainingError(f"{count} examples at once, compiled for {self.size}; give fewer or compile for more")
            if copies not in self._programs:
                program = _program(self._step, given)
                self._compare(program, given, copies)
                self._programs[copies] = program
            return self._programs[copies](*given)

    def _compare(self, program: Callable[..., list[Tensor]], given: list[Tensor], copies: int) -> None:
        """Refuse a program whose sums are not those of the plain passes, or in which an example is longer than its clip.

        The sums of some examples, early and late ones: rounding turns them little, and lengthens them less; a mistake may do
        more. And the last example alone, at a clip far below its gradient, which its sum must then have as its length.
        """
        examples, labels, real, clip = given
        plain, there = Step(self.network, half=False, by_kernels=False), real.nonzero().flatten()

        def compiled(which: Tensor, clip: Tensor) -> list[Tensor]:
            return [one.clone() for one in program(examples, labels, which, clip)]

        def plainly(which: Tensor, clip: Tensor) -> list[Tensor]:
            views = which.repeat_interleave(copies)
            return plain.with_parameters(plain.parameters_now(), examples[views], labels[views], which[which], clip)

        def only(places: Tensor) -> Tensor:
            return torch.zeros_like(real).index_fill(0, places, True)

        some = only(there[torch.linspace(0, len(there) - 1, min(_COMPARED, len(there)), device=real.device).round().long()])
        found, wanted = compiled(some, clip), plainly(some, clip)
        names = [name for name, one in self.network.named_parameters() if one.requires_grad]
        for name, a, b in zip(names, found, wanted, strict=True):
            cosine = float(functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0))
            if b.norm() > 1e-3 * _length(wanted) and not cosine >= _LEAST_COSINE:
                raise _wrong(
                    f"{name}: the compiled sum of gradients is not that of the examples' gradients (cosine {cosine:.2f})"
                )
        if not _length(wanted) / _MOST_LONGER <= _length(found) <= _length(wanted) * _MOST_LONGER:
            raise _wrong(
                f"the compiled sum of gradients has length {_length(found):.3g}, that of the examples' gradients "
                f"{_length(wanted):.3g}"
            )
        last = only(there[-1:])
        low = torch.full_like(clip, 1e-3 * _length(plainly(last, torch.full_like(clip, torch.inf))))
        alone = _length(compiled(last, low))
        # Rounding needs no allowance here: what examples are scaled to is shorter than the clip, to leave room for it.
        if not 0.99 * float(low) <= alone <= float(low):
            raise _wrong(f"compiled, an example's gradient has length {alone:.7g} when it is clipped to {float(low):.7g}")


class Step(nn.Module):
    """Both passes, every example's norm and the sums, as a function of the parameters too: so that it can be traced whole."""

    def __init__(self, network: nn.Module, half: bool, by_kernels: bool) -> None:
        super().__init__()
        self.network, self.in_half, self.by_kernels = network, half, by_kernels
        self._layers = [layer for layer in network.modules() if _trained(layer)]
        for layer in self._layers:
            if not has_rule(layer):
                raise TrainingError(f"{type(layer).__name__} has no rule for norms; use the gradients of the examples")
        self._trained = {name: one.requires_grad for name, one in self.named_parameters()}

    def parameters_now(self) -> list[Tensor]:
        """In the order in which `with_parameters` takes them: those of the network, which training changes in place."""
        return [parameter.detach() for parameter in self.parameters()]

    def with_parameters(self, values: list[Tensor], *given: Tensor) -> list[Tensor]:
        """What `forward` gives at these parameters. They get no gradients: only what layers give has one."""
        fresh = (value.detach().requires_grad_(trained) for value, trained in zip(values, self._trained.values(), strict=True))
        found: list[Tensor] = functional_call(self, dict(zip(self._trained, fresh, strict=True)), given)
        return found

    def forward(self, examples: Tensor, labels: Tensor, real: Tensor, clip: Tensor) -> list[Tensor]:
        """The sums for every trained parameter, of the `real` examples."""
        copies = len(examples) // len(real)
        passes: list[tuple[nn.Module, Tensor, Tensor]] = []  # layers, what they saw, what they gave
        normalised: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # by a kernel, with each image's gradients of weight and bias

        def lie_well(tensor: Tensor) -> Tensor:
            """With channels last, as convolutions on a GPU and the kernels like images."""
            return tensor.contiguous(memory_format=torch.channels_last) if self.by_kernels and tensor.dim() == 4 else tensor

        def enter(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
            # As the layer computes with it: rounded, where autocast rounds it.
            rounded = self.in_half and not isinstance(layer, nn.GroupNorm)
            return lie_well(inputs[0].bfloat16() if rounded else inputs[0])

        def leave(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen = inputs[0]
            # A kernel's result has a gradient only by way of what it sees: behind frozen layers there would be none.
            by_kernel = self.by_kernels and seen.requires_grad
            if by_kernel and isinstance(layer, nn.GroupNorm) and fused.has_group_norm(layer, seen):
                output = fused.normalised(seen, layer, normalised)
            output.register_hook(lie_well)
            passes.append((layer, seen, output))
            return output

        hooks = [layer.register_forward_pre_hook(enter) for layer in self._layers]
        hooks += [layer.register_forward_hook(leave) for layer in self._layers]
        try:
            with torch.enable_grad(), torch.autocast(examples.device.type, torch.bfloat16, enabled=self.in_half):
                logits = self.network(examples)
        finally:
            for hook in hooks:
                hook.remove()
        if sorted(id(layer) for layer, _, _ in passes) != sorted(map(id, self._layers)):
            raise TrainingError("a layer is passed through twice, or not at all; use the gradients of the examples")
        with torch.enable_grad():
            loss = functional.cross_entropy(fused.wide(logits), labels, reduction="sum") / copies
        backprops = torch.autograd.grad(loss, [output for _, _, output in passes])
        with torch.no_grad():
            found = [
                RULES[type(one)](Pass(one, a, g, copies, self.by_kernels, normalised.get(one)))
                for (one, a, _), g in zip(passes, backprops, strict=True)
            ]
            norms = torch.stack([square for square, _ in found]).sum(0).sqrt()
            bound = clip * (_HALF_MARGIN if self.in_half else NORM_MARGIN)
            factors = (bound / norms.clamp_min(1e-30)).clamp_max(1.0) * real
            sums: dict[Tensor, Tensor] = {}
            for _, weighted in found:
                sums.update(weighted(factors))
        return [sums[parameter] for parameter in self.parameters() if parameter.requires_grad]


def traced(step: Step, given: list[Tensor]) -> GraphModule:
    """The step as one graph of operations, so that what both passes and the norms need is computed once."""
    graph: GraphModule = make_fx(step.with_parameters, tracing_mode="fake")(step.parameters_now(), *given)
    if step.by_kernels:
        fused.rectify(graph)
    return graph


def _program(step: Step, given: list[Tensor]) -> Callable[..., list[Tensor]]:
    """One that torch compiled, for tensors of these shapes; on a GPU its kernels are recorded and replayed all at once."""
    # Without the option a fused kernel leaves out roundings to bfloat16 that `layer_norms.py` counts on.
    exact: dict[str, str | int | bool | Callable[..., Any]] = {"emulate_precision_casts": True}
    compiled: Callable[..., list[Tensor]] = torch.compile(traced(step, given), options=exact)

    @torch.no_grad()
    def run(*given: Tensor) -> list[Tensor]:
        return compiled(step.parameters_now(), *given)

    if given[0].device.type != "cuda":
        return run
    kept = [one.clone() for one in given]
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UPS):
            run(*kept)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = run(*kept)

    def replay(*given: Tensor) -> list[Tensor]:
        for to, one in zip(kept, given, strict=True):
            to.copy_(one)
        graph.replay()
        return sums

    return replay


def _wrong(what: str) -> TrainingError:
    return TrainingError(f"{what}; train without compiling, and report this network with torch's version")


def _length(tensors: list[Tensor]) -> float:
    """Of all of them as one vector."""
    return float(torch.stack([one.double().norm() for one in tensors]).norm())


def _on_gpu(network: nn.Module) -> bool:
    return any(parameter.device.type == "cuda" for parameter in network.parameters())


def _trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _filled(tensor: Tensor, size: int) -> Tensor:
    if len(tensor) >= size:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])
