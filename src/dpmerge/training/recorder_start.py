"""Whether a training begins with a private checkpoint, and with which: by the bits of its tensors (docs/theory.md §10).

Known are the checkpoints that recorders of this process wrote, and those that the user names, as they were then: a folder may
hold another model since. Tensors that a recorded training of this process left, and that were not saved, are a private start of
which no record could say what it costs; what it changed without noise is none at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from dpmerge.errors import TrainingError
from dpmerge.records import DataFingerprint, DpSgd, Record, Shard, StartsFrom
from dpmerge.training.origin import Kept
from dpmerge.training.recorder_tensors import Left, ModuleTensors, digests_of

_SAVED: dict[str, Kept] = {}  # by the digest of a trained tensor: the latest checkpoint that a recorder saved with it
_NAMED: dict[frozenset[str], Kept] = {}  # checkpoints that users named, by what a run that started there held of them
_FOLLOWED: weakref.WeakSet[ModuleTensors] = weakref.WeakSet()
_ENDED: list[Left] = []  # what trainings left whose recorders are gone; by digests from the next recorder on
_LEFT: set[str] = set()  # their digests
_BARE: set[str] = set()  # likewise, and at every save, of what they changed without noise


def saved(tensors: ModuleTensors, folder: Path) -> None:
    """A recorder wrote this folder."""
    _SAVED.update(dict.fromkeys(tensors.left.trained(), Kept.read(folder)))
    _BARE.update(tensors.left.bare())


def follow(tensors: ModuleTensors, resumed: Path | None = None) -> None:
    """A recorded training begins, or goes on from a folder: what it leaves is private, also when its recorder is gone."""
    if resumed is not None:
        _NAMED[frozenset(digests_of(resumed).values())] = Kept.read(resumed)
    _note_ended()
    _FOLLOWED.add(tensors)
    # Tensors cannot be read by whatever runs when a recorder is collected: that may be in the middle of torch's own work.
    weakref.finalize(tensors, _ENDED.append, tensors.left).atexit = False


def _note_ended() -> None:
    while _ENDED:
        left = _ENDED.pop()
        _LEFT.update(left.trained())
        _BARE.update(left.bare())


def start_of(
    tensors: ModuleTensors,
    named: Path | None,
    dataset: str,
    data_fingerprint: DataFingerprint | None = None,
    shard: Shard | None = None,
) -> StartsFrom | None:
    """What a training that begins now starts from; nothing if that is public as far as this process knows.

    What was left out of the start stays out of the training's own checkpoints.
    """
    _note_ended()
    held = tensors.begun
    found = _named(held, named) if named is not None else _noticed(held)
    start = None if found is None else found.start_on(dataset, data_fingerprint, shard)
    if start is not None:
        tensors.leave_out(start.mechanism.left_out or ())
    bare = _BARE.union(*(earlier.left.bare() for earlier in _FOLLOWED))
    names = sorted(name for name, digest in tensors.begun.items() if digest in bare)
    if names:
        raise TrainingError(
            f"{', '.join(map(repr, names))}: changed without noise by a private training of this process, so the data are in "
            "it, and no record can say what this run starts from. Begin with public values there"
        )
    return start


def _named(held: Mapping[str, str], folder: Path) -> Kept:
    """The user's folder, some of whose tensors must be the module's; what else the module holds counts as public."""
    shared = {name: digest for name, digest in digests_of(folder).items() if held.get(name) == digest}
    if not shared:
        raise TrainingError(
            f"{folder}: the module holds none of its tensors; load the checkpoint into the module before the training begins"
        )
    found, other = Kept.read(folder), _noticed({name: digest for name, digest in held.items() if name not in shared})
    _require_one([found] if other is None else [found, other])
    _NAMED[frozenset(shared.values())] = found
    return found


def _noticed(held: Mapping[str, str]) -> Kept | None:
    """The checkpoint whose tensors the module holds."""
    left = _LEFT.union(*(earlier.left.trained() for earlier in _FOLLOWED)) - _SAVED.keys()
    names = sorted(name for name, digest in held.items() if digest in left)
    if names:
        raise TrainingError(
            f"{', '.join(map(repr, names))}: left by a private training of this process and not saved, so no record can "
            "say what this run starts from. Save that training's checkpoint first, or begin with public parameters"
        )
    digests = set(held.values())
    known = [_SAVED[digest] for digest in digests & _SAVED.keys()]
    known += [kept for some, kept in _NAMED.items() if some <= digests]
    _require_one(known)
    return next(iter(known), None)


def _require_one(known: Iterable[Kept]) -> None:
    """Refuse tensors of several checkpoints; copies of one in several folders are one."""
    folders = {(kept.record.mechanism.run, kept.digest): str(kept.folder) for kept in known}
    if len(folders) > 1:
        names = ", ".join(sorted(folders.values()))
        raise TrainingError(f"the module holds tensors of several private checkpoints ({names}); a run starts from one")


def resumable(
    folder: Path,
    dataset: str,
    run: str | None,
    smoothness: float | None,
    convex: str | None,
    data_fingerprint: DataFingerprint | None,
) -> DpSgd:
    """The mechanism in a saved folder, if it is the beginning of this run."""
    held = Record.load(folder / "record.json")
    before = held.mechanism
    if not isinstance(before, DpSgd) or held.source != "recorded":
        raise TrainingError(f"{folder}: only a record that was made by the recorder can be continued")
    stated = {"dataset": dataset, "run": run, "smoothness": smoothness, "convex": convex}
    known = {"dataset": held.dataset, "run": before.run, "smoothness": before.smoothness, "convex": before.convex}
    for name, value in stated.items():
        if value is not None and value != known[name]:
            raise TrainingError(f"{folder}: its {name} is {known[name]!r}, not {value!r}; a run has one")
    if held.data_fingerprint != data_fingerprint:
        raise TrainingError(
            f"{folder}: the fingerprint of its data is not the one given (data_fingerprint), or one of the two is missing; "
            "give that of the same data under the same key, or none where there was none"
        )
    return before
