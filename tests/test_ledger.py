"""The ledger itself: making and opening one, what tampering does to it, and its commands."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sqlite3
import sys
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dpmerge.cli import main
from dpmerge.errors import DpmergeError, LedgerError, TargetError
from dpmerge.release import Ledger, what_fits
from dpmerge.rules import Exposure, Releases
from tests import builders
from tests.ledger_builders import PRECISE, THREE, command, drawn, new, planned, three, total, written
from tests.ledger_workers import DELTA


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# --- making and opening -----------------------------------------------------------------------------------------------


def test_a_new_ledger_says_what_may_be_spent(file: Path) -> None:
    ledger = new(file, epsilon=2.5)
    for one in (ledger, Ledger(file), Ledger(str(file)), Ledger(f"sqlite:///{file}")):
        assert (one.budget.dataset, one.budget.adjacency, one.budget.epsilon) == (builders.DATASET, "add-remove", 2.5)
        assert (one.history(), one.cumulative()) == ([], None)


def test_a_ledger_is_never_overwritten(file: Path) -> None:
    new(file)
    before = file.read_bytes()
    with pytest.raises(LedgerError, match="exists already; a ledger is never overwritten"):
        new(file)
    with pytest.raises(LedgerError, match="exists already"):
        new(f"sqlite:///{file}")
    assert file.read_bytes() == before
    file.with_name("link").symlink_to(file.with_name("nothing"))
    with pytest.raises(LedgerError, match="exists already"):
        new(file.with_name("link"))


@pytest.mark.parametrize(
    "wrong, error, complaint",
    [
        ({"dataset": ""}, LedgerError, "give its identity"),
        ({"epsilon": -1.0}, TargetError, "finite and not negative"),
        ({"epsilon": math.inf}, TargetError, "finite and not negative"),
        ({"epsilon": math.nan}, TargetError, "finite and not negative"),
        ({"delta": 0.0}, TargetError, "between 0 and 1"),
        ({"delta": 1.0}, TargetError, "between 0 and 1"),
        ({"filter_share": 1e-320}, LedgerError, "too small a number to compute with: give a larger share"),
    ],
)
def test_budgets_that_are_none(file: Path, wrong: dict[str, Any], error: type[DpmergeError], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        new(file, **wrong)
    assert not file.exists()


def test_what_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no such ledger; make one first"):
        Ledger(tmp_path / "missing.db")
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger(f"sqlite:///{tmp_path}/missing.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("not a database, but long enough to be taken for one\n" * 40)
    with pytest.raises(LedgerError, match="is a file, not a ledger"):
        Ledger(tmp_path / "text.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(LedgerError, match="holds no ledger"):
        Ledger(tmp_path / "empty.db")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE dpmerge_ledger (id INTEGER)")
    connection.close()
    with pytest.raises(LedgerError, match="holds no ledger"):
        Ledger(tmp_path / "other.db")
    with pytest.raises(LedgerError, match="there is no folder"):
        new(tmp_path / "no folder" / "ledger.db")


@pytest.mark.parametrize("name", ["with ?query=1.db", "100%25.db", "#.db", "ε.db", "file:x.db"])
def test_any_name_of_a_file_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = new(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    monkeypatch.chdir("/")
    ledger.enter(planned(THREE, c=1.0))
    assert len(Ledger(tmp_path / name).history()) == 1


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "nonsense://u:secret@h", "postgresql://u:secret@h:port/d", "sqlite://", "://"]
)
def test_urls_that_are_none_are_refused_without_showing_a_password(url: str) -> None:
    for attempt in (Ledger, new):
        with pytest.raises(LedgerError, match=r"not a ledger's URL; give a file, or postgresql://") as caught:
            attempt(url)
        assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_one_line_without_a_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match="the ledger cannot be used") as caught:
        Ledger(f"postgresql://someone:secret@/nothing?host={tmp_path}")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"install dpmerge\[postgresql\]"):
        Ledger("postgresql://someone@localhost/nothing")


def test_a_ledger_of_another_version_is_not_guessed_at(file: Path) -> None:
    new(file)
    edit(file, "UPDATE dpmerge_ledger SET schema = 2")
    with pytest.raises(LedgerError, match="a ledger of version 2; this program reads version 1"):
        Ledger(file)


def test_one_ledger_is_for_one_dataset_and_one_adjacency(file: Path) -> None:
    ledger = new(file)
    with pytest.raises(LedgerError, match="is for dataset 'test-data'; the portfolio is for 'other'"):
        ledger.enter(planned(three(dataset="other"), a=1.0))
    with pytest.raises(LedgerError, match="is for dataset"):
        what_fits(ledger, three(dataset="other"))
    replaced = builders.portfolio(builders.gaussian("a", noise_std=1.0, run="r", adjacency="replace-one"))
    with pytest.raises(LedgerError, match="counts for add-remove neighbours; the portfolio's records are for replace-one"):
        ledger.enter(planned(replaced, a=1.0))
    assert ledger.history() == []


def test_models_without_a_run_id_cannot_be_told_apart(file: Path) -> None:
    with pytest.raises(LedgerError, match=r"model 'b': its record has no run id.*add a run"):
        new(file).enter(planned(builders.portfolio(THREE.models[0], builders.gaussian("b", noise_std=1.0)), a=1.0))


def test_a_release_without_an_epsilon_of_its_own_is_refused_before_it_is_charged(file: Path) -> None:
    ledger = new(file)
    whole = planned(THREE, c=1.0)
    with pytest.raises(LedgerError, match="no finite ε of its own"):
        ledger.enter(replace(whole, guarantees=(replace(whole.guarantees[0], epsilon=math.inf),)))
    with pytest.raises(LedgerError, match="not valid text"):
        ledger.enter(replace(whole, out="/undecodable/\udcff"))
    assert ledger.history() == []


# --- tampering --------------------------------------------------------------------------------------------------------


def edit(file: Path, *statements: str) -> None:
    """What someone with the file can do to it."""
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with four entries."""
    file = tmp_path_factory.mktemp("honest") / "ledger.db"
    ledger = new(file, epsilon=30.0)
    first = ledger.enter(planned(THREE, a=0.1, c=0.9))
    ledger.complete(first, ["0" * 64])
    ledger.enter(planned(THREE, b=0.1, c=0.9))
    ledger.enter(planned(THREE, "joint", b=1.0))
    return file


