"""A new folder is whole or absent: processes that die at any moment, and others that write beside them."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpmerge.errors import CheckpointError
from dpmerge.tensors import abandoned_proofs, merge_models, new_folder
from tests.checkpoint_builders import single, verify_combination

WEIGHTS = {"a": 0.5, "b": 0.5}
# Merges, and stops for ever at the moment named on the command line.
SCRIPT = """
import sys, time
from pathlib import Path
from dpmerge.tensors import merge_models
root, moment = Path(sys.argv[1]), sys.argv[2]
def stop(*_):
    print("here", flush=True)
    time.sleep(60)
options = {"stream": {"progress": stop}, "extra": {"extra_files": stop}, "never": {}}[moment]
print("ready", flush=True)
merge_models({n: root / n for n in "ab"}, {"a": 0.5, "b": 0.5}, root / "out", **options)
"""


def models(root: Path, size: int = 300_000) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    return {n: single(root / n, {"x": rng.standard_normal(size).astype(np.float32)}) for n in "ab"}


def start(root: Path, moment: str, word: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(root), moment], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            break
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def temporary(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if "dpmerge-tmp" in path.name]


@pytest.mark.parametrize("moment", ["stream", "extra"])
def test_a_killed_merge_leaves_nothing_and_the_next_one_cleans_up(tmp_path: Path, moment: str) -> None:
    inputs = models(tmp_path)
    process = start(tmp_path, moment, b"here")
    try:
        assert len(temporary(tmp_path)) == 1 and not (tmp_path / "out").exists()
        merge_models(inputs, WEIGHTS, tmp_path / "other")  # another process must not take it for abandoned
        assert len(temporary(tmp_path)) == 1
    finally:
        kill(process)
    assert not (tmp_path / "out").exists()
    merge_models(inputs, WEIGHTS, tmp_path / "out")
    assert temporary(tmp_path) == []
    assert not verify_combination(inputs, WEIGHTS, tmp_path / "out")


def test_killed_at_any_moment(tmp_path: Path) -> None:
    inputs = models(tmp_path, 3_000_000)
    chance = random.Random(1)
    for _ in range(4):
        process = start(tmp_path, "never", b"ready")
        time.sleep(chance.uniform(0, 0.05))
        kill(process)
        if (tmp_path / "out").exists():
            assert not verify_combination(inputs, WEIGHTS, tmp_path / "out")
            (tmp_path / "out").rename(tmp_path / f"out-{time.monotonic_ns()}")
    merge_models(inputs, WEIGHTS, tmp_path / "out")
    assert temporary(tmp_path) == []


def test_an_interrupted_merge_leaves_nothing(tmp_path: Path) -> None:
    inputs = models(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_models(inputs, WEIGHTS, tmp_path / "out", progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not strict:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(CheckpointError, match="exists already"), new_folder(tmp_path / "out"):
        (tmp_path / "out").mkdir()  # empty: plain rename would replace it
    assert list((tmp_path / "out").iterdir()) == [] and temporary(tmp_path) == []
    with new_folder(tmp_path / "second") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "second" / "file").read_text() == "x"


def test_a_temporary_folder_that_another_process_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the release failed with "No such file or directory"."""
    taken: list[Path] = []

    def opening(path: Path, *how: int) -> int:
        if not taken:
            taken.append(path)
            path.rmdir()
        return opened(path, *how)

    opened = os.open
    monkeypatch.setattr("dpmerge.tensors.folder.os.open", opening)
    with new_folder(tmp_path / "out") as folder:
        assert folder != taken[0]
    assert (tmp_path / "out").is_dir()


def test_only_abandoned_temporary_folders_are_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / f".x.dpmerge-tmp-1-{'0' * 16}"
    (abandoned / "deep").mkdir(parents=True)
    precious = [tmp_path / ".x.dpmerge-tmp-1-0", tmp_path / "x.dpmerge-tmp-1-0000000000000000", tmp_path / "kept"]
    for path in precious:
        path.mkdir()
    link = tmp_path / f".y.dpmerge-tmp-1-{'0' * 16}"
    link.symlink_to(tmp_path / "kept")
    with new_folder(tmp_path / "out"):
        pass
    assert not abandoned.exists() and link.is_symlink() and all(path.exists() for path in precious)


def test_a_folder_may_vanish_while_others_look_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fails removes its own folder, at any moment."""
    whom = "0" * 16
    left = tmp_path / f".x.dpmerge-proof-{whom}-1-{'0' * 16}"

    def seen_for_the_last_time(path: Path) -> bool:
        found = path.is_dir()
        if path == left and found:
            path.rmdir()
        return found

    monkeypatch.setattr("dpmerge.tensors.folder.is_proof", seen_for_the_last_time)
    left.mkdir()
    with abandoned_proofs(whom, tmp_path) as found:
        assert found == [] and not left.exists()

    def locked_as_it_vanishes(lock: int, folder: Path) -> bool:
        folder.rmdir()
        return True

    monkeypatch.setattr("dpmerge.tensors.folder._locks", locked_as_it_vanishes)
    left.mkdir()
    with new_folder(tmp_path / "out"):
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = models(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CheckpointError, match="out: cannot be written: No space left on device"):
        merge_models(inputs, WEIGHTS, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_everything_is_on_the_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, (tmp_path / "out").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
    names = [name for name, _ in synced]
    assert names[0] == "file" and "dpmerge-tmp" in names[1] and names[2] == tmp_path.name
    assert [after for _, after in synced] == [False, False, True]


@pytest.mark.parametrize("proof", ["", "0" * 16])
def test_nobody_else_looks_into_a_folder_that_has_no_name_yet(tmp_path: Path, proof: str) -> None:
    """Before: a release that is voided, since it was never renamed, could have been read meanwhile."""
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o2775)
    for parent in (tmp_path, tmp_path / "group"):
        (parent / "ordinary").mkdir()
        with new_folder(parent / "out", proof_for=proof) as folder:
            assert folder.stat().st_mode & 0o077 == 0
        assert (parent / "out").stat().st_mode == (parent / "ordinary").stat().st_mode
