"""What an Opacus optimizer does in one step: clip, noise, learning rate, divisor, and whether it is plain SGD.

Read from what the step really uses. The noise is scaled by the optimizer's `max_grad_norm`, but in ghost mode gradients are
clipped by the module's, and with per-layer clipping by a list; Opacus' schedulers change the first alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import (
    GradSampleHooks,
    GradSampleHooksFastGradientClipping,
    GradSampleModule,
    GradSampleModuleExpandedWeights,
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    SimpleDistributedPerLayerOptimizer,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from dpmerge.errors import TrainingError
from dpmerge.records import Clipping
from dpmerge.training.recorder_checkpointing import Recomputation
from dpmerge.training.recorder_wrapped import optimizer_of
from dpmerge.training.stated import noise_with_counts

_PLAIN = {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}
_DECAY = "weight_decay"  # SGD adds it to the gradient after clip and noise: θ ← (1 − ηω)θ − η(…), the record's own
_WHOLE = (GradSampleModule, GradSampleHooks, GradSampleModuleExpandedWeights)
_GHOST = (GradSampleModuleFastGradientClipping, GradSampleHooksFastGradientClipping)
_MODULES = {
    DPOptimizer: _WHOLE,
    AdaClipDPOptimizer: _WHOLE,
    DPPerLayerOptimizer: _WHOLE,
    DPOptimizerFastGradientClipping: _GHOST,
    DistributedDPOptimizer: _WHOLE,
    SimpleDistributedPerLayerOptimizer: _WHOLE,
    DistributedDPOptimizerFastGradientClipping: _GHOST,
}
_ROUNDING = 1e-6  # Opacus computes the norm of a list of clips in single precision
_HALF = (torch.bfloat16, torch.float16)
# Of examples' gradients in bfloat16 (autocast) Opacus computes norm and factor in it: two norms, a sum and a quotient, each
# rounded by at most 2⁻⁸ of itself. The gradient is then multiplied by the factor in single precision.
_BFLOAT16 = (1 + 2**-8) / (1 - 2**-8) ** 4


@dataclass(frozen=True)
class Step:
    """The settings of one step.

    θ ← (1 − learning_rate·weight_decay)·θ − learning_rate/divisor · (sum of clipped gradients + noise of σ·clip)
    """

    noise_multiplier: float
    clip: float
    learning_rate: float
    divisor: float
    weight_decay: float


class StepReader:
    """Reads a private optimizer's settings as they are now, and keeps what kind of optimizer it has been."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        if type(module) not in _MODULES.get(type(optimizer), ()):
            raise TrainingError(
                f"{type(optimizer).__name__} with {type(module).__name__} cannot be recorded: pass what make_private returned, "
                "in one of the modes hooks, functorch, ew and ghost"
            )
        if type(module) in _GHOST and isinstance(module._module, DistributedDataParallel):
            raise TrainingError(
                "ghost mode in torch's DistributedDataParallel: it exchanges gradients in both backward passes of ghost mode, "
                "and hangs or adds them twice; use Opacus' DifferentiallyPrivateDistributedDataParallel"
            )
        if not optimizer.params:
            raise TrainingError("the optimizer has no parameter that requires a gradient: nothing is trained")
        half = next((p.dtype for p in optimizer.params if p.dtype in _HALF), None)
        if half is not None:
            raise TrainingError(
                f"trained parameters are {half}: sums of gradients are then rounded to a few bits, and what one example does "
                "to a sum is not bounded by the clip; keep trained parameters in float32 (autocast to bfloat16 is fine)"
            )
        self._module, self._optimizer = module, optimizer
        self._options: dict[str, set[str]] = {}
        self._clips: list[float] = []
        self._rows = 0  # examples whose gradients are in the step that is being made
        self._norms_read = 0
        self._clipped: list[tuple[int, int]] = []  # the gradients when ghost mode had clipped them
        self._warned: set[str] = set()
        self._first_noise = float(optimizer.noise_multiplier)
        self._recomputation = Recomputation(module, self._is_ghost)
        if self._is_ghost:
            self._watch_norms()

    @property
    def _is_ghost(self) -> bool:
        return isinstance(self._optimizer, DPOptimizerFastGradientClipping)

    @property
    def _inner(self) -> Any:
        """The optimizer that takes the noisy gradient."""
        return optimizer_of(self._optimizer.original_optimizer)

    @property
    def clipping(self) -> Clipping:
        if isinstance(self._optimizer, DPPerLayerOptimizer):
            return "per-layer"
        # The second: ghost mode with Opacus' adaptive loss, which leaves this mark at the first backward pass.
        if type(self._optimizer) is AdaClipDPOptimizer or hasattr(self._optimizer, "_adjusted_noise_multiplier"):
            return "adaptive"
        return "flat"

    @property
    def kind(self) -> str:
        """The optimizer in the record's words: "sgd" for plain SGD alone."""
        inner = type(self._inner)
        known = inner.__module__.startswith("torch.optim.")
        name = inner.__name__.lower() if known else f"{inner.__module__}.{inner.__qualname__}"
        options = [f"{key}={next(iter(seen)) if len(seen) == 1 else 'varying'}" for key, seen in self._options.items()]
        return f"{name}({', '.join(options)})" if options else name

    @property
    def begun(self) -> bool:
        """Whether a part of the next step's batch was added up already."""
        return bool(self._clips)

    def part(self) -> None:
        """A batch, or one part of it, is about to be clipped and added up."""
        if self._is_ghost and not self._norms_read:
            raise TrainingError(
                "gradients were not clipped: in ghost mode the loss must come from the criterion that make_private returned"
            )
        if self._is_ghost and self._gradients() != self._clipped:
            raise TrainingError(
                "gradients were changed between backward and step (clip_grad_norm_, a hook): in ghost mode they are the sum of "
                "clipped gradients, which the step must take as it is; leave that out, as examples are clipped already"
            )
        self._norms_read = 0
        self._recomputation.next_part()
        self._clips.append(self._clip() * self._excess())
        self._rows += self._examples()
        if self._is_ghost and self.clipping == "adaptive" and len(self._clips) > 1:
            raise TrainingError(
                "adaptive clipping in ghost mode changes the clip with every part of a batch and pays for the last alone; "
                "do not split batches (BatchMemoryManager) there"
            )

    def now(self) -> Step:
        """What the step that is about to be made does."""
        optimizer = self._optimizer
        groups = [group for group in optimizer.param_groups if any(p.requires_grad for p in group["params"])]
        rates = {float(group["lr"]) for group in groups}
        decay = self._decay(groups)
        self._note_options(groups, rates, decay)
        # Parts of one batch clipped differently: a record moves the sum by the largest clip.
        clip = max(self._clips, default=self._clip())
        sigma, calibrated = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        if not (0 < clip < math.inf and 0 <= sigma < math.inf and 0 < calibrated < math.inf):
            raise TrainingError(f"clip {clip}, noise multiplier {sigma}: a private step needs a positive clip, both finite")
        if math.isclose(clip, calibrated, rel_tol=_ROUNDING):
            clip = calibrated
        if self.clipping == "adaptive":
            sigma = self._with_counts(sigma, clip / calibrated)
        elif clip != calibrated:
            real = math.nextafter(sigma * calibrated / clip, 0.0)
            half = " at most (bfloat16 rounds their norms)" if self._excess() > 1 else ""
            self._warn(
                "noise",
                f"gradients were clipped to {clip:g}{half}, but the noise is scaled by {calibrated:g}: the noise multiplier "
                f"was {real:g}, and is recorded so; Opacus' accountant counts {sigma:g}",
            )
            sigma = real
        mean = optimizer.loss_reduction == "mean"
        # Of several processes each divides by its share, and their mean is taken.
        divisor = float(optimizer.expected_batch_size) * getattr(optimizer, "world_size", 1) if mean else 1.0
        return Step(sigma, clip, max(rates), divisor, 0.0 if decay is None else decay)

    def _decay(self, groups: list[Mapping[str, Any]]) -> float | None:
        """SGD's weight decay, if all that is trained has the same; other optimizers apply theirs in ways of their own."""
        values = {float(group.get(_DECAY, 0)) for group in groups}
        if not all(0 <= value < math.inf for value in values):
            raise TrainingError(f"weight decay {min(values):g}: a record holds none that is negative or not finite")
        plain = type(self._inner) is SGD and len(values) == 1
        return values.pop() if plain else None

    def _with_counts(self, sigma: float, ratio: float) -> float:
        """The noise multiplier with the private counts that adapt the clip."""
        optimizer = self._optimizer
        if type(optimizer) is AdaClipDPOptimizer:
            real = noise_with_counts(sigma, float(optimizer.unclipped_num_std), ratio)
        else:
            # Ghost mode takes the first noise multiplier, whatever a scheduler says, and a 20th of the batch for σ_u. How
            # large the batch is may not show; Opacus refuses batches below 10σ, so that σ_u is more than σ/2.
            first = min(sigma, self._first_noise)
            real = noise_with_counts(first, first / 2, ratio)
        self._warn(
            "adaptive",
            f"Opacus' adaptive clipping pays for half of what a record does to its counts: the noise multiplier was {real:g}, "
            f"and is recorded so; Opacus' accountant counts {sigma:g}. It divides the counts by the size of each batch, which "
            "is private: guarantees from this record are conditional",
        )
        return real

    def require_finite(self) -> None:
        """Refuse a sum in which an example's gradient was infinite or not a number: no factor clips that."""
        if not all(bool(torch.isfinite(p.grad).all()) for p in self._optimizer.params if p.grad is not None):
            raise TrainingError(
                "the gradient of an example is infinite or not a number, and after clipping still is: one record then shows in "
                "every parameter, and no guarantee holds. Bound the inputs and the loss, and start again; that this happened "
                "tells something of the data, too"
            )

    def made(self) -> int:
        """The step was made, from the gradients of so many examples: the next part is of another batch."""
        rows, self._clips, self._rows = self._rows, [], 0
        if self._optimizer.accumulated_iterations != 1:
            raise TrainingError(
                f"a step was made from {self._optimizer.accumulated_iterations} batches: a record may be in each of them, "
                "which no theorem here covers; use Opacus' BatchMemoryManager to split large batches instead"
            )
        return rows

    def _clip(self) -> float:
        if self._is_ghost:
            return float(self._module.max_grad_norm)
        if isinstance(self._optimizer, DPPerLayerOptimizer):
            return math.hypot(*map(float, self._optimizer.max_grad_norms))
        return float(self._optimizer.max_grad_norm)

    def _excess(self) -> float:
        """By what factor clipped gradients may exceed the clip; 1 but for half precision."""
        if self._is_ghost:
            kinds = {p._norm_sample.dtype for p in self._optimizer.params if hasattr(p, "_norm_sample")}
            if kinds & set(_HALF):
                raise TrainingError(
                    "ghost mode under autocast: gradients are computed a second time in half precision, and rounded otherwise "
                    "than those whose norms were taken, so no clip is certain; use float32, or the mode hooks"
                )
            return 1.0
        missing = [name for name, p in self._module._module.named_parameters() if p.requires_grad and p.grad_sample is None]
        if missing:
            raise TrainingError(
                f"{', '.join(map(repr, missing))}: there is no gradient of examples. Either the loss does not depend on it, "
                "or, with gradient checkpointing, no input of the checkpointed part requires a gradient (Transformers: "
                "enable_input_require_grads())"
            )
        kinds = {one.dtype for p in self._optimizer.params for one in _listed(p.grad_sample)}
        if torch.float16 in kinds:
            raise TrainingError(
                "examples' gradients are in float16, which overflows: no clip is certain; use bfloat16 or float32"
            )
        return _BFLOAT16 if torch.bfloat16 in kinds else 1.0

    def _examples(self) -> int:
        """Of how many examples there are gradients, in this part of a batch: with layers clipped apart, the most of any."""
        each = ([p._norm_sample] if self._is_ghost else _listed(p.grad_sample) for p in self._optimizer.params)
        return max(sum(map(len, one)) for one in each)

    def _gradients(self) -> list[tuple[int, int]]:
        """Which gradients there are, and how often each was written to."""
        found = (p.grad for p in self._optimizer.params)
        return [(0, 0) if one is None else (id(one), one._version) for one in found]

    def _note_options(self, groups: list[Mapping[str, Any]], rates: set[float], decay: float | None) -> None:
        for group in groups:
            for key, plain in _PLAIN.items():
                if key == _DECAY and decay is not None:
                    continue
                if group.get(key, plain) != plain or key in self._options:
                    self._options.setdefault(key, set()).add(f"{group.get(key, plain)}")
        if len(rates) > 1:
            self._options["learning_rates"] = {"different"}
        inner = self._inner
        if inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks:
            self._options["step_hooks"] = {"yes"}

    def _watch_norms(self) -> None:
        """Opacus' loss asks for the examples' norms to clip by; a plain loss does not, and its gradients stay as they are."""
        original, clipped = self._module.get_norm_sample, self._module.enable_hooks

        def read() -> Any:
            self._norms_read += 1
            return original()

        def done() -> Any:  # the last that the criterion's backward does
            self._clipped = self._gradients()
            return clipped()

        self._module.get_norm_sample, self._module.enable_hooks = read, done

    def _warn(self, subject: str, text: str) -> None:
        """Warn once on each subject, at the line that called the optimizer's step."""
        if subject not in self._warned:
            warnings.warn(text, UserWarning, stacklevel=5)
        self._warned.add(subject)


def _listed(samples: Any) -> list[Any]:
    return [] if samples is None else samples if isinstance(samples, list) else [samples]
