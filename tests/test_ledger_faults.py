"""A ledger that neither burns nor forgets: what fails is found before the charge, what is out is known, a retry is free."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dpmerge as library
from dpmerge.errors import BudgetExceeded, CheckpointError, DependentRuns, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, Merge, choose, release, release_together, verify
from dpmerge.release.account import Account
from dpmerge.release.entries import PendingEntry
from dpmerge.release.processes import this_process
from tests import ledger_kills, power_loss
from tests.effort import EFFORT
from tests.ledger_builders import PRECISE, THREE, command, joint, names_in, new, planned, total, written
from tests.ledger_workers import DELTA
from tests.release_builders import on_disk
from tests.test_hidden_surfaces import convex

A = {"a": 1.0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def elsewhere(monkeypatch: pytest.MonkeyPatch, **other: str) -> None:
    """Releases are entered as if by this other process, by default one that ended."""
    maker = {**this_process(), **(other or {"started": "1"})}
    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: maker)


# --- before the charge ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [Merge(), Merge(method="ties"), Merge(method="slerp")])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_numbers_that_cannot_be_merged_are_refused_before_anything_is_charged(
    tmp_path: Path, file: Path, merge: Merge, wrong: float
) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    values = np.ones((2, 3), dtype=np.float32)
    values[1, 1] = wrong
    save_file({"weight": values}, tmp_path / "p" / "c" / "model.safetensors")
    choice = choose(portfolio, "joint", delta=DELTA, weights=portfolio.weights({"b": 0.5, "c": 0.5}), provenance="a-priori")
    with pytest.raises(CheckpointError, match=r"model 'c'.*element 4 is (nan|inf); a merge needs finite values$"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger, merge=merge)
    assert ledger.history() == []
    assert names_in(tmp_path) == {"p", "ledger.db"}


def test_what_does_not_fit_on_the_disk_is_refused_before_anything_is_charged(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what may be drawn the largest counts: a refusal must not tell which was."""
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    save_file({"weight": np.ones(1000, dtype=np.float32)}, tmp_path / "p" / "a" / "model.safetensors")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(5000, 1001, 3999))
    drawn = portfolio.weights({"a": 1e-300, "c": 1.0})
    choice = choose(portfolio, "selection", delta=DELTA, weights=drawn)
    small = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    refusals: list[Callable[[], object]] = [
        lambda: release(portfolio, choice, tmp_path / "out", ledger=ledger),
        lambda: release_together(portfolio, {"one": choice, "two": small}, tmp_path / "out", ledger=ledger),
    ]
    for attempt in refusals:
        with pytest.raises(CheckpointError, match=r"it takes 4,0\d\d bytes, and 3,999 are free there$"):
            attempt()
    assert ledger.history() == []
    assert release(portfolio, small, tmp_path / "out", ledger=ledger).folder.is_dir()


