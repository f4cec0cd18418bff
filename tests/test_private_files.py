"""Private files are their owner's alone, whatever the umask; so is what a kill leaves; an exported ledger tells no secret."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import CheckpointError, LedgerError
from dpmerge.files import private_folder, write_private
from dpmerge.records import Portfolio, Record
from dpmerge.release import Ledger, release
from dpmerge.release.account import Account
from dpmerge.release.certificate import record_digest
from dpmerge.release.commitment import Openings
from dpmerge.release.entries import Entry
from dpmerge.release.known import identities
from dpmerge.tensors import new_folder, temporary_folder
from dpmerge.training import new_data_key
from dpmerge.training.origin import Partition
from dpmerge.training.run_folder import RunFolder
from dpmerge.training.saving import recorded_folder, save_model
from tests import builders
from tests.checkpoint_builders import single
from tests.ledger_builders import command, new, planned, total, written
from tests.release_builders import chosen, dpmerge, on_disk, runs, tensors
from tests.test_forks import BODY, fork
from tests.test_record_new import SGD, flags


@pytest.fixture(autouse=True)
def nothing_masked() -> Iterator[None]:
    """A umask that gives everything to everyone."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def private(path: Path) -> bool:
    return mode(path) == (0o700 if path.is_dir() else 0o600)


RECORD = builders.dp_sgd("a", sigma=4.0).record


def test_a_ledger_and_its_journal(tmp_path: Path) -> None:
    ledger = new(tmp_path / "ledger.db")
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE dpmerge_ledger SET entries = 1")
        held = sorted(tmp_path.iterdir())
        assert [path.name for path in held] == ["ledger.db", "ledger.db-journal"] and all(map(private, held))
        connection.rollback()
    connection.close()
    assert ledger.history() == []


def test_a_ledger_where_nothing_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(LedgerError, match="cannot be made a ledger: No space left"):
        new(tmp_path / "ledger.db")


def test_models_and_records_of_a_training(tmp_path: Path) -> None:
    save_model(tmp_path / "runs" / "all" / "a", tensors(0), RECORD, "{}")
    for place in ("runs", "runs/all", "runs/all/a", "runs/all/a/record.json"):
        assert private(tmp_path / place), place
    with recorded_folder(tmp_path / "runs" / "b", RECORD) as made:
        assert private(made)
        single(made, tensors(0))
    assert private(tmp_path / "runs" / "b")


def test_a_model_in_a_folder_that_is_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    with recorded_folder(tmp_path / "open", RECORD) as made:
        assert private(made) and made.parent == tmp_path / "open"
        single(made, tensors(0))
    held = sorted(path.name for path in (tmp_path / "open").iterdir())
    assert held == ["model.safetensors", "record.json"] and all(private(tmp_path / "open" / name) for name in held)
    assert mode(tmp_path / "open") == 0o777  # the user's
    with pytest.raises(RuntimeError), recorded_folder(tmp_path / "open2", RECORD):
        raise RuntimeError
    (tmp_path / "other").mkdir()
    with pytest.raises(RuntimeError), recorded_folder(tmp_path / "other", RECORD):
        raise RuntimeError
    assert not (tmp_path / "open2").exists() and not [*(tmp_path / "other").iterdir()]


def test_records_keys_and_fingerprints_by_command(tmp_path: Path) -> None:
    single(tmp_path / "model", tensors(0))
    made = dpmerge("record", "new", tmp_path / "model", *flags(SGD))
    assert made.exit_code == 0, made.output
    assert private(tmp_path / "model" / "record.json")
    new_data_key(tmp_path / "key")
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 2)), y=np.zeros(2))
    made = dpmerge("record", "fingerprint", tmp_path / "data.npz", "--key", tmp_path / "key", "--out", tmp_path / "print.json")
    assert made.exit_code == 0, made.output
    assert private(tmp_path / "key") and private(tmp_path / "print.json")
    assert dpmerge(
        "record", "fingerprint", tmp_path / "data.npz", "--key", tmp_path / "key", "--out", tmp_path / "key"
    ).exit_code


