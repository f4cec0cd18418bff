"""Changed files for every reader: `python -m tests.fuzz 1000000` (make fuzz). Each is read, or refused in one line.

Children, forked with everything loaded, read one input after another under an alarm and a limit of memory. What ends in another
error, takes too long or needs more memory than its bound is written to build/fuzz, by reader and number.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpmerge.errors import DpmergeError, one_line
from dpmerge.explorer.requests import AccountRequest, FrontierRequest, PlanRequest, ReleaseRequest
from dpmerge.jobs.finished import Finished
from dpmerge.records import Portfolio, Record, Weights
from dpmerge.release import CardTemplate, Certificate, Ledger
from dpmerge.release.readme import certified_section
from dpmerge.release.signing import Signer, trusted_key
from dpmerge.tensors import open_model
from dpmerge.tensors.companions import without_private
from dpmerge.tensors.pytorch import load
from dpmerge.training.data_fingerprint import fingerprint_of, read_data_key
from dpmerge.training.feature_files import read_training
from dpmerge.training.head import LinearHead
from dpmerge.training.opacus_accounting import _history
from dpmerge.training.portfolio_file import PortfolioFile
from tests import builders
from tests.fuzz_inputs import Corpus, changed, corpus, dense

SECONDS = 60.0  # for one input, on a busy machine
FEW, TIMES = 64 << 20, 64  # bytes of memory beside what the process had before: so many, and so many for each byte of the input
_CHILD = 5000  # inputs of one child
_LONGEST = 2000  # characters of a refusal
_PORTFOLIO = Portfolio((builders.dp_sgd("a", sigma=1.0), builders.dp_sgd("b", sigma=2.0)))
_FOLDERS = {"safetensors": "model.safetensors", "shards": "model.safetensors.index.json", "adapter": "adapter_config.json"}
_FOLDERS |= {"torch": "model.pt", "head": "config.json"}


class Slow(BaseException):
    """An input that took too long."""


def _open(folder: Path) -> None:
    with open_model(folder) as model:
        for tensor in model.tensors.values():
            tensor.values() if tensor.dtype.floating else tensor.load()


def _torch(folder: Path) -> None:
    held = load(folder / "model.pt", "file").content
    if isinstance(held, dict) and "privacy_accountant_state_dict" in held:
        with contextlib.suppress(DpmergeError):
            _history(held["privacy_accountant_state_dict"], "file")
    _open(folder)


def _request(path: Path) -> None:
    for form in (AccountRequest, PlanRequest, FrontierRequest, ReleaseRequest):
        with contextlib.suppress(ValidationError):
            form.model_validate_json(path.read_bytes())


def _finished(path: Path) -> None:
    with Finished(path):
        pass


def _certificate(path: Path) -> None:
    Certificate.parse(path.read_bytes(), str(path)).faults()


def _decoded(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


READERS: dict[str, Callable[[Path], Any]] = {
    "record": Record.load,
    "safetensors": _open,
    "shards": _open,
    "adapter": _open,
    "torch": _torch,
    "companion": lambda path: without_private({"config.json": path.read_bytes(), "tokenizer.json": path.read_bytes()}, ()),
    "head": LinearHead.load,
    "certificate": _certificate,
    "card": lambda path: certified_section(_decoded(path)),
    "template": CardTemplate.load,
    "portfolio file": PortfolioFile.load,
    "npz": read_training,
    "npy": read_training,
    "csv": lambda path: fingerprint_of(path, b"k" * 32),
    "ledger": lambda path: Ledger(path).history(),
    "private key": Signer,
    "public key": trusted_key,
    "data key": read_data_key,
    "request": _request,
    "finished work": _finished,
    "weights": lambda path: Weights.parse(_PORTFOLIO, _decoded(path)),
}
_ENDINGS = {"npz": ".npz", "npy": ".npy", "csv": ".csv", "ledger": ".db"}


@dataclass
class Result:
    """What became of the inputs of one child, or of all."""

    counts: Counter[str] = field(default_factory=Counter)  # "reader outcome"
    findings: dict[str, list[str]] = field(default_factory=dict)  # what happened → where the inputs are
    slowest: tuple[float, str] = (0.0, "")
    most: tuple[float, str] = (0.0, "")  # MiB beside what the child began with

    def add(self, other: Result) -> None:
        self.counts += other.counts
        for what, places in other.findings.items():
            self.findings.setdefault(what, []).extend(places)
        self.slowest, self.most = max(self.slowest, other.slowest), max(self.most, other.most)


@dataclass(frozen=True)
class Fuzzer:
    """The corpus, the folders that readers read in, and where findings are kept."""

    inputs: Corpus
    place: Path
    kept: Path
    seed: int = 0

    @classmethod
    def made(cls, place: Path, kept: Path, seed: int = 0) -> Fuzzer:
        made = corpus(place / "corpus")
        for reader, name in _FOLDERS.items():
            folder = place / reader
            folder.mkdir()
            source = {"shards": "sharded", "adapter": "lora", "head": "runs/a"}.get(reader)
            for path in (place / "corpus" / source).iterdir() if source else ():
                if path.name not in (name, "record.json"):
                    (folder / path.name).write_bytes(path.read_bytes())
        return cls({reader: found for reader, found in made.items() if found}, place, kept, seed)

    def input(self, number: int) -> tuple[str, bytes]:
        """The reader and the content of an input, by its number."""
        draw = random.Random(f"{self.seed} {number}")
        reader = sorted(self.inputs)[number % len(self.inputs)]
        everything = [one for held in self.inputs.values() for one in held]
        return reader, changed(draw.choice(self.inputs[reader]), draw.choice(everything), draw)

    def read(self, reader: str, content: bytes) -> str:
        """ "read", "refused", or what went wrong."""
        path = self.place / f"input{_ENDINGS.get(reader, '')}"
        if reader in _FOLDERS:
            path = self.place / reader / _FOLDERS[reader]
        path.write_bytes(content)
        for leftover in self.place.glob("input.db-*"):
            leftover.unlink()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                warnings.simplefilter("error", UserWarning)
                READERS[reader](path.parent if reader in _FOLDERS else path)
            return "read"
        except DpmergeError as error:
            return "refused" if len(one_line(error)) <= _LONGEST else "a refusal without an end"
        except Slow:
            return f"more than {SECONDS:g} s"
        except Exception as error:
            ours = [one for one in traceback.extract_tb(error.__traceback__) if "fuzz" not in one.filename]
            where = ours[-1] if ours else traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def run(self, numbers: range, progress: mmap.mmap | None = None) -> Result:
        """Read these inputs in this process."""
        result, first = Result(), _peak()
        before_alarm = signal.signal(signal.SIGALRM, _too_slow)
        try:
            for number in numbers:
                if progress is not None:
                    progress[:8] = number.to_bytes(8, "little")
                reader, content = self.input(number)
                before, began = _peak(), time.monotonic()
                outcome = self.read(reader, content)
                took, grown = time.monotonic() - began, _peak() - first
                result.slowest = max(result.slowest, (round(took, 3), f"{reader} {number}"))
                if _peak() > before:
                    result.most = max(result.most, (round(grown / 2**20, 1), f"{reader} {number}, {len(content):,} bytes"))
                    if grown > FEW + TIMES * len(content):
                        outcome, first = f"{grown >> 20} MiB of memory", _peak()
                result.counts[f"{reader}: {outcome if outcome in ('read', 'refused') else 'finding'}"] += 1
                if outcome not in ("read", "refused"):
                    result.findings.setdefault(f"{reader}: {outcome}", []).append(self.keep(reader, number, content))
        finally:
            signal.signal(signal.SIGALRM, before_alarm)
        return result

    def keep(self, reader: str, number: int, content: bytes) -> str:
        self.kept.mkdir(parents=True, exist_ok=True)
        path = self.kept / f"{reader.replace(' ', '-')}-{number}"
        path.write_bytes(content)
        return str(path)

    def in_child(self, numbers: range) -> Result:
        """The same in a child process: one that dies or hangs is a finding too."""
        progress = mmap.mmap(-1, 8)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                found = self.run(numbers, progress)
                with os.fdopen(writing, "w") as pipe:
                    json.dump([found.counts, found.findings, found.slowest, found.most], pipe)
            finally:
                os._exit(0)
        os.close(writing)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        with os.fdopen(reading) as pipe:
            signal.alarm(int(600 + SECONDS))  # code in C that no alarm of its own interrupts
            said = pipe.read()
            signal.alarm(0)
        os.waitpid(child, 0)
        if said:
            counts, findings, slowest, most = json.loads(said)
            return Result(Counter(counts), findings, tuple(slowest), tuple(most))
        number = int.from_bytes(progress[:8], "little")
        reader, content = self.input(number)
        lost = Result(Counter({f"{reader}: finding": 1}), {f"{reader}: the process died": [self.keep(reader, number, content)]})
        if number + 1 < numbers.stop:
            lost.add(self.in_child(range(number + 1, numbers.stop)))
        return lost


def _too_slow(*_: object) -> None:
    raise Slow


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def costs(fuzzer: Fuzzer) -> dict[str, float]:
    """By reader: the memory for one byte of an input, where each costs the most (docs/soundness.md has these numbers)."""
    found: dict[str, float] = {}
    for reader, contents in dense().items():
        for content in contents if reader in fuzzer.inputs else ():
            reading, writing = os.pipe()
            if (child := os.fork()) == 0:
                before = _peak()
                signal.signal(signal.SIGALRM, _too_slow)
                outcome = fuzzer.read(reader, content)
                os.write(writing, json.dumps([outcome, (_peak() - before) / len(content)]).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as pipe:
                outcome, times = json.loads(pipe.read())
            os.waitpid(child, 0)
            assert outcome in ("read", "refused"), (reader, outcome)
            found[reader] = max(found.get(reader, 0.0), round(times, 1))
    return found


def main(inputs: int, first: int = 0, seed: int = 0) -> int:
    """Read so many; prints counts for each reader and every kind of finding. How many findings there are."""
    total, began = Result(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer.made(Path(folder), Path("build") / "fuzz", seed)
        memory = costs(fuzzer)
        for start in range(first, first + inputs, _CHILD):
            total.add(fuzzer.in_child(range(start, min(start + _CHILD, first + inputs))))
            if start // _CHILD % 20 == 0:
                print(f"{start:,} inputs, {sum(map(len, total.findings.values()))} findings", file=sys.stderr, flush=True)
    for what, places in sorted(total.findings.items()):
        print(f"{what}: {len(places)}, as {places[0]}")
    by_reader = {reader: {} for reader in READERS}  # type: dict[str, dict[str, int]]
    for key, count in sorted(total.counts.items()):
        reader, outcome = key.split(": ")
        by_reader[reader][outcome] = count
    found = sum(map(len, total.findings.values()))
    took = round(time.monotonic() - began)
    told = {
        "inputs": inputs,
        "seed": seed,
        "findings": found,
        "seconds": took,
        "slowest": total.slowest,
        "memory_MiB": total.most,
    }
    print(json.dumps({**told, "memory_for_a_byte": memory, "readers": by_reader}, indent=1))
    return found


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
