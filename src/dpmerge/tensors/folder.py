"""A folder that appears whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpmerge.errors import CheckpointError
from dpmerge.files import sync

_TEMPORARY = re.compile(r"\..+\.dpmerge-(tmp|proof)-(?:([0-9a-f]{16})-)?\d+-[0-9a-f]{16}")
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


@contextmanager
def new_folder(target: Path, *, proof_for: str = "", private: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that becomes `target` when the block ends well, and vanishes otherwise.

    Every file is on the disk before the name appears, and a folder that is already there is never replaced. A process that is
    killed leaves its temporary folder; the next one that writes beside it removes it. With `proof_for` it is only emptied, then
    and when the block fails: a folder that still has its temporary name was never renamed. Whoever needs that proof (16
    hexadecimal digits) removes it. Until it has its name nobody else may look into it; into one that is `private`, never.
    """
    require_absent(target)
    try:
        with _temporary(target, f"proof-{proof_for}" if proof_for else "tmp") as (folder, lock):
            mode = _usual_mode(folder)
            yield folder
            _sync_tree(folder)
            _rename(folder, target)
            if not private:
                os.fchmod(lock, mode)  # not before: what was looked into and never renamed would be taken for unseen
            sync(target.parent)
    except OSError as fault:
        raise CheckpointError(f"{target}: cannot be written: {fault.strerror or fault}") from fault


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield a folder for its owner alone that vanishes when the block ends, or when the next one is made after a kill."""
    with _temporary(beside, "tmp") as (folder, _):
        yield folder
        _discard(folder)


@contextmanager
def _temporary(target: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """A temporary folder and the descriptor that holds its lock; removed if the block fails."""
    _remove_abandoned(target.parent)
    folder, lock = _locked_folder(target, kind)
    try:
        yield folder, lock
    except BaseException:
        _discard(folder)
        raise
    finally:
        os.close(lock)


def _usual_mode(folder: Path) -> int:
    """What the umask and the folder around it give to a new folder: tried inside this one, into which nobody else can look."""
    probe = folder / "mode"
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    return mode


def require_absent(target: Path) -> None:
    """Refuse a target that exists, or has no folder to be in."""
    if os.path.lexists(target):
        raise CheckpointError(f"{target}: exists already; it is never overwritten: choose another name or remove it")
    if not target.parent.is_dir():
        raise CheckpointError(f"{target}: there is no folder {target.parent}; make it first")


def require_space(target: Path, size: int) -> None:
    """Refuse what will not fit on the disk, of so many bytes."""
    free = shutil.disk_usage(target.parent).free
    if free < size:
        raise CheckpointError(f"{target}: cannot be written: it takes {size:,} bytes, and {free:,} are free there")


def is_proof(folder: Path) -> bool:
    """Whether this is a folder of `new_folder` with `proof_for` that was never renamed."""
    found = _TEMPORARY.fullmatch(folder.name)
    return found is not None and found[1] == "proof" and folder.is_dir() and not folder.is_symlink()


@contextmanager
def abandoned_proofs(whom: str, parent: Path) -> Iterator[list[Path]]:
    """Such folders in this one whose writers are gone, those of others left out; their locks are held meanwhile.

    A folder is there before its writer has locked it: who lets go of the lock before removing it would remove it under a writer
    that has begun.
    """
    with contextlib.ExitStack() as held:
        found = []
        for path in parent.iterdir():
            parts = _TEMPORARY.fullmatch(path.name)
            if parts is None or parts[2] != whom or not is_proof(path):
                continue
            with contextlib.suppress(FileNotFoundError):  # its writer removed it, or gave it its name
                if path.stat().st_uid == os.geteuid() and held.enter_context(abandoned(path)):
                    found.append(path)
        yield found


def remove_proof(folder: Path) -> None:
    """Remove such a folder, and nothing else."""
    if is_proof(folder):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def abandoned(folder: Path) -> Iterator[bool | None]:
    """Whether the writer of a temporary folder is gone, whose lock is then held here; None where that cannot be known.

    The writer holds the lock from before its first file until after the rename. Locks are the kernel's: they tell of every
    process on it, in whatever namespace, and end with it.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        yield _locks(lock, folder)
    finally:
        os.close(lock)


def _locks(lock: int, folder: Path) -> bool | None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return None
    with contextlib.suppress(OSError):  # between opening and locking it may have been renamed into place
        if os.path.samestat(os.stat(folder, follow_symlinks=False), os.fstat(lock)):
            return True
    return None


def _locked_folder(target: Path, kind: str) -> tuple[Path, int]:
    """A fresh temporary folder and a descriptor that holds its lock as long as this process lives.

    The folder itself is locked, not a file in it: nothing has to be removed before the rename.
    """
    while True:
        folder = target.parent / f".{target.name}.dpmerge-{kind}-{os.getpid()}-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another process removed it as abandoned before it was opened
        with contextlib.suppress(OSError):  # file systems without such locks: then no process can take it for abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another process removed it as abandoned before it was locked


def _remove_abandoned(parent: Path) -> None:
    """Remove temporary folders whose process has ended, or what is in them: their lock is free."""
    for path in parent.iterdir():
        if not _TEMPORARY.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        # Whoever fails removes its own folder, which may be this one, without the lock.
        with contextlib.suppress(FileNotFoundError), abandoned(path) as gone:
            if gone and path.stat().st_uid == os.geteuid():  # root could look into those of others too
                _discard(path)


def _discard(folder: Path) -> None:
    """Remove a temporary folder; of one that is a proof, what is in it."""
    if not is_proof(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def _rename(folder: Path, target: Path) -> None:
    """Rename without replacing anything. Plain rename would replace an empty folder, so Linux is asked for the strict one."""
    strict = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if strict is not None:
        if strict(_AT_FDCWD, os.fsencode(folder), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):  # those two: this file system has only the plain one
            if code == errno.EEXIST:
                require_absent(target)
            raise OSError(code, os.strerror(code))
    require_absent(target)
    folder.rename(target)
