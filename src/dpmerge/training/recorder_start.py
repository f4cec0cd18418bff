"""Whether a training begins with a private checkpoint, and with which: by the bits of its tensors (docs/theory.md §10).

Known are the folders that recorders of this process wrote, and a folder that the user names. Tensors that a recorded training
of this process left, and that were not saved, are a private start of which no record could say what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from dpmerge.errors import TrainingError
from dpmerge.records import StartsFrom
from dpmerge.training.origin import starts_from
from dpmerge.training.recorder_tensors import ModuleTensors, digests_of

_SAVED: dict[str, tuple[int, Path]] = {}  # by the digest of a trained tensor: the step after which it was saved, and where
_NAMED: dict[Path, frozenset[str]] = {}  # folders that users named: what a run that started there held of them
_FOLLOWED: WeakSet[ModuleTensors] = WeakSet()


def saved(tensors: ModuleTensors, step: int, folder: Path) -> None:
    """A recorder wrote this folder."""
    _SAVED.update(dict.fromkeys(tensors.trained_digests().values(), (step, folder.resolve())))


def start_of(tensors: ModuleTensors, named: Path | None, dataset: str) -> StartsFrom | None:
    """What a training that begins now starts from; nothing if that is public as far as this process knows."""
    held = tensors.digests()
    found = _named(held, named) if named is not None else _noticed(held)
    _FOLLOWED.add(tensors)
    return None if found is None else starts_from(found, dataset)


def _named(held: Mapping[str, str], folder: Path) -> Path:
    """The user's folder, some of whose tensors must be the module's; what else the module holds counts as public."""
    shared = {name: digest for name, digest in digests_of(folder).items() if held.get(name) == digest}
    if not shared:
        raise TrainingError(
            f"{folder}: the module holds none of its tensors; load the checkpoint into the module before the training begins"
        )
    others = {folder.resolve(), _noticed({name: digest for name, digest in held.items() if name not in shared})}
    if len(others - {None}) > 1:
        raise _several(others)
    _NAMED[folder.resolve()] = frozenset(shared.values())
    return folder


def _noticed(held: Mapping[str, str]) -> Path | None:
    """The folder of this process whose tensors the module holds; of several checkpoints with them the latest."""
    for earlier in list(_FOLLOWED):
        left = set(earlier.trained_digests().values()) - _SAVED.keys() - set(earlier.begun.values())
        names = sorted(name for name, digest in held.items() if digest in left)
        if names:
            raise TrainingError(
                f"{', '.join(map(repr, names))}: left by a private training of this process and not saved, so no record can "
                "say what this run starts from. Save that training's checkpoint first, or begin with public parameters"
            )
    known: dict[str, tuple[int, Path]] = {digest: _SAVED[digest] for digest in held.values() if digest in _SAVED}
    folders = {folder for _, folder in known.values()}
    folders |= {folder for folder, digests in _NAMED.items() if digests <= set(held.values())}
    if len(folders) > 1:
        raise _several(folders)
    return next(iter(folders), None)


def _several(folders: Any) -> TrainingError:
    names = ", ".join(sorted(str(folder) for folder in folders if folder is not None))
    return TrainingError(f"the module holds tensors of several private checkpoints ({names}); a run starts from one")
