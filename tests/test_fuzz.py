"""A small part of `make fuzz`, and of the extreme records: what the searches find there, these would."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dpmerge.errors import RecordError
from dpmerge.records import Record
from tests import extreme_records, fuzz
from tests.fuzz import READERS, Fuzzer

INPUTS = 1050  # 50 for each reader


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer.made(tmp_path_factory.mktemp("fuzz"), tmp_path_factory.mktemp("kept"), seed=1)


def test_what_the_fuzzer_starts_from_is_read(fuzzer: Fuzzer) -> None:
    """But for one model card with an open tag. Otherwise most changes would only be seen by the first check."""
    found = {
        (reader, number): fuzzer.read(reader, one) for reader, held in fuzzer.inputs.items() for number, one in enumerate(held)
    }
    assert {place for place, outcome in found.items() if outcome != "read"} == {("card", 1)}


def test_changed_files_are_read_or_refused_in_one_line(fuzzer: Fuzzer) -> None:
    found = fuzzer.run(range(INPUTS))
    assert not found.findings
    assert sum(found.counts.values()) == INPUTS and {key.split(":")[0] for key in found.counts} >= READERS.keys() - {"torch"}
    assert fuzzer.input(7) == fuzzer.input(7)


def test_what_a_fuzzer_must_find(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another kind, one that takes too long, much memory, a process that dies: each is a finding, and is kept."""
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "FEW", 4 << 20)

    def endless(_: Path) -> None:
        while True:
            pass

    def large(_: Path) -> None:
        b"x" * (256 << 20)

    def dies(_: Path) -> None:
        import os

        os._exit(1)

    number = sorted(fuzzer.inputs).index("weights")
    for reader, what in (
        (json.loads, "TypeError"),
        (endless, "more than 0.2 s"),
        (large, "MiB of memory"),
        (dies, "process died"),
    ):
        monkeypatch.setitem(READERS, "weights", reader)
        found = fuzzer.in_child(range(number, number + 1))
        assert len(found.findings) == 1 and what in next(iter(found.findings)), (what, found)
        assert Path(next(iter(found.findings.values()))[0]).read_bytes() == fuzzer.input(number)[1]


# Questions of which each once ended in a traceback, and some others; all take less than a second.
@pytest.mark.parametrize("seed", [6, 19, 21, 27, 28, 36, 71, 75, 81, 87, 99, 114, 128, 241, 1077])
def test_extreme_records_are_numbers_or_one_line(seed: int, tmp_path: Path) -> None:
    outcome, words = extreme_records.asked(seed, tmp_path / "runs")
    assert outcome in ("numbers", "refused"), (outcome, words)


def test_extreme_records_are_valid(tmp_path: Path) -> None:
    for seed in range(200):
        extreme_records.portfolio(random.Random(seed), tmp_path / str(seed))
    for path in tmp_path.glob("*/*/record.json"):
        Record.load(path)


@pytest.mark.parametrize("value", [1e-31, 1e31, 5e-324, 1.7e308])
def test_numbers_that_accounting_cannot_square_are_no_record(value: float, tmp_path: Path) -> None:
    extreme_records.portfolio(random.Random(1), tmp_path)
    content = json.loads((tmp_path / "a" / "record.json").read_text())
    content["mechanism"] = {"kind": "gaussian", "sensitivity": 1.0, "noise_std": value}
    with pytest.raises(RecordError, match=r"mechanism\.noise_std: numbers of a record .*are at (most 1e\+30|least 1e-30)"):
        Record.parse(json.dumps(content))
