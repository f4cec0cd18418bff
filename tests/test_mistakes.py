"""Mistakes as a new user makes them: one line that names what is wrong, what was meant, and what to do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge as api
from dpmerge import example_portfolio
from dpmerge.cli.mistakes import in_one_line
from dpmerge.errors import (
    DataError,
    MissingLibrary,
    MissingRecord,
    PortfolioError,
    RecordError,
    TargetError,
    TrainingError,
    WeightsError,
)
from dpmerge.jobs import run_all
from dpmerge.planning import Averaging
from dpmerge.records import Portfolio, Record, looks_like
from dpmerge.release import renoise
from dpmerge.training import PortfolioFile
from dpmerge.training.feature_files import read_files
from dpmerge.user_code import added, call, load_function
from tests import release_builders
from tests.test_cli import dpmerge

DELTA = ("--delta", "1e-5")
RUN = "{model: softmax, noise_multiplier: 1.0, learning_rate: 0.1, steps: 3, clip: 1.0, full_batch: true}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A portfolio `runs`, a ledger, a file, a release's folder, a loader that fails; the working folder is around them."""
    release_builders.runs(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("create table other (x)")
    connection.close()
    (tmp_path / "weights.json").write_text("{}")
    (tmp_path / "released").mkdir()
    (tmp_path / "released" / "certificate.json").write_text("{}")
    (tmp_path / "failing_loader.py").write_text("def load():\n    raise KeyError('age')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


MISTAKES: list[tuple[str, str]] = [
    ("acount runs", "no such command 'acount'; did you mean 'account'? (see dpmerge --help)"),
    ("ledger remainng ledger.db", "did you mean 'remaining'? (see dpmerge ledger --help)"),
    ("plan runs --epsilom 2 --delta 1e-5", "no such option: --epsilom; did you mean --epsilon?"),
    ("plan", "missing argument 'portfolio' (see dpmerge plan --help)"),
    ("plan runs --epsilon 2", "missing option '--delta'"),
    ("run average runs --out out", "missing option '--rule': one of ema, uta, pda, uniform (see dpmerge run average --help)"),
    ("plan runs --epsilon two --delta 1e-5", "invalid value for '--epsilon': it must be a number"),
    ("plan a b --epsilon 2 --delta 1e-5", "extra argument(s) (b); the command takes PORTFOLIO, and options"),
    ("account runs --rule slerp --weights a=1 --delta 1e-5", "'slerp' is not one of 'selection'"),
    ("account runs --rule joint --weights a=1", "one of the two is needed"),
    ("account runs --rule joint --weights weights.json --delta 1e-5", "weights.json: is a file, not a weight"),
    ("account runs --rule joint --weights aa=1 --delta 1e-5", "it has 'a', 'b', 'c'; did you mean a?"),
    ("account weights.json --alone", "weights.json: is a JSON file; a portfolio is a folder"),
    ("account ledger.db --alone", "ledger.db: is a database, as ledgers are; a portfolio is a folder"),
    ("ledger show none.db", "none.db: no such ledger; make one first (on the command line: dpmerge ledger new)"),
    ("record new weights.json", "weights.json: is a JSON file; a record stands beside a model's tensors"),
    ("account runs/a --alone", "runs/a: is one model; a portfolio is the folder around it"),
    ("account released --alone", "released: is a release, not a portfolio"),
    ("merge out --rule joint --weights a=1 --delta 1e-5 --out runs", "(runs, given as --out, is a portfolio: are the"),
    ("ledger show runs", "runs: is a portfolio, not a ledger"),
    ("ledger show weights.json", "weights.json: is a JSON file, not a ledger"),
    ("train runs --out out", "runs: is a portfolio; give the YAML file"),
    ("frontier runs --delta 1e-5 --out weights.json", "weights.json: is a file; pictures and finished work need a folder"),
    ("frontier runs --delta 1e-5 --evaluate digitz", "did you mean digits?"),
    ("train released --out out", "released: is a release; give the YAML file"),
    ("plan runs --epsilon 1 --delta 1e-5 --utility a=1,b=2,d=3", "no model named 'd'"),
]


@pytest.mark.parametrize(("words", "complaint"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line(words: str, complaint: str, place: Path) -> None:
    result = dpmerge(*words.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert told(complaint) in told(result.stderr)


def told(words: str) -> str:
    """Without what differs between versions of Typer: quotes, colons, capitals, "argument(s)"."""
    return re.sub(r"[':]", "", words.replace("(s)", "")).lower()


@pytest.mark.parametrize(
    ("folder", "what"),
    [("runs", "runs is a portfolio"), ("weights.json", "weights.json is a JSON file"), ("none", "none: no such folder")],
)
def test_verify_says_what_it_was_given(folder: str, what: str, place: Path) -> None:
    result = dpmerge("verify", folder)
    assert result.returncode == 2 and f"there is no certificate to check ({what}" in result.stdout


def test_a_group_without_a_command_shows_its_help() -> None:
    result = dpmerge("ledger")
    assert result.returncode == 2 and "Commands:" in result.stderr + result.stdout


def test_what_paths_look_like(place: Path) -> None:
    assert [looks_like(place / name) for name in ("runs", "runs/a", "released", "none", "failing_loader.py")] == [
        *("a portfolio", "one model", "a release", "", "a file")
    ]
    assert looks_like(place) == "a folder"


# --- records and portfolio files ------------------------------------------------------------------------------------------


def test_a_misspelt_field_of_a_record_is_named() -> None:
    text = (example_portfolio() / "mnist-c1-s2" / "record.json").read_text()
    for field, typo in (
        ("noise_multiplier", "noise_multiplyer"),
        ("adjacency", "adjacancy"),
        ("expected_batch", "expectedbatch"),
    ):
        with pytest.raises(RecordError, match=rf"field (mechanism\.)?{typo}: unknown field; did you mean {field}\?$"):
            Record.parse(text.replace(f'"{field}"', f'"{typo}"', 1))
    with pytest.raises(RecordError, match="unknown field; remove it, or check its spelling"):
        Record.parse(text.replace('"schema"', '"qqq": 1, "schema"', 1))
    with pytest.raises(RecordError, match=r"\(got 'dpsgd'\); did you mean dp-sgd\?"):
        Record.parse(text.replace('"dp-sgd"', '"dpsgd"', 1))


def test_a_misspelt_field_of_a_portfolio_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    for text, complaint in (
        (f"data: digits\nclases: 2\nruns: {{a: {RUN}}}\n", r"field clases: unknown field; did you mean classes\?$"),
        (f"data: digits\nruns: {{a: {RUN.replace('learning_rate', 'learning-rate')}}}\n", r"did you mean learning_rate\?$"),
    ):
        path.write_text(text)
        with pytest.raises(TrainingError, match=complaint):
            PortfolioFile.load(path)


def test_a_model_without_a_record_is_no_portfolio(place: Path) -> None:
    (place / "runs" / "a" / "record.json").unlink()
    result = dpmerge("account", "runs/a", "--alone")
    assert "runs/a: holds one model, without a record.json; a portfolio is the folder around it" in result.stderr


def test_arguments_of_python_calls_that_are_something_else(place: Path) -> None:
    portfolio, half = Portfolio("runs"), {"a": 0.5, "b": 0.5}
    calls: dict[str, Callable[..., Any]] = {
        "compare": partial(api.compare, delta=1e-5),
        "joint": api.joint,
        "merge": partial(api.merge, rule="joint", delta=1e-5, out="out"),
    }
    for call_it in calls.values():
        with pytest.raises(PortfolioError, match=r"not the path of one; read it first: dpmerge\.Portfolio\('runs'\)"):
            call_it("runs", half)
        with pytest.raises(PortfolioError, match="a Portfolio is due, not a dict: are two arguments swapped"):
            call_it(half, portfolio)
        with pytest.raises(WeightsError, match=r"weights are given by name, {'a': 1\.0}, not as a list"):
            call_it(portfolio, [0.5, 0.5])
    given: Any = "runs"
    for asked in (partial(api.plan, epsilon=1.0), partial(api.frontier, epsilons=[1.0])):
        with pytest.raises(PortfolioError, match="read it first"):
            asked(given, delta=1e-5)
    with pytest.raises(PortfolioError, match="read it first"):
        api.verify("released", portfolio=given)
    rule: Any = "combinaton"
    with pytest.raises(TargetError, match=r"no rule is named 'combinaton'; .*; did you mean combination\?"):
        api.merge(portfolio, half, rule=rule, delta=1e-5, out="out")


def test_a_missing_record_says_how_to_make_one(place: Path) -> None:
    (place / "runs" / "b" / "record.json").unlink()
    with pytest.raises(MissingRecord, match=r"training\.record .*training\.new_record .*from_opacus") as refused:
        Portfolio(place / "runs")
    assert refused.value.folder == place / "runs" / "b" and isinstance(refused.value, PortfolioError)
    assert "record new" not in str(refused.value)
    assert "(on the command line: dpmerge record new runs/b)" in dpmerge("account", "runs", "--alone").stderr


# --- data and functions of the user's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "at", "where"),
    [((6, 4), (3, 2), "row 3, column 2 "), ((5, 1, 2, 3), (4, 0, 1, 2), r"row 4, position \(0, 1, 2\) ")],
)
def test_a_number_that_is_not_finite_says_where(
    shape: tuple[int, ...], at: tuple[int, ...], where: str, tmp_path: Path
) -> None:
    x = np.ones(shape)
    x[at], x[(-1,) * len(shape)] = np.nan, np.inf
    held: dict[str, Any] = {"x_train": np.ones(shape), "y_train": np.zeros(len(x), int), "y_test": np.zeros(len(x), int)}
    np.savez(tmp_path / "data.npz", x_test=x, **held)
    more = "" if at == tuple(n - 1 for n in shape) else ", and 1 more are not finite"
    with pytest.raises(DataError, match=rf"data\.npz: all numbers of x_test must be finite; {where}.* is (nan|inf){more}$"):
        read_files("data.npz", tmp_path)


def test_a_column_of_a_table_that_is_not_finite_is_named(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    from dpmerge.training.feature_files import DataFiles

    gap, unknown = [1.0, None, 3.0], [1.0, 2.0, float("nan")]
    for age, complaint in ((gap, "'age' has missing values, the first in row 1"), (unknown, "row 2, column 'age' ")):
        write_table(arrow.table({"height": [1.0, 2.0, 3.0], "age": age, "label": [0, 1, 0]}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=complaint):
            read_files(DataFiles(train="t.parquet", test="t.parquet"), tmp_path)


def test_a_loaders_exception_is_shown_as_its_own(place: Path) -> None:
    (place / "mine.yaml").write_text(
        f"data: failing_loader:load\ndataset: d\nclasses: 2\nnorm_bound: 2.0\nruns: {{a: {RUN}}}\n"
    )
    plain = dpmerge("train", "mine.yaml", "--out", "out")
    assert plain.stderr == "error: failing_loader:load raised KeyError: 'age' (--debug shows the traceback)\n"
    for words in (("--debug", "train", "mine.yaml", "--out", "out"), ("train", "mine.yaml", "--out", "out", "--debug")):
        told = dpmerge(*words).stderr
        assert "Traceback" in told and "failing_loader.py" in told and told.endswith("raised KeyError: 'age'\n")


def test_a_traceback_comes_back_from_a_worker() -> None:
    """Exceptions lose their cause when they are sent between processes; those without one have none to show."""
    with pytest.raises(DataError, match="mine raised ZeroDivisionError") as failed:
        run_all(_divides, [1, 2], jobs=2)
    assert "ZeroDivisionError: division by zero" in str(failed.value.__cause__) and "test_mistakes.py" in str(
        failed.value.__cause__
    )
    assert in_one_line(failed.value).endswith("(--debug shows the traceback)")
    with pytest.raises(DataError) as refused:
        run_all(lambda item: _refuses(), [1, 2], jobs=2)
    assert in_one_line(refused.value) == "error: mine refuses"


def _divides(item: int) -> float:
    return call("mine", lambda: item / 0, error=DataError)


def test_a_package_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("more", "no_such_package:TABLE", "dpmerge.commands")
    monkeypatch.setattr("dpmerge.user_code.entry_points", lambda group: (broken,))
    with pytest.raises(
        MissingLibrary, match=r"adds commands to dpmerge, cannot be loaded: .* 'no_such_package'; install it anew"
    ):
        added("commands")


def test_functions_that_cannot_be_loaded_say_why(place: Path) -> None:
    (place / "needs_more.py").write_text("import a_library_that_is_not_there\n")
    for name, complaint in {
        "no_such_place:f": "there is no module 'no_such_place'",
        "needs_more:f": "its module needs_more needs 'a_library_that_is_not_there', not installed",
        "failing_loader:laod": "failing_loader has no 'laod'; did you mean load?",
    }.items():
        with pytest.raises(DataError, match="cannot be loaded: " + complaint.replace("?", r"\?")):
            load_function(name, "data", DataError)
    with pytest.raises(DataError, match="mine refuses"):  # dpmerge's own errors pass
        call("x:y", _refuses, error=DataError)


def _refuses() -> None:
    raise DataError("mine refuses")


def test_neither_is_not_both(tmp_path: Path) -> None:
    loaded = release_builders.runs(tmp_path)
    chosen = release_builders.chosen(loaded, "combination", noise=1.0)
    from dpmerge.release import release

    release(loaded, chosen, tmp_path / "out")
    with pytest.raises(TargetError, match="one of the two is needed"):
        renoise(tmp_path / "out", tmp_path / "more", delta=1e-5)
    with pytest.raises(TargetError, match="not both"):
        renoise(tmp_path / "out", tmp_path / "more", delta=1e-5, epsilon=1.0, noise=2.0)
    with pytest.raises(ValueError, match="and neither is given"):
        Averaging(rule="ema", checkpoints=3)
    with pytest.raises(ValueError, match="not both"):
        Averaging(rule="ema", checkpoints=3, decay=0.9, new_weight=0.1)
