"""Gradient checkpointing, which runs parts of the forward pass again during the backward pass: what Opacus makes of that.

Opacus pairs what modules saw in the forward pass with what comes back to them. Reentrant checkpointing keeps that order, and
the examples' gradients are right: a step is within 2e-8 of one from a loop over examples, in the modes hooks, functorch and
ghost. The other kind shows each module its input twice, after which nothing is paired; the mode ew is wrong with both,
silently with one of them; and of a parameter in several checkpointed parts ghost mode clips by the last part's norm alone. All
that is refused when it happens, and where Transformers tells, before the first step.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleExpandedWeights

from dpmerge.errors import TrainingError

_REMEDY = (
    "use reentrant checkpointing (torch.utils.checkpoint with use_reentrant=True, or "
    'gradient_checkpointing_enable({"use_reentrant": True}))'
)


class Recomputation:
    """Looks at every forward pass of a module that is trained."""

    def __init__(self, module: Any, ghost: bool) -> None:
        self._module, self._ghost = module, ghost
        self._expanded = type(module) is GradSampleModuleExpandedWeights
        self._captured: set[int] = set()  # parameters in the forward pass, by id
        self._again: set[int] = set()  # parameters in parts that were computed again
        for one in module._module.modules():
            if getattr(one, "gradient_checkpointing", False) and any(p.requires_grad for p in one.parameters()):
                options = getattr(getattr(one, "_gradient_checkpointing_func", None), "keywords", {})
                self._require(options.get("use_reentrant", True), options.get("preserve_rng_state", True))
            if any(True for _ in one.parameters(recurse=False)):
                one.register_forward_pre_hook(self._forward)

    def next_part(self) -> None:
        """The gradients were taken up by the optimizer; another batch, or part of one, follows."""
        self._captured.clear()
        self._again.clear()

    def _forward(self, module: Any, inputs: Any) -> None:
        if not (module.training and torch.is_grad_enabled() and getattr(self._module, "hooks_enabled", True)):
            return
        backward = torch._C._current_graph_task_id() != -1
        if self._expanded and not backward:  # its parameters cannot be looked at then
            return
        trained = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not backward:
            self._captured.update(map(id, trained))
            return
        node = torch._C._current_autograd_node()
        reentrant = type(node).__name__ == "CheckpointFunctionBackward"
        if trained:
            self._require(reentrant, getattr(node, "preserve_rng_state", True))
        for p in trained:
            twice = id(p) in self._again and not p._forward_counter  # its first part was gone through already
            if twice or (self._ghost and id(p) in self._captured):
                raise TrainingError(
                    "a parameter is used in several checkpointed parts, and Opacus takes each for an example's whole gradient, "
                    "so clips do not hold; leave one of the parts without checkpointing, or train without it"
                )
        self._again.update(map(id, trained))

    def _require(self, reentrant: bool, same_randomness: bool) -> None:
        if self._expanded:
            raise TrainingError(
                "gradient checkpointing in Opacus' mode ew: gradients of examples come out wrong; use the mode hooks, and "
                "reentrant checkpointing"
            )
        if not reentrant:
            raise TrainingError(
                "gradient checkpointing that is not reentrant shows each module its input twice, and Opacus' gradients of "
                f"examples come out wrong or not at all; {_REMEDY}"
            )
        if self._ghost and not same_randomness:
            raise TrainingError(
                "gradient checkpointing with preserve_rng_state=False in ghost mode: dropout differs between the pass that "
                "takes norms and the pass that clips by them, so clips do not hold; leave it True"
            )