TAMPERING = [
    ("UPDATE dpmerge_entries SET content = '' WHERE number = 99", None),  # nothing was changed
    ("UPDATE dpmerge_entries SET content = replace(content, 'run a', 'run x') WHERE number = 1", "entry 1 was edited"),
    (
        "UPDATE dpmerge_entries SET content = replace(content, '\"noise_std\":1.0', '\"noise_std\":9.0') WHERE number = 3",
        "entry 3",
    ),
    ("UPDATE dpmerge_entries SET content = content || ' ' WHERE number = 4", "entry 4 was edited"),
    ('UPDATE dpmerge_entries SET content = \'{"kind":"x",\' || substr(content, 2) WHERE number = 4', "entry 4 was edited"),
    ("UPDATE dpmerge_entries SET content = '{\"kind\":NaN}' WHERE number = 2", "entry 2 was edited"),
    ("UPDATE dpmerge_entries SET content = '[' WHERE number = 2", "entry 2 was edited"),
    ("UPDATE dpmerge_entries SET content = '[]' WHERE number = 2", "entry 2 was edited"),
    ("UPDATE dpmerge_entries SET content = x'ff00' WHERE number = 2", "entry 2 was edited"),
    ("UPDATE dpmerge_entries SET hash = 'x' || substr(hash, 2) WHERE number = 3", "entry 3 was edited"),
    ("UPDATE dpmerge_entries SET previous = x'00' WHERE number = 3", "entry 3 was edited"),
    ("DELETE FROM dpmerge_entries WHERE number = 1", "entry 1 is missing"),
    ("DELETE FROM dpmerge_entries WHERE number = 3", "entry 3 is missing"),
    ("DELETE FROM dpmerge_entries WHERE number = 4", "entry 4 is missing"),
    ("DELETE FROM dpmerge_entries", "entry 1 is missing"),
    (
        "DELETE FROM dpmerge_entries WHERE number = 3; UPDATE dpmerge_entries SET number = 3 WHERE number = 4;"
        "UPDATE dpmerge_ledger SET entries = 3",
        "entry 3 was edited",
    ),
    (
        "UPDATE dpmerge_entries SET number = 9 WHERE number = 3; UPDATE dpmerge_entries SET number = 3 WHERE number = 4;"
        "UPDATE dpmerge_entries SET number = 4 WHERE number = 9",
        "entry 3 was edited",
    ),
    (
        "INSERT INTO dpmerge_entries SELECT 5, content, previous, hash FROM dpmerge_entries WHERE number = 2",
        "entry 5 was put in",
    ),
    (
        "INSERT INTO dpmerge_entries SELECT 0, content, previous, hash FROM dpmerge_entries WHERE number = 2",
        "entry 1 is missing",
    ),
    (
        "INSERT INTO dpmerge_entries SELECT 5, content, previous, hash FROM dpmerge_entries WHERE number = 2;"
        "UPDATE dpmerge_ledger SET entries = 5",
        "entry 5 was edited",
    ),
    ("UPDATE dpmerge_ledger SET epsilon = '0x1.9000000000000p+6'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET delta = '0x1.0p-1'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET epsilon = '0x1p99999'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET epsilon = 'much'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET dataset = 'other'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET dataset = x'00'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET adjacency = 'zero-out'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET created = 'yesterday'", "the declared budget was edited"),
    ("UPDATE dpmerge_ledger SET head = 'x' || substr(head, 2)", "entry 4 is not the one that the ledger ended with"),
    ("UPDATE dpmerge_ledger SET entries = 3", "entry 4 was put in"),
    ("UPDATE dpmerge_ledger SET entries = 5", "entry 5 is missing"),
    ("UPDATE dpmerge_ledger SET entries = 'some'", "the declared budget was edited"),
    ("DELETE FROM dpmerge_ledger", "holds no ledger"),
    ("INSERT INTO dpmerge_ledger VALUES (2, 1, 'x', 'add-remove', '0x1p0', '0x1p-9', 'now', 0, 'x')", "holds no ledger"),
    ("DROP TABLE dpmerge_entries", "holds no ledger"),
]


