"""What a power cut leaves of a ledger and a release: `python -m tests.power_loss 100` tries so many drawn cuts at every point.

A ledger and releases of several kinds are made under strace. Their system calls are then done again on a disk that keeps only
what it must: the content of a file since it was synced, and the names in a folder since that was. At every point the power
fails; of what was not synced the disk kept nothing, all names, all contents, everything, or what was drawn (names of one folder
in their order, writes by sectors). The computer starts again: the ledger must open and count every release that may have been
seen, each release that is there must verify, and the secret of noise that may have been seen must be there.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from unittest.mock import patch

from dpmerge.errors import CheckpointError, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release, release_together, tables, verify
from dpmerge.release.certificate import NAME
from dpmerge.release.entries import standing
from dpmerge.release.ladder import Ladders
from dpmerge.rules import RuleName
from tests.ledger_builders import new, written
from tests.ledger_workers import DELTA

CALLS = (
    "open,openat,creat,write,writev,pwrite64,pwritev,pwritev2,lseek,ftruncate,truncate,fsync,fdatasync,rename,renameat,renameat2,"
    "unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,sendfile,copy_file_range,fallocate,sync_file_range,mmap"
)
Kept = Literal["nothing", "names", "contents", "everything"] | int  # an integer is the seed of a draw
KINDS = ("combination", "failed", "selection", "noised", "noised again", "together")  # one after the other, in one ledger
_SECTOR = 512  # bytes, of which a disk keeps all or none


# --- what was asked of the operating system ----------------------------------------------------------------------------------


class Call(NamedTuple):
    name: str
    arguments: list[str]
    result: int


def recorded(folder: Path, kinds: Sequence[str]) -> list[Call]:
    """The calls of releases into this folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written(folder / "runs")
    log = folder.with_name("calls")
    traced = ["strace", "-f", "-y", "-xx", "-s", "10000000", "-e", f"trace={CALLS}", "-o", str(log)]
    line = [*traced, sys.executable, "-m", "tests.power_loss", "release", str(folder), *kinds]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1", "DPMERGE_CACHE": "off"}
    subprocess.run(line, check=True, env=environment, stdout=subprocess.DEVNULL)
    return list(_parsed(log.read_text()))


def _parsed(text: str) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in text.splitlines():
        pid, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>")
            continue
        if found := re.match(r"<\.\.\. \w+ resumed>(.*)", rest):
            rest = begun.pop(pid) + found[1]
        if found := re.match(r"(\w+)\((.*)\)\s*= (\d+|0x[0-9a-f]+)(<|\s|$)", rest):  # those that failed changed nothing
            yield Call(found[1], re.split(r", ", found[2]), int(found[3], 0))


def _bytes(text: str) -> bytes:
    """Of a string as strace writes it, all in hexadecimal digits."""
    return bytes.fromhex(text.strip('"').replace("\\x", ""))


# --- a disk that keeps only what it must -------------------------------------------------------------------------------------


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # what to write where; None cuts there

    def after(self, changes: list[tuple[int, bytes | None]]) -> bytearray:
        found = bytearray(self.content)
        for offset, data in changes:
            if data is None:
                del found[offset:]
            found.extend(bytes(max(0, offset + len(data or b"") - len(found))))
            found[offset : offset + len(data or b"")] = data or b""
        return found


@dataclass
class Folder:
    names: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)  # names that came or went together

    def after(self, changes: list[dict[str, Node | None]]) -> dict[str, Node]:
        found: dict[str, Node | None] = {**self.names}
        for change in changes:
            found |= change
        return {name: node for name, node in found.items() if node is not None}


Node = File | Folder


