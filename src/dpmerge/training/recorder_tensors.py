"""Which of a module's tensors a recorded run may show: those that the private optimizer trains, and those that never changed.

Everything else has changed without noise since recording began: running statistics, codebooks, observers, an average of the
weights kept beside them, parameters of a second optimizer. No theorem covers it, neither as a part of what is released nor
as a part of the loss, where it makes each example's gradient depend on the others' data (docs/theory.md §0).
Trained parameters in turn are covered only as the private steps left them, so a copy of each is kept from step to step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dpmerge.errors import TrainingError
from dpmerge.training.recorder_wrapped import inner_of

_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Left:
    """What a training leaves, held apart from the module: it can be asked when nothing else refers to the training."""

    begun: dict[str, str] = field(default_factory=dict)  # digests, by name
    bits: list[tuple[torch.dtype, tuple[int, ...], torch.Tensor]] = field(default_factory=list)  # of what is trained
    without_noise: dict[str, torch.Tensor] = field(default_factory=dict)  # by name

    def trained(self) -> set[str]:
        """The digests of parameters as the private optimizer's last step left them."""
        return {_digest_of(*one) for one in self.bits} - set(self.begun.values())

    def bare(self) -> set[str]:
        """The digests of tensors that changed without noise."""
        return {_digest(name, one) for name, one in self.without_noise.items()} - set(self.begun.values())