@pytest.mark.parametrize("statements, complaint", TAMPERING)
def test_tampering_is_found_and_named(honest: Path, file: Path, statements: str, complaint: str | None) -> None:
    shutil.copy(honest, file)
    opened = Ledger(file)
    edit(file, *statements.split(";"))
    if complaint is None:
        assert Ledger(file).history() == opened.history()
        return
    with pytest.raises(LedgerError, match=complaint) as caught:
        Ledger(file)
    assert str(caught.value).startswith(str(file))
    # One that was opened before must not build upon it either.
    for attempt in (lambda: opened.enter(planned(THREE, c=1.0)), opened.history, opened.recover, opened.cumulative):
        with pytest.raises(LedgerError):
            attempt()


def test_an_edited_budget_is_found_before_there_is_an_entry(file: Path) -> None:
    new(file)
    edit(file, f"UPDATE dpmerge_ledger SET epsilon = '{(100.0).hex()}'")
    with pytest.raises(
        LedgerError, match="the declared budget was edited; nothing is released from a ledger that was tampered"
    ):
        Ledger(file)


def test_a_replaced_entry_does_not_fit_into_the_chain(honest: Path, file: Path) -> None:
    """Made by this program for another ledger: consistent in itself, and foreign here."""
    shutil.copy(honest, file)
    other = new(file.with_name("other.db"), epsilon=30.0)
    for _ in range(4):
        other.enter(planned(THREE, c=1.0))
    for number, before in ((1, "the declared budget"), (3, "entry 2")):
        shutil.copy(honest, file)
        edit(
            file,
            f"ATTACH '{other.name}' AS other",
            f"DELETE FROM main.dpmerge_entries WHERE number = {number}",
            f"INSERT INTO main.dpmerge_entries SELECT * FROM other.dpmerge_entries WHERE number = {number}",
        )
        with pytest.raises(LedgerError, match=f"{before} was edited, or entry {number} replaced"):
            Ledger(file)