def test_what_a_portfolio_keeps_to_itself(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    one = release(portfolio, chosen(portfolio, "combination"), tmp_path / "hidden inputs")
    path = Openings.path(tmp_path / "runs", one.certificate.sha256)
    noisy = chosen(portfolio, "combination", weights=portfolio.weights({"a": 1.0}), noise=0.5)
    release(portfolio, noisy, tmp_path / "noisy")
    (ladder,) = (tmp_path / "runs" / ".dpmerge" / "ladders").glob("*.json")
    for held in (path, path.parent, ladder, ladder.parent, tmp_path / "runs" / ".dpmerge"):
        assert private(held), held
    Partition.kept(tmp_path / "runs" / ".training" / "parts", 3, "0" * 64)
    with RunFolder(tmp_path / "fresh", "run").alone():
        pass
    for name in ("runs/.training", "runs/.training/parts", "runs/.training/parts/3-parts.json", "fresh", "fresh/.training"):
        assert private(tmp_path / name), name


def test_a_release_is_for_others(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    made = release(portfolio, chosen(portfolio, "selection"), tmp_path / "out")
    assert mode(made.folder) == 0o777 and {mode(path) for path in made.folder.iterdir()} == {0o666}
    os.umask(0o027)
    assert mode(release(portfolio, chosen(portfolio, "selection"), tmp_path / "group").folder) == 0o750


def test_a_group_that_folders_hand_down_stays(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2777)
    for private_one in (False, True):
        with new_folder(tmp_path / "shared" / str(private_one), private=private_one) as made:
            assert [*made.iterdir()] == []
        found = (tmp_path / "shared" / str(private_one)).stat().st_mode & 0o7777
        assert found == (0o2700 if private_one else 0o2777)


def test_a_file_is_never_overwritten_and_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    private_folder(tmp_path / "open" / "a" / "b")
    assert mode(tmp_path / "open") == 0o777 and private(tmp_path / "open" / "a") and private(tmp_path / "open" / "a" / "b")
    write_private(b"x", tmp_path / "file")
    with pytest.raises(FileExistsError):
        write_private(b"y", tmp_path / "file")
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"
    with pytest.raises(CheckpointError, match="cannot be made"):
        save_model(tmp_path / "file" / "a", tensors(0), RECORD)


# What a kill leaves.

SCRIPT = """
import os, sys
from pathlib import Path
from dpmerge.tensors import new_folder, temporary_folder
os.umask(0)
where = Path(sys.argv[1])
saving, proof = sys.argv[2] == "saving", "0" * 16 if sys.argv[2] == "proof" else ""
with temporary_folder(where) if saving else new_folder(where, proof_for=proof) as folder:
    (folder / "secret").write_text("x")
    print("here", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["new", "proof", "saving"])
def test_what_a_kill_leaves_is_private_and_goes_with_the_next_start(kind: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), kind]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.dpmerge-") and private(left)
    with temporary_folder(tmp_path / "next"):
        assert (left / "secret").exists()  # another process's, in flight
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert private(left) and (left / "secret").exists()
    for name in (".out.dpmerge-tmp-1-mine", ".out.dpmerge-tmp-1-0123456789abcdef.part"):  # not ours
        (tmp_path / name).mkdir()
    with new_folder(tmp_path / "next"):
        assert not (left / "secret").exists() and left.exists() == (kind == "proof")  # whose emptiness the ledger needs
    assert len([*tmp_path.glob(".out.dpmerge-tmp-1-*")]) == 2


def test_what_others_left_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".out.dpmerge-tmp-1-0123456789abcdef"
    left.mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with temporary_folder(tmp_path / "next"):
        assert left.exists()
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    with temporary_folder(tmp_path / "next"):
        assert not left.exists()


def test_a_temporary_folder_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    lock = fcntl.flock

    def look(descriptor: int, how: int) -> None:
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", look)
    with new_folder(tmp_path / "out"):
        pass
    assert seen == [0o700]


# The export of a ledger.

SECRETS = re.compile(r"noise-[abc]|sampler-[abc]")
_PRINT = {"key": "1" * 32, "value": "2" * 64}


def sharing(folder: Path) -> Portfolio:
    """Two checkpoints of one run, which went on with another generator, and a run of its own."""
    first = builders.dp_sgd(
        "a@1", sigma=20.0, steps=5, run="run-a", noise_fingerprint="noise-a", sampler_fingerprint="sampler-a"
    )
    later: dict[str, Any] = {"noise_fingerprint": "noise-a+noise-b@5", "sampler_fingerprint": "sampler-a+sampler-b@5"}
    second = builders.dp_sgd("a", sigma=20.0, steps=10, run="run-a", **later)
    clips = [{"steps": 5, "learning_rate": 0.1, "clip": clip} for clip in (0.3141592653589793, 0.2718281828459045)]
    other = builders.dp_sgd("c", sigma=40.0, clipping="adaptive", phases=clips)
    models = [one.record.model_copy(update={"data_fingerprint": None}) for one in (first, second, other)]
    records = [Record.parse(json.dumps({**one.as_dict(), "data_fingerprint": _PRINT}), source="test") for one in models]
    named = [type(first)(one.name, record) for one, record in zip((first, second, other), records, strict=True)]
    return on_disk(folder, *named)


def test_an_export_tells_no_secret_and_counts_the_same(tmp_path: Path) -> None:
    portfolio = sharing(tmp_path / "runs")
    ledger = new(tmp_path / "ledger.db", epsilon=30.0, declared=[portfolio])
    weights = {"a@1": 0.5, "a": 0.25, "c": 0.25}
    for number in range(2):
        choice = chosen(portfolio, "selection", weights=portfolio.weights(weights))
        release(portfolio, choice, tmp_path / f"out{number}", ledger=ledger)
    text = command("ledger", "export", str(tmp_path / "ledger.db"))
    exported = json.loads(text)
    entries = ledger.history()
    # Nothing by which a guess is confirmed: fingerprints, digests of tensors or data or records, nonces, clips of hidden runs.
    plain = {digest for entry in entries for digest in entry.content.get("contents", {}).values()}
    plain |= {str(entry.content["nonce"]) for entry in entries if "nonce" in entry.content}
    plain |= {identity.rpartition("@")[2][:16] for identity in identities(portfolio).values()}
    plain |= {record_digest(model.record)[:16] for model in portfolio.models}
    assert len(plain) >= 8 and not [secret for secret in plain if secret in text]
    assert not SECRETS.search(text) and "31415926" not in text and "27182818" not in text and "2" * 64 not in text
    assert str(tmp_path) not in text
    for entry in exported["entries"]:
        assert not {"nonce", "by", "out", "temporary", "drawn"} & entry["content"].keys()
    # The chain, and what it counts.
    assert [one["hash"] for one in exported["entries"]] == [entry.hash for entry in entries]
    assert exported["entries"][0]["previous"] == ledger.budget.hash
    known = [Entry(**one) for one in exported["entries"]]
    found = Account(ledger.budget, known).total().guarantee
    assert found.epsilon == total(ledger) and found.theorem == ledger.cumulative().theorem  # type: ignore[union-attr]
    # Equal is equal: one run is known as one, in all entries.
    runs = [
        {name: one["mechanism"]["noise_fingerprint"] for name, one in e.content["records"].items()}
        for e in known
        if "records" in e.content
    ]
    assert len(runs) == 3 and runs[0] == runs[1] == runs[2]
    by_name = {known[0].content["names"][name]: generators for name, generators in runs[0].items()}
    assert by_name["a"].startswith(by_name["a@1"] + "+") and by_name["a"].endswith("@5") and by_name["c"] != by_name["a@1"]


def test_exports_of_one_ledger_agree_and_those_of_two_do_not(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    found = []
    for name in ("one", "two"):
        ledger = new(tmp_path / f"{name}.db", epsilon=30.0, declared=[portfolio])
        first = ledger.export()
        ledger.enter(planned(portfolio, c=1.0))
        later = Ledger(tmp_path / f"{name}.db").export()
        assert later["entries"][:1] == first["entries"] and len(later["entries"]) == 2
        found.append(first["entries"][0]["content"]["contents"])
    assert not {*found[0].values()} & {*found[1].values()}


def test_a_ledger_of_an_earlier_version_gets_its_key_with_its_first_export(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    ledger = new(tmp_path / "ledger.db", epsilon=30.0, declared=[portfolio])
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DROP TABLE dpmerge_export_key")
    connection.close()
    first = ledger.export()
    assert first == ledger.export() and "noise_fingerprint" in json.dumps(first)
    digests = {hashlib.sha256(name.encode()).hexdigest() for name in "abc"}
    told = [one["mechanism"]["noise_fingerprint"] for one in first["entries"][0]["content"]["records"].values()]
    assert len(set(told)) == 3 and not digests & set(told) and all(len(one) == 64 for one in told)


def test_what_a_fork_starts_from_is_not_told_either(tmp_path: Path) -> None:
    digest = "5" * 64
    portfolio = Portfolio([fork("fork-a", digest=digest), fork("fork-b", digest=digest)])
    ledger = new(tmp_path / "ledger.db")
    weights: dict[str, Any] = {"fork-a": 0.5, "fork-b": 0.5}
    ledger.enter(planned(portfolio, "joint", **weights))
    assert digest in json.dumps(ledger.history()[0].content)
    exported = ledger.export()
    text = json.dumps(exported)
    assert digest not in text and "noise-" not in text and BODY.run in text
    found = Account(ledger.budget, [Entry(**one) for one in exported["entries"]]).total().guarantee
    assert found.epsilon == total(ledger)