class Disk:
    """Everything below one folder, as the operating system shows it and as the disk holds it."""

    def __init__(self, root: Path, before: Path) -> None:
        self.root, self.tree = root, _loaded(before)
        self._offsets: dict[str, int] = {}  # by descriptor

    def do(self, call: Call) -> bool:
        """Whether this changed anything, or made it durable."""
        name, given = call.name, call.arguments
        if name in ("open", "openat", "creat"):
            return self._open(call)
        if name == "lseek":
            self._offsets[given[0]] = call.result
            return False
        if name in ("rename", "renameat", "renameat2"):
            paths = [one for one in given if one.startswith('"')]
            return self._rename(*map(self._path, paths))
        if name in ("link", "linkat"):
            paths = [one for one in given if one.startswith('"')]
            source, target = map(self._path, paths)
            return self._name(target, None if source is None else self._at(source))
        if name in ("unlink", "unlinkat", "rmdir"):
            return self._name(self._path(next(one for one in given if one.startswith('"'))), None)
        if name in ("mkdir", "mkdirat"):
            return self._name(self._path(next(one for one in given if one.startswith('"'))), Folder())
        return self._on_descriptor(call)

    def _on_descriptor(self, call: Call) -> bool:
        found = re.match(r"\d+<([^>]*)>", call.arguments[0])
        path = None if found is None else self._path(f'"{found[1]}"')
        node = None if path is None else self._at(path)
        if node is None:  # elsewhere, or a file that has no name any more
            return False
        if call.name in ("fsync", "fdatasync"):
            if isinstance(node, File):
                node.content, node.pending = node.after(node.pending), []
            else:
                node.names, node.pending = node.after(node.pending), []
            return True
        assert isinstance(node, File)
        if call.name == "write":
            offset = self._offsets.get(call.arguments[0], 0)
            node.pending.append((offset, _bytes(call.arguments[1])[: call.result]))
            self._offsets[call.arguments[0]] = offset + call.result
        elif call.name == "pwrite64":
            node.pending.append((int(call.arguments[3]), _bytes(call.arguments[1])[: call.result]))
        elif call.name == "ftruncate":
            node.pending.append((int(call.arguments[1]), None))
        else:
            assert call.name == "mmap" and "MAP_SHARED" not in call.arguments[3], f"a call that is not understood: {call}"
            return False
        return True

    def _open(self, call: Call) -> bool:
        given = call.arguments if call.name != "openat" else call.arguments[1:]
        path = self._path(given[0])
        if path is None:
            return False
        descriptor = f"{call.result}<{given[0].strip(chr(34))}>"
        self._offsets = {one: at for one, at in self._offsets.items() if not one.startswith(f"{call.result}<")}
        self._offsets[descriptor] = 0
        node = self._at(path)
        if node is None:
            return self._name(path, File())
        if isinstance(node, File) and "O_TRUNC" in given[1]:
            node.pending.append((0, None))
            return True
        assert "O_APPEND" not in given[1], f"a call that is not understood: {call}"
        return False

    def _path(self, text: str) -> tuple[str, ...] | None:
        """Below the root; None elsewhere."""
        path = os.fsdecode(_bytes(text))
        assert path.startswith("/") or not path or "/" not in path, f"a relative path: {path}"
        inside = path == str(self.root) or path.startswith(f"{self.root}/")
        return Path(path).relative_to(self.root).parts if inside else None

    def _at(self, path: tuple[str, ...]) -> Node | None:
        node: Node | None = self.tree
        for name in path:
            node = node.after(node.pending).get(name) if isinstance(node, Folder) else None
        return node

    def _name(self, path: tuple[str, ...] | None, node: Node | None) -> bool:
        if path is None:
            return False
        parent = self._at(path[:-1])
        assert isinstance(parent, Folder)
        parent.pending.append({path[-1]: node})
        return True

    def _rename(self, source: tuple[str, ...] | None, target: tuple[str, ...] | None) -> bool:
        if source is None or target is None:
            return False
        assert source[:-1] == target[:-1], "renamed into another folder"
        parent = self._at(source[:-1])
        assert isinstance(parent, Folder)
        parent.pending.append({target[-1]: self._at(source), source[-1]: None})
        return True

    def left(self, kept: Kept) -> dict[str, bytes | None]:
        """What is there after a power cut, by path; None for a folder."""
        drawing = random.Random(kept) if isinstance(kept, int) else None
        found: dict[str, bytes | None] = {}

        def visit(node: Node, path: str) -> None:
            if isinstance(node, File):
                writes = node.pending if kept in ("contents", "everything") else []
                if drawing is not None:
                    writes = [part for one in node.pending for part in _drawn(one, drawing)]
                found[path] = bytes(node.after(writes))
                return
            found[path] = None
            changes = node.pending if kept in ("names", "everything") else []
            if drawing is not None:
                changes = node.pending[: drawing.randint(0, len(node.pending))]
            for name, inner in sorted(node.after(changes).items()):
                visit(inner, f"{path}/{name}")

        visit(self.tree, "")
        return found


def _drawn(write: tuple[int, bytes | None], drawing: random.Random) -> Iterator[tuple[int, bytes | None]]:
    """What a disk kept of a write: all of it, nothing, or some of its sectors."""
    (offset, data), likely = write, drawing.choice((0.0, 0.5, 1.0))
    if data is None:
        yield from [write] if drawing.random() < 0.5 else []
        return
    at = offset
    while at < offset + len(data):
        end = min(at - at % _SECTOR + _SECTOR, offset + len(data))
        if drawing.random() < likely:
            yield at, data[at - offset : end - offset]
        at = end


def _loaded(path: Path) -> Folder:
    def load(at: Path) -> Node:
        return Folder({one.name: load(one) for one in at.iterdir()}) if at.is_dir() else File(bytearray(at.read_bytes()))

    found = load(path)
    assert isinstance(found, Folder)
    return found