def test_a_folder_that_cannot_be_written_to_is_found_before_the_charge(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    make = Path.mkdir

    def refuse(path: Path, *arguments: Any, **named: Any) -> None:
        if "dpmerge-proof" in path.name:
            raise PermissionError(13, "Permission denied")
        make(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError, match=r"out: cannot be written: Permission denied$"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert ledger.history() == []


# --- the same again ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hidden(tmp_path: Path) -> Portfolio:
    """Models whose last iterate costs less than the run, as long as nothing else of it is released."""
    return on_disk(tmp_path / "runs", convex("a"), convex("b", 3.0))


def last_of(portfolio: Portfolio, out: Path, ledger: Path, **options: Any) -> library.Released:
    return library.merge(portfolio, A, out=out, rule="combination", delta=DELTA, ledger=ledger, **options)


def test_the_same_release_again_costs_nothing(hidden: Portfolio, tmp_path: Path, file: Path) -> None:
    first_costs = library.combination(hidden, A).guarantee(delta=DELTA).epsilon
    ledger = new(file, epsilon=1.01 * first_costs)
    one = last_of(hidden, tmp_path / "one", file)
    spent = total(ledger)
    two = last_of(hidden, tmp_path / "two", file)
    assert total(ledger) == spent <= 1.01 * first_costs
    assert "this release adds nothing to the total: the same average of the same models was charged before" in two.notes
    assert (one.folder / "model.safetensors").read_bytes() == (two.folder / "model.safetensors").read_bytes()
    # Chosen by what the first one showed or not: what is charged for good has shown it all.
    last_of(hidden, tmp_path / "three", file, dependent=True)
    assert total(ledger) == spent
    for name in ("one", "two", "three"):
        assert verify(tmp_path / name, portfolio=hidden, ledger=ledger).code == 0
    shown = command("ledger", "show", str(file))
    assert len(re.findall(r"ε = [\d.]+ at δ", shown.split("spent:")[1].split("\n")[0])) == 1 and "; δ =" not in shown


def test_another_function_of_the_same_run_is_another_release(hidden: Portfolio, tmp_path: Path, file: Path) -> None:
    new(file, epsilon=1.01 * library.combination(hidden, A).guarantee(delta=DELTA).epsilon)
    last_of(hidden, tmp_path / "one", file)
    whole = hidden.weights(A)
    drawn = choose(hidden, "selection", delta=DELTA, weights=whole)
    with pytest.raises(BudgetExceeded):  # its certificate has a digest of the model, which no bound on the last iterate covers
        release(hidden, drawn, tmp_path / "two", ledger=Ledger(file))
    values = {"weight": np.zeros((2, 3), dtype=np.float32)}
    save_file(values, tmp_path / "runs" / "a" / "model.safetensors")
    with pytest.raises(DependentRuns):
        last_of(Portfolio(tmp_path / "runs"), tmp_path / "two", file)


def test_without_known_contents_the_same_weights_are_two_releases(hidden: Portfolio, file: Path) -> None:
    """Whether two averages are the same is known by the digests of their models alone."""
    ledger = new(file, epsilon=1000.0)
    pending = planned(hidden, "combination", a=1.0, last_only=True)
    known = replace(pending, contents={"a": "0" * 64})
    ledger.enter(pending)
    once = total(ledger)
    ledger.enter(known)
    whole = total(ledger)
    assert whole > 1.05 * once
    ledger.enter(known)
    assert total(ledger) == whole
    other = new(file.with_name("other.db"), epsilon=1000.0)
    other.enter(known)
    other.enter(known)
    assert total(other) == once
    with pytest.raises(LedgerError, match="depends on what earlier ones showed"):  # neither is charged for good
        other.enter(replace(known, dependent=True))


def test_the_same_again_counts_when_the_first_is_voided(hidden: Portfolio, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(file, epsilon=1000.0)
    known = replace(planned(hidden, "combination", a=1.0, last_only=True), contents={"a": "0" * 64})
    elsewhere(monkeypatch)
    ledger.enter(known)
    once = total(ledger)
    ledger.enter(known)
    ledger.void(1, "nobody saw it")
    assert total(ledger) == once
    ledger.void(2, "nor this one")
    assert ledger.cumulative() is None


# --- out, and not completed -------------------------------------------------------------------------------------------


def lost_after_rename(monkeypatch: pytest.MonkeyPatch, attempt: Callable[[], object]) -> str:
    """Make a release whose database is lost when it is out, and whose process then ends; what was said."""
    with monkeypatch.context() as patched:
        elsewhere(patched)
        patched.setattr(Ledger, "complete", lambda *_: (_ for _ in ()).throw(LedgerError("the disk is gone")))
        with pytest.raises(LedgerError) as caught:
            attempt()
    return str(caught.value)


def test_a_database_lost_after_the_rename_says_that_the_release_is_out(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    said = lost_after_rename(monkeypatch, lambda: release(portfolio, choice, out, ledger=ledger))
    assert re.match(
        rf"the disk is gone; the release is out, at {re.escape(str(out))}: entry 1 of .* counts, and the next release or check "
        r"with it completes it; all releases together are \(4\.3772, 1e-05\)-DP$",
        said,
    )
    state = json.loads(command("ledger", "show", str(file), "--json"))
    assert (state["out"], state["interrupted"], state["under_way"]) == ([1], [], [])
    with pytest.raises(LedgerError, match="has its output at"):
        ledger.void(1, "nobody saw it")
    # Moved away it is not known by its name alone, and a copy of its certificate elsewhere completes nothing.
    moved = out.rename(tmp_path / "moved")
    verdict = verify(moved, portfolio=portfolio, ledger=ledger)
    assert verdict.code == 2 and f"put it back to {out} and check it there" in verdict.unchecked[0]
    moved.rename(out)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_append", lambda *_: (_ for _ in ()).throw(LedgerError("read-only")))
        verdict = verify(out, portfolio=portfolio, ledger=ledger)
        assert verdict.code == 2 and "entry 1 of the ledger was not completed, and could not be: read-only" in verdict.warnings
    verdict = verify(out, portfolio=portfolio, ledger=ledger)
    assert verdict.code == 0, verdict
    assert any("which was found at its output after it was interrupted" in text for text in verdict.holds)
    assert any(text.startswith("entry 1 was interrupted after its release had appeared") for text in verdict.warnings)
    assert ledger.history()[1].content["adopted"] is True
    assert ledger.complete(ledger.history()[0], ledger.history()[1].content["certificates"]) == []  # its maker lives after all
    assert [entry.kind for entry in ledger.history()] == ["release", "completed"]
    assert verify(out, portfolio=portfolio, ledger=ledger).code == 0


def test_coupled_draws_are_adopted_together(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    weights = {"one": {"b": 0.5, "c": 0.5}, "two": {"b": 0.25, "c": 0.75}}
    choices = {
        name: choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights(given)) for name, given in weights.items()
    }
    said = lost_after_rename(monkeypatch, lambda: release_together(portfolio, choices, out, ledger=ledger))
    assert "the release is out" in said
    hidden = (out / "two").rename(tmp_path / "two")
    assert ledger.adopt() == []  # one of two
    hidden.rename(out / "two")
    assert len(ledger.adopt()) == 1
    assert [verify(out / name, portfolio=portfolio, ledger=ledger).code for name in choices] == [0, 0]


def test_only_the_certificate_of_its_own_entry_is_adopted(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    release(portfolio, choice, tmp_path / "first", ledger=ledger)
    lost_after_rename(monkeypatch, lambda: release(portfolio, choice, out, ledger=ledger))
    own = (out / "certificate.json").read_bytes()
    forgeries = [
        (tmp_path / "first" / "certificate.json").read_bytes(),
        own.replace(b'"utilities_source": null', b'"utilities_source": "me"'),
        b"{}",
        b"\xff",
    ]
    for forged in forgeries:
        assert forged != own
        (out / "certificate.json").write_bytes(forged)
        assert ledger.adopt() == []
    (out / "certificate.json").write_bytes(own)
    assert len(ledger.adopt()) == 1


def test_what_is_there_after_all_counts_though_it_was_voided(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    lost_after_rename(monkeypatch, lambda: release(portfolio, choice, out, ledger=ledger))
    moved = out.rename(tmp_path / "moved")
    ledger.void(1, "it never was")
    assert ledger.cumulative() is None
    moved.rename(out)
    assert ledger.recover()[0].endswith("it had been voided, and counts again")
    assert total(ledger) == pytest.approx(joint("b"), rel=PRECISE)
    assert verify(out, portfolio=portfolio, ledger=ledger).code == 0


def test_another_release_under_the_same_name_is_not_its_output(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: an entry whose name was used again could not be voided."""
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    with monkeypatch.context() as patched:
        elsewhere(patched)
        ledger.enter(replace(planned(portfolio, a=1.0), out=str(out)))
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    made = release(portfolio, choice, out, ledger=ledger)
    assert made.notes[0].startswith("entry 1 was interrupted (its output is absent)")
    ledger.void(1, "the power failed before anything was written")
    assert total(ledger) == pytest.approx(joint("c"), rel=PRECISE)
    assert verify(out, portfolio=portfolio, ledger=ledger).code == 0


# --- committed, and not told so ---------------------------------------------------------------------------------------


def test_an_entry_whose_answer_was_lost_is_voided(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    enter = Ledger.enter

    def cut_off(self: Ledger, pending: Any, notes: Any) -> Any:
        enter(self, pending)
        raise LedgerError("the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "enter", cut_off)
        with pytest.raises(LedgerError, match=r"the connection was lost; nothing was released; entry 1 of .* was voided"):
            release(portfolio, choice, tmp_path / "out", ledger=ledger)
        assert [entry.kind for entry in ledger.history()] == ["release", "voided"]
        # Where the ledger cannot be asked either, the folder stays as the proof.
        elsewhere(patched)
        patched.setattr(Ledger, "entry_in", lambda *_: (_ for _ in ()).throw(LedgerError("no route to host")))
        with pytest.raises(LedgerError, match=r"the connection was lost$"):
            release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("c"), rel=PRECISE)
    assert ledger.recover() == ["entry 3 was interrupted before anything of it was seen: it was voided"]
    assert ledger.cumulative() is None
    assert names_in(tmp_path) == {"p", "ledger.db"}


def test_a_refusal_leaves_no_folder(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=1.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"a": 1.0}))
    with pytest.raises(BudgetExceeded):
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    with pytest.raises(LedgerError, match="depends on what earlier ones showed"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger, dependent=True)
    assert names_in(tmp_path) == {"p", "ledger.db"}


# --- accounting outside the lock --------------------------------------------------------------------------------------


def test_a_release_is_accounted_for_while_others_may_write(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they write meanwhile is counted: the budget is not passed, however often it happens."""
    new(file, epsilon=1.0001 * joint("b", "c"))
    ledger, total_of = Ledger(file), Account.total
    meanwhile: list[PendingEntry] = []

    def slow(self: Account) -> Any:
        found = total_of(self)
        if meanwhile:
            Ledger(file).enter(meanwhile.pop())  # would wait for ten minutes if the lock were held
        return found

    monkeypatch.setattr(Account, "total", slow)
    meanwhile.append(planned(THREE, c=1.0))
    entry = ledger.enter(planned(THREE, b=1.0))
    assert (entry.number, entry.content["total"]["epsilon"]) == (2, pytest.approx(joint("b", "c"), rel=PRECISE))
    file = file.with_name("other.db")
    other = new(file, epsilon=1.0001 * joint("b"))
    meanwhile.append(planned(THREE, c=1.0))
    with pytest.raises(BudgetExceeded):  # it fitted before the other one was entered
        other.enter(planned(THREE, b=1.0))
    assert [entry.kind for entry in other.history()] == ["release"]


def test_after_some_attempts_outside_the_lock_it_is_held(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a release is entered however busy the ledger is."""
    ledger, total_of, counted = new(file, epsilon=30.0), Account.total, []

    def busy(self: Account) -> Any:
        counted.append(1)
        if len(counted) in (1, 3, 5):
            Ledger(file).enter(planned(THREE, c=1.0))
        return total_of(self)

    monkeypatch.setattr(Account, "total", busy)
    assert ledger.enter(planned(THREE, b=1.0)).number == 4
    assert len(counted) == 7


# --- another machine --------------------------------------------------------------------------------------------------


def test_an_entry_of_another_machine_has_an_answer(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, ledger, out = written(tmp_path / "p"), new(file, epsilon=30.0), tmp_path / "out"
    elsewhere(monkeypatch, host="far", boot="its own")
    ledger.enter(replace(planned(THREE, c=1.0), out="/nowhere/at/all"))
    shown = " ".join(command("ledger", "show", str(file)).split())
    assert f"entry 1 was begun by process {os.getpid()} on far, which cannot be seen from here; it counts." in shown
    assert (
        "the next merge with this ledger on far closes it; if far is gone for good and nothing of it was seen, so does" in shown
    )
    state = json.loads(command("ledger", "show", str(file), "--json"))
    assert (state["elsewhere"], state["out"], state["interrupted"], state["under_way"]) == ([1], [], [], [])
    assert ledger.recover() == []
    ledger.void(1, "it burnt", machine_is_gone=True)
    # What it left on a disk that is seen from here too is out, whatever became of the machine.
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 1.0}))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "complete", lambda *_: (_ for _ in ()).throw(LedgerError("the net is gone")))
        with pytest.raises(LedgerError, match="the release is out"):
            release(portfolio, choice, out, ledger=ledger)
    assert verify(out, portfolio=portfolio, ledger=ledger).code == 0


# --- kills ------------------------------------------------------------------------------------------------------------


def test_kills_at_chosen_points_leave_no_release_that_cannot_be_verified(tmp_path: Path) -> None:
    """More of them: `make audit`, or `python -m tests.ledger_kills 500`."""
    kills = 40 * EFFORT
    place = ledger_kills.Place(tmp_path, str(tmp_path / "ledger.db"))
    seen = place.killed(ledger_kills.seeded(*place.prepared(), kills, seed=21))
    assert seen["adopted"] >= kills // 8 and seen["voided"] >= kills // 8


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here (Debian: apt-get install strace)")
def test_a_power_cut_at_any_point_loses_no_entry_of_what_was_seen(tmp_path: Path) -> None:
    """More kinds of releases, and more draws of what the disk kept: `make audit`, or `python -m tests.power_loss 100`."""
    drawn, kinds = (2, ("combination",)) if EFFORT == 1 else (EFFORT // 3, power_loss.KINDS)
    seen = power_loss.cut(tmp_path / "home", drawn, kinds)
    assert seen["points"] > 90 and seen["counted, gone"] and seen["counted, there"] and seen["not counted, never seen"]