def test_deleting_while_a_release_is_prepared_does_not_hide_it(honest: Path, file: Path) -> None:
    shutil.copy(honest, file)
    opened = Ledger(file)
    last = opened.history()[-1]
    edit(file, "DELETE FROM dpmerge_entries WHERE number = 4")
    with pytest.raises(LedgerError, match="entry 4 is missing"):
        opened.enter(planned(THREE, c=1.0))
    with pytest.raises(LedgerError, match="entry 4 is missing"):
        opened.complete(last, [])


def test_another_ledger_in_its_place_is_not_taken_for_it(file: Path) -> None:
    opened, larger = new(file, epsilon=1.0), new(file.with_name("larger.db"), epsilon=30.0)
    Path(larger.name).replace(file)
    with pytest.raises(LedgerError, match="the declared budget was edited since the ledger was opened"):
        opened.enter(planned(THREE, c=1.0))


def test_a_thousand_entries_open_in_a_second(honest: Path, file: Path) -> None:
    shutil.copy(honest, file)
    ledger = Ledger(file)
    with ledger._transaction(alone=True) as connection:
        entries = ledger._entries(connection)
        for _ in range(996):
            entries.append(ledger._append(connection, entries, entries[2].content))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert len(Ledger(file).history()) == 1000
        times.append(time.perf_counter() - start)
    assert min(times) < 2.0  # a second on a machine that has nothing else to do
    leaked = [Exposure.drawn(THREE.weights({"a": 0.1, "c": 0.9})), Exposure.whole("bc")]
    assert total(Ledger(file)) == pytest.approx(Releases(THREE, leaked).guarantee(delta=DELTA).epsilon, rel=1e-6)


# --- the commands -----------------------------------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    """The one line on stderr with which a command is refused."""
    said = io.StringIO()
    with patch.object(sys, "argv", ["dpmerge", *arguments]), redirect_stderr(said), pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert said.getvalue().count("\n") == 1
    return said.getvalue()