# --- the power fails ----------------------------------------------------------------------------------------------------------


def cut(folder: Path, drawn: int, kinds: Sequence[str] = KINDS, seed: int = 0) -> Counter[str]:
    """Cut the power at every point of releases, with so many draws of what was kept at each, and look at what is left."""
    calls = recorded(folder, kinds)
    before = folder.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    before.mkdir()
    shutil.copytree(folder / "runs", before / "runs")
    disk, states, seen, generator = Disk(folder, before), set[int](), frozenset[str](), random.Random(seed)
    counted: Counter[str] = Counter()
    for call in calls:
        if not disk.do(call):
            continue
        counted["points"] += 1
        if call.name == "renameat2":
            named = Path(os.fsdecode(_bytes([one for one in call.arguments if one.startswith('"')][1])))
            seen |= {named.name} if named.parent == folder else frozenset()  # not those inside a temporary folder
        ways: list[Kept] = ["nothing", "names", "contents", "everything", *(generator.getrandbits(32) for _ in range(drawn))]
        for kept in ways:
            left = disk.left(kept)
            counted["cuts"] += 1
            if (state := hash((seen, tuple(left.items())))) not in states:
                states.add(state)
                counted[_looked_at(folder, left, seen)] += 1
    assert seen == {kind for kind in kinds if kind != "failed"}, "a release never got its name"
    return counted + Counter(states=len(states))


def _looked_at(folder: Path, left: dict[str, bytes | None], seen: frozenset[str]) -> str:
    """Start again with what is left; `seen` are the releases that had their names before."""
    shutil.rmtree(folder)
    for path, content in left.items():
        at = Path(f"{folder}{path}")
        at.mkdir() if content is None else at.write_bytes(content)
    boot = patch("dpmerge.release.processes._boot", lambda: "started again")
    with boot, patch.dict(os.environ, {"XDG_STATE_HOME": str(folder / "state")}):
        try:
            ledger = Ledger(folder / "ledger.db")
        except LedgerError as fault:
            if seen or "was made" in str(fault) or "tampered" in str(fault):
                raise
            return "no ledger yet"
        portfolio = Portfolio(folder / "runs")
        there = {kind for kind in KINDS if (folder / kind).exists()}
        for certificate in (path for kind in there for path in (folder / kind).rglob(NAME)):
            verdict = verify(certificate.parent, portfolio=portfolio, ledger=ledger)
            assert verdict.code == 0, verdict
        ledger.recover()
        counted = {Path(entry.content["out"]).name: entry.content["forms"][0] for entry in standing(ledger.history())}
        assert seen | there <= {*counted}, f"{seen | there} were seen, and {[*counted]} are counted"
        ladders = {counted[kind]["ladder"] for kind in seen | there if counted[kind].get("ladder")}
        assert ladders <= Ladders(folder / "runs").ids(), "noise was seen, and its secret is lost"
        last = max((KINDS.index(kind) for kind in seen | there | {*counted}), default=None)
        if last is None:
            return "not counted, never seen"
        kind = KINDS[last]
        what = "there" if kind in there else "gone" if kind in seen else "never seen"
        return f"{'counted' if kind in counted else 'not counted'}, {what}"


def main(folder: Path, kinds: Sequence[str]) -> None:
    """What is recorded: a new ledger, and releases that are entered in it; one fails, and its entry is voided."""
    tables._locking.add(os.stat(folder).st_dev)  # not what is looked at here, and done by another process
    portfolio, ledger = Portfolio(folder / "runs"), new(folder / "ledger.db", epsilon=300.0)
    weights = portfolio.weights({"b": 0.5, "c": 0.5})
    for kind in kinds:
        if kind == "together":
            drawn = {name: choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({name: 1.0})) for name in "bc"}
            release_together(portfolio, drawn, folder / kind, ledger=ledger)
            continue
        noise = {"noised": 0.6, "noised again": 0.3}.get(kind)
        rule: RuleName = "selection" if kind == "selection" else "combination"
        choice = choose(portfolio, rule, delta=DELTA, weights=weights, noise=noise)
        fails = patch("dpmerge.release.making.seal", side_effect=CheckpointError("the disk is full"))
        with fails if kind == "failed" else nullcontext(), suppress(CheckpointError):
            release(portfolio, choice, folder / kind, ledger=ledger)


if __name__ == "__main__":
    if sys.argv[1] == "release":
        main(Path(sys.argv[2]), sys.argv[3:])
    else:
        with tempfile.TemporaryDirectory() as name:
            for what, count in cut(Path(name).resolve() / "home", int(sys.argv[1])).items():
                print(f"{count:8,} {what}")
