"""Which of a module's tensors a recorded run may show: those that the private optimizer trains, and those that never changed.

Everything else has changed without noise since recording began: running statistics, codebooks, observers, an average of the
weights kept beside them, parameters of a second optimizer. No theorem covers it, neither as a part of what is released nor
as a part of the loss, where it makes each example's gradient depend on the others' data (docs/theory.md §0).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dpmerge.errors import TrainingError


class ModuleTensors:
    """The state of the trained module, followed from when recording begins."""

    def __init__(self, module: Any, resumed: Path | None = None, left_out: Collection[str] = ()) -> None:
        """`resumed` is a saved folder, whose tensors the module must hold; `left_out` is what was left out of it."""
        self._module = module._module
        self._trained: dict[int, Any] = {}  # the parameters themselves, so that an id stays theirs
        self._left_out = set(left_out)
        if resumed is not None:
            self._require_those_of(resumed)
        # What was left out before has changed already, whatever it is now.
        self._begun = {name: _digest(value) for name, value in self._state().items() if name not in self._left_out}

    def trains(self, parameters: Iterable[Any]) -> None:
        """The private optimizer is about to make a step with these."""
        self._trained |= {id(parameter): parameter for parameter in parameters}

    def left_out(self, named: Collection[str] = ()) -> list[str]:
        """What a folder saved now leaves out: what the user has named. Whatever else changed without noise is refused."""
        named = {named} if isinstance(named, str) else set(named)
        state = self._state()
        for name in sorted(named):
            if name not in state:
                raise TrainingError(f"leave_out: the module has no tensor {name!r}")
        left_out = named | self._left_out
        changed = sorted(
            name
            for name, value in state.items()
            if name not in left_out and id(value) not in self._trained and _digest(value) != self._begun.get(name)
        )
        if changed:
            names = ", ".join(map(repr, changed))
            raise TrainingError(
                f"{names}: changed since recording began, and not by the private optimizer, so the data are in it without "
                "noise. Keep it constant (eval mode, GroupNorm for BatchNorm, no second optimizer); or, if no loss was "
                f"computed with it, leave it out: save(folder, leave_out=[{names}])"
            )
        self._left_out = left_out
        return sorted(left_out)

    def shown(self, left_out: Collection[str]) -> dict[str, torch.Tensor]:
        """The state without these, under the module's own names, each tensor with memory of its own on the CPU."""
        found = {}
        for name, value in self._module.state_dict().items():
            if name in left_out:
                continue
            if not isinstance(value, torch.Tensor):
                raise TrainingError(
                    f"the module's state {name!r} is a {type(value).__name__}, not a tensor; it cannot be saved"
                )
            found[name] = value.detach().to("cpu", copy=True).contiguous()
        return found

    def _state(self) -> dict[str, Any]:
        """The state dict, and the buffers that are not part of it: these too can enter the loss."""
        return {**dict(self._module.named_buffers()), **self._module.state_dict(keep_vars=True)}

    def _require_those_of(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        try:
            held = load_file(path)
        except Exception as fault:  # the library raises its own, and whatever the file system does
            raise TrainingError(f"{path}: cannot be read: {str(fault).strip() or type(fault).__name__}") from None
        tensors = self.shown(self._left_out)
        for name in sorted(held.keys() | tensors.keys()):
            if name not in held or name not in tensors or _digest(held[name]) != _digest(tensors[name]):
                raise TrainingError(
                    f"{path}: tensor {name!r} is not what the module holds; load the checkpoint into the module before resuming"
                )


def _digest(value: Any) -> str:
    """By bits: a NaN is equal to itself, and −0 is not 0. What is no tensor (get_extra_state) goes by its repr."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)} ".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