class ModuleTensors:
    """The state of the trained module, followed from when recording begins."""

    def __init__(self, module: Any, resumed: Path | None = None, left_out: Collection[str] = ()) -> None:
        """`resumed` is a saved folder, whose tensors the module must hold; `left_out` is what was left out of it."""
        self.module = inner_of(module)
        self.left = Left()
        self._begun = self.left.begun
        self._trained: dict[int, tuple[Any, torch.Tensor]] = {}  # by id: the parameter, and its bits after the last step
        self._changed: set[str] = set()  # seen to have changed at a step, even if changed back later
        self._left_out = set(left_out)
        if resumed is not None:
            self._require_those_of(resumed)
        # What was left out before has changed already, whatever it is now.
        begun = {name: value for name, value in self._state().items() if name not in self._left_out}
        self._begun.update({name: _digest(name, value) for name, value in begun.items()})
        # For a look at every step: of what is small, the bits; of frozen parameters, torch's count of writes.
        self._small = {
            name: _bits(name, value).clone()
            for name, value in begun.items()
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        }
        self._writes = {name: value._version for name, value in begun.items() if isinstance(value, torch.nn.Parameter)}

    @property
    def begun(self) -> Mapping[str, str]:
        """The digests of what the module held when recording began, by name."""
        return self._begun

    @property
    def changed(self) -> set[str]:
        """What was seen to change without noise, by name."""
        return self._changed

    def leave_out(self, names: Collection[str]) -> None:
        """These were left out of what the module begins with: they hold data already."""
        self._left_out |= set(names)
        for name in names:
            self._begun.pop(name, None)

    def trains(self, parameters: Iterable[Any]) -> None:
        """Before a step of the private optimizer: its parameters must be as its last step left them."""
        state = self._state()
        names = {id(value): name for name, value in state.items()}
        for parameter in parameters:
            if id(parameter) not in self._trained:
                name = names.get(id(parameter), "a parameter of the optimizer alone")
                if name in self._left_out:
                    raise TrainingError(
                        f"{name!r}: left out of the checkpoint that this training begins with, as no loss was computed with "
                        "it, and trained now; begin with public values under another name, or keep it out of the optimizer"
                    )
                if name in self._begun and _digest(name, parameter) != self._begun[name]:
                    raise _moved([name])
                held = _bits(name, parameter).clone()
                self._trained[id(parameter)] = parameter, held
                self.left.bits.append((parameter.dtype, tuple(parameter.shape), held))
        self._require_as_left(names)
        self._changed |= {name for name, value in state.items() if self._looks_changed(name, value)}
        self._note_bare(state, self._changed | self._left_out)

    def stepped(self) -> None:
        """The private optimizer has made its step."""
        for parameter, held in self._trained.values():
            held.copy_(_bits("", parameter))

    def _require_as_left(self, names: Mapping[int, str]) -> None:
        found = self._trained.items()
        moved = [names.get(key, "?") for key, (value, held) in found if not _same(held, _bits(names.get(key, "?"), value))]
        if moved:
            raise _moved(sorted(moved))

    def _looks_changed(self, name: str, value: Any) -> bool:
        """Per-step check of untrained tensors; at the end everything is compared."""
        if name in self._changed or name in self._left_out or id(value) in self._trained:
            return False
        if name in self._small and isinstance(value, torch.Tensor):
            return not _same(self._small[name], _bits(name, value))
        if self._writes.get(name) == getattr(value, "_version", None):
            return False
        return _digest(name, value) != self._begun.get(name)

    def left_out(self, named: Collection[str] = ()) -> list[str]:
        """What a folder saved now leaves out: what the user has named. Whatever else changed without noise is refused."""
        named = {named} if isinstance(named, str) else set(named)
        state = self._state()
        for name in sorted(named):
            if name not in state:
                raise TrainingError(f"leave_out: the module has no tensor {name!r}")
        self._require_as_left({id(value): name for name, value in state.items()})
        left_out = named | self._left_out
        changed = sorted(
            name
            for name, value in state.items()
            if name not in left_out
            and id(value) not in self._trained
            and (name in self._changed or _digest(name, value) != self._begun.get(name))
        )
        if changed:
            names = ", ".join(map(repr, changed))
            raise TrainingError(
                f"{names}: changed since recording began, and not by the private optimizer, so the data are in it without "
                "noise. Keep it constant (eval mode, GroupNorm for BatchNorm, no second optimizer); if the first forward pass "
                "makes it, run one on public input before recording; or, if no loss was computed with it, leave it out: "
                f"save(folder, leave_out=[{names}])"
            )
        self._left_out = left_out
        self._note_bare(state, left_out)
        return sorted(left_out)

    def _note_bare(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        others = {name: value for name, value in state.items() if name in names and id(value) not in self._trained}
        self.left.without_noise.update({name: one.detach() for name, one in others.items() if isinstance(one, torch.Tensor)})

    @property
    def trained(self) -> set[str]:
        """The names of what the private optimizer trains."""
        return {name for name, value in self._state().items() if id(value) in self._trained}

    @property
    def names(self) -> set[str]:
        """The names of all that a folder could hold."""
        return set(self.module.state_dict())

    def shown(self, left_out: Collection[str]) -> dict[str, torch.Tensor]:
        """The state without these, under the module's own names, each tensor with memory of its own on the CPU."""
        held = self.held(left_out).items()
        return {name: value.resolve_conj().resolve_neg().to("cpu", copy=True).contiguous() for name, value in held}

    def held(self, left_out: Collection[str]) -> dict[str, torch.Tensor]:
        """The state without these, as the module holds it."""
        found = {}
        for name, value in self.module.state_dict().items():
            if name in left_out:
                continue
            if not isinstance(value, torch.Tensor):
                raise TrainingError(
                    f"the module's state {name!r} is a {type(value).__name__}, not a tensor; it cannot be saved"
                )
            if value.layout is not torch.strided:
                raise TrainingError(f"the module's tensor {name!r} is {value.layout}; it cannot be saved: make it dense")
            found[name] = value.detach()
        return found

    def _state(self) -> dict[str, Any]:
        """The state dict, and buffers and plain tensor attributes that are not part of it: these too can enter the loss."""
        plain = {
            f"{prefix}.{name}" if prefix else name: value
            for prefix, module in self.module.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        return {**plain, **dict(self.module.named_buffers()), **self.module.state_dict(keep_vars=True)}

    def _require_those_of(self, folder: Path) -> None:
        if (folder / "adapter_config.json").exists():
            raise TrainingError(f"{folder}: an adapter without its base cannot be resumed; use a folder of `save`")
        held, now = digests_of(folder), digests(self.held(self._left_out))
        for name in sorted(held.keys() | now.keys()):
            tied = name not in held and now[name] in held.values()  # Transformers writes shared tensors once
            if held.get(name) != now.get(name) and not tied:
                raise TrainingError(
                    f"{folder}: tensor {name!r} is not what the module holds; load the checkpoint into it before resuming"
                )


def _moved(names: Collection[str]) -> TrainingError:
    return TrainingError(
        f"{', '.join(map(repr, names))}: trained by the private optimizer, and changed by something else since recording began "
        "or since its last step (a second optimizer, load_state_dict, a hook of the module, weights written by hand), which no "
        "guarantee covers. Leave trained parameters to the private optimizer, and start the run again"
    )


def _bits(name: str, value: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as whole numbers, on its device: a NaN is equal to itself, and −0 is not 0."""
    try:
        if value.is_meta:
            raise RuntimeError("it is on the device 'meta' and has no numbers")
        plain = value.detach()
        plain = plain if plain.layout is torch.strided else plain.to_dense()
        plain = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return plain.view(_WHOLE.get(plain.element_size(), torch.uint8))
    except (RuntimeError, TypeError, NotImplementedError) as fault:
        why = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise TrainingError(
            f"the module's tensor {name!r} ({value.dtype}, {value.layout}) cannot be read, so changes cannot be detected: {why}"
        ) from None


def _same(held: torch.Tensor, now: torch.Tensor) -> bool:
    return held.dtype == now.dtype and torch.equal(held, now.to(held.device))


def _digest(name: str, value: Any) -> str:
    """A digest of a tensor's type, shape and bits; other state (get_extra_state) counts by its repr."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return _digest_of(value.dtype, tuple(value.shape), _bits(name, value))


def _digest_of(dtype: torch.dtype, shape: tuple[int, ...], bits: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{dtype} {shape} ".encode())
    digest.update(bits.cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digests_of(folder: Path) -> dict[str, str]:
    """The digests of a saved model's tensors, by name."""
    return digests(_saved(folder))


def digests(tensors: Mapping[str, Any]) -> dict[str, str]:
    """The digests of tensors, by name; of anything else its repr."""
    return {name: _digest(name, value) for name, value in tensors.items()}


def _saved(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"]:
        try:
            found |= load_file(path)
        except Exception as fault:  # the library raises its own, and whatever the file system does
            raise TrainingError(f"{path}: cannot be read: {str(fault).strip() or type(fault).__name__}") from None
    return found