def test_the_commands_from_new_to_export(tmp_path: Path, file: Path) -> None:
    folder, ledger = str(tmp_path / "p"), str(file)
    portfolio = written(tmp_path / "p")
    made = command("ledger", "new", ledger, "--dataset", builders.DATASET, "--epsilon", "5", "--delta", "1e-5")
    assert made.splitlines() == [
        f"{ledger}: dataset 'test-data', add-remove neighbours",
        "  budget (5, 1e-05), 0 releases",
        "  spent: ε = 0.0000 at δ = 1e-05 (proved)",
    ]
    shown = json.loads(command("ledger", "show", ledger, "--json"))
    assert shown == {
        "dataset": "test-data",
        "adjacency": "add-remove",
        "budget": {"epsilon": 5.0, "delta": 1e-5},
        "spent": {"epsilon": 0.0, "standing": "proved", "theorem": None, "assumptions": []},
        "releases": 0,
        "warnings": [],
        "counted": [],
        "under_way": [],
        "elsewhere": [],
        "out": [],
        "interrupted": [],
    }
    merge = ["merge", folder, "--rule", "selection", "--delta", "1e-5", "--ledger", ledger]
    said = command(*merge, "--weights", "b=0.1,c=0.9", "--out", str(tmp_path / "one"))
    assert "entry 1 of the ledger; all releases together: (" in said
    spent = json.loads(command("ledger", "show", ledger, "--json"))
    assert spent["releases"] == 1
    assert spent["spent"]["epsilon"] == pytest.approx(drawn(portfolio.weights({"b": 0.1, "c": 0.9})), rel=PRECISE)
    history = command("ledger", "history", ledger)
    assert re.search(r"1 .*selection of b, c .*2 .*completed entry 1", history, re.DOTALL)
    entries = json.loads(command("ledger", "history", ledger, "--json"))
    assert [(entry["number"], entry["content"]["kind"]) for entry in entries] == [(1, "release"), (2, "completed")]
    assert entries[1]["previous"] == entries[0]["hash"]
    exported = json.loads(command("ledger", "export", ledger))
    assert exported == json.loads(command("ledger", "export", ledger, "--json"))
    assert [(one["number"], one["previous"], one["hash"]) for one in exported["entries"]] == [
        (one["number"], one["previous"], one["hash"]) for one in entries
    ]
    assert exported["budget"] == Ledger(file).budget.header()
    assert command("ledger", "remaining", ledger) == command("ledger", "show", ledger)
    left = json.loads(command("ledger", "remaining", ledger, "--portfolio", folder, "--json"))
    assert left["fits"]["alone"] == ["c", "b"]
    text = command("ledger", "remaining", ledger, "--portfolio", folder).splitlines()
    assumed = ["  assuming:", *(f"    - {text}" for text in left["spent"]["assumptions"])]
    assert any("each record describes the run" in line for line in assumed), "as every guarantee assumes"
    assert text[3 : 3 + len(assumed)] == assumed == history.splitlines()[-len(assumed) :]
    assert text[3 + len(assumed)] == "  counted by: random selection, privacy loss distributions"
    assert text[4 + len(assumed) :] == left["fits"]["text"]
    message = refused(*merge, "--weights", "a=1", "--out", str(tmp_path / "two"))
    assert message.startswith(f"error: {ledger}: this release would bring the total to ε = ")
    assert "what would still fit: c or b alone, or a selection with c=" in message
    assert not (tmp_path / "two").exists()


def test_coupled_draws_by_the_command_line(tmp_path: Path, file: Path) -> None:
    portfolio = written(tmp_path / "p")
    new(file, epsilon=30.0)
    merge = ["merge", str(tmp_path / "p"), "--rule", "selection", "--delta", "1e-5", "--ledger", str(file)]
    made = json.loads(command(*merge, "--couple", "4,4.2,4.4", "--out", str(tmp_path / "all"), "--json"))
    assert [Path(one["folder"]).name for one in made] == ["epsilon-4", "epsilon-4.2", "epsilon-4.4"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["epsilon-4", "epsilon-4.2", "epsilon-4.4"]
    assert {one["certificate"]["ledger"]["number"] for one in made} == {1}
    weights = []
    for one in made:
        stated = {name: float.fromhex(value) for name, value in one["certificate"]["rule"]["weights"].items()}
        weights.append(portfolio.weights(stated))
        assert one["certificate"]["drawn"] in stated
    coupled = Releases(portfolio, [Exposure.drawn(*weights)]).guarantee(delta=DELTA).epsilon
    assert total(Ledger(file)) == pytest.approx(coupled, rel=PRECISE)
    assert total(Ledger(file)) < drawn(*weights)
    assert "3 coupled draws, selection of" in command("ledger", "history", str(file))
    again = refused(*merge, "--couple", "1,2", "--epsilon", "3", "--out", str(tmp_path / "more"))
    assert "has no meaning with --couple" in again


def test_mistakes_are_one_line(tmp_path: Path, file: Path, honest: Path) -> None:
    assert "no such ledger" in refused("ledger", "show", str(file))
    budget = ["--dataset", "d", "--epsilon", "1", "--delta", "1e-5"]
    assert "there is no folder" in refused("ledger", "new", str(tmp_path / "none" / "x.db"), *budget)
    shutil.copy(honest, file)
    edit(file, "DELETE FROM dpmerge_entries WHERE number = 2")
    for verb in ("show", "history", "remaining", "export"):
        assert "entry 2 is missing; nothing is released from a ledger that was tampered with" in refused(
            "ledger", verb, str(file)
        )
