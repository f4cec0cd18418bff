"""What a stranger wrote reaches neither the terminal as it is, nor more memory and time than `release/bounds.py` allows."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from attacks.hostile_certificate import FORGED
from attacks.victim import forge
from dpmerge.bounded_yaml import parse_yaml
from dpmerge.cli.output import echo, echo_lines, print_json, table
from dpmerge.errors import (
    CertificateError,
    CheckpointError,
    DataError,
    GridTooLarge,
    RecordError,
    TakesTooLong,
    TrainingError,
    WeightsError,
    printable,
)
from dpmerge.profiles import MixtureLaw, Profile, effort_of_at_most
from dpmerge.records import Portfolio, Weights
from dpmerge.release import CardTemplate, Released, release, verify
from dpmerge.release.readme import PLACE
from dpmerge.tensors import merge_models, open_model
from dpmerge.training.feature_files import read_training
from dpmerge.training.portfolio_file import PortfolioFile
from tests.checkpoint_builders import sharded, single, verify_combination
from tests.release_builders import chosen, dpmerge, runs

CLI = Path(__file__).parent.parent / "src" / "dpmerge" / "cli"
CODES = st.sampled_from(
    ["\x1b[2K", "\x1b]8;;http://x\x07", "\r", "\n", "\x9b1A", "\u202e", "\u2028", "\x00", "\udc80", "[red]", ":boom:"]
)
TEXTS = st.lists(st.one_of(CODES, st.text(max_size=4)), max_size=6).map("".join)


def printed(text: object) -> str:
    with redirect_stdout(io.StringIO()) as out:
        echo(text)
    return out.getvalue()


@given(TEXTS)
def test_a_printed_line_is_one_line_of_visible_characters(text: str) -> None:
    shown = printed(text)
    assert shown.endswith("\n") and shown[:-1].isprintable()
    assert printable(printable(text)) == printable(text)
    if text.isprintable():
        assert shown == text + "\n"


@given(TEXTS)
def test_printed_json_is_visible_and_says_the_same(text: str) -> None:
    with redirect_stdout(io.StringIO()) as out:
        print_json({"name": text, text: [text]})
    assert all(line.isprintable() for line in out.getvalue().split("\n"))
    assert json.loads(out.getvalue()) == {"name": text, text: [text]}


@given(st.text(alphabet=st.characters(categories=["L", "Nd", "Po", "Sm"]), max_size=20), CODES)
def test_a_table_interprets_no_markup_and_no_codes(name: str, code: str) -> None:
    with redirect_stdout(io.StringIO()) as out:
        table(f"[bold]{code}[/bold]", ["[i]model[/i]"], [[f"[red]{code}[/red]"]])
    shown = out.getvalue()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "[red]" in shown and "[/red]" in shown and "[bold]" in shown and "[i]model[/i]" in shown


def test_texts_of_several_lines_keep_them_and_nothing_else() -> None:
    with redirect_stdout(io.StringIO()) as out:
        echo_lines("one\ntwo\x1b[2K")
    assert out.getvalue() == "one\ntwo\\x1b[2K\n"


def test_commands_print_through_the_functions_that_escape() -> None:
    """A call of `print` or `typer.echo` elsewhere would pass them by."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in CLI.glob("*.py")
        if path.name != "output.py"
        for line in path.read_text().splitlines()
        if re.search(r"(?<![\w.])print\(|(typer|click)\.s?echo|sys\.std(out|err)\.write|console\.print", line)
    ]
    assert not found


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    folder = tmp_path_factory.mktemp("hostile")
    portfolio = runs(folder)
    return release(portfolio, chosen(portfolio, "joint"), folder / "out")


def test_an_error_about_a_file_cannot_forge_a_line(tmp_path: Path) -> None:
    """Names of folders and of fields are the stranger's too."""
    model = tmp_path / "runs" / "m\x1b[2K\nit holds"
    model.mkdir(parents=True)
    (model / "record.json").write_text(json.dumps({"schema": 1, FORGED: 0}))
    command = [sys.executable, "-m", "dpmerge", "account", str(tmp_path / "runs"), "--delta", "1e-5"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2 and said.stdout == "" and said.stderr.count("\n") == 1 and said.stderr[:-1].isprintable()


# --- memory and time --------------------------------------------------------------------------------------------------------


def test_a_grid_stays_within_the_points_it_is_allowed() -> None:
    sampled = Profile.of([(MixtureLaw.poisson(0.01, 1.0), 1000)])
    with effort_of_at_most(2**22, 60):
        assert sampled.epsilon(delta=1e-5) == pytest.approx(1.828, abs=1e-3)
    with effort_of_at_most(2**4, 60), pytest.raises(GridTooLarge):
        Profile.of([(MixtureLaw.poisson(0.011, 1.0), 1000)]).epsilon(delta=1e-5)


def test_a_guarantee_that_takes_too_long_is_not_checked(released: Released, tmp_path: Path) -> None:
    """Twenty seconds' worth of different steps, and one second: the verdict comes soon, and does not say that it holds."""
    import shutil

    out = tmp_path / "out"
    shutil.copytree(released.folder, out)

    def many(content: dict[str, object]) -> None:
        for form in content["records"].values():  # type: ignore[attr-defined]
            mechanism = form["record"]["mechanism"]
            steps = [{"steps": 1, "learning_rate": 0.1, "noise_multiplier": 4 + number / 1000} for number in range(2000)]
            mechanism |= {"phases": steps, "sampling": {"scheme": "poisson", "rate": 0.01}, "expected_batch": 10.0}

    forge(out, many)
    before = time.monotonic()
    verdict = verify(out, seconds=1)
    assert verdict.code == 1 or verdict.unchecked  # other things were forged with it
    assert any("takes longer" in text for text in verdict.unchecked), verdict
    assert verdict.epsilon is None and time.monotonic() - before < 60


def test_the_time_allowed_ends_with_its_block() -> None:
    with effort_of_at_most(2**20, -1.0), pytest.raises(TakesTooLong):
        Profile.of([(MixtureLaw.poisson(0.012, 1.0), 100)]).epsilon(delta=1e-5)
    assert Profile.of([(MixtureLaw.poisson(0.012, 1.0), 100)]).epsilon(delta=1e-5) > 0


_LIMITED = """
import resource, sys
from pathlib import Path
from dpmerge.release import verify
most = 3 << 29
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
verdict = verify(Path(sys.argv[1]))
print(verdict.code, *verdict.broken, *verdict.unchecked, sep="\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("rule, steps", [("joint", 30_000_000), ("joint", 100_000_000), ("combination", 30_000_000)])
def test_many_steps_are_rechecked_or_refused_in_bounded_memory(tmp_path: Path, rule: str, steps: int) -> None:
    """A certificate of 5 KB could ask for any amount. Here 1.5 GB must be enough for an answer."""
    portfolio = runs(tmp_path)
    out = release(portfolio, chosen(portfolio, rule), tmp_path / "out").folder  # type: ignore[arg-type]

    def long(content: dict[str, object]) -> None:
        for form in content["records"].values():  # type: ignore[attr-defined]
            mechanism = form["record"]["mechanism"]
            mechanism["phases"][0]["steps"] = steps
            mechanism |= {"sampling": {"scheme": "poisson", "rate": 0.001}, "expected_batch": 10.0}

    forge(out, long)
    told = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(out)], capture_output=True, text=True, timeout=300, check=False, env={**os.environ}
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout[0] in "12" and "not enough memory" not in told.stdout


# --- what files say of themselves --------------------------------------------------------------------------------------------


def test_aliases_of_aliases_in_yaml_are_counted(tmp_path: Path) -> None:
    laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    merged = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
    for text, message in (
        (f"a0: &a0 [x]\n{laughs}", "with its aliases it has more than 100,000 values"),
        (f"a0: &a0 {{x: 1}}\n{merged}", "with its aliases it has more than 100,000 values"),
        ("a: &a [*a]\n", "an alias stands for what it is in"),
        ("a: " + "[" * 50_000, "nested too deeply"),
        ("a: 2001-99-99\n", "month must be in"),
        ("a: !!int z\n", "invalid literal"),
        ("a: [" + "x, " * 400_000 + "]", "more than 1,048,576"),
    ):
        (tmp_path / "p.yaml").write_text(text)
        (tmp_path / "card.md").write_text(f"---\n{text}\n---\n\n{PLACE}\n")
        with pytest.raises(TrainingError, match=message.replace("more than 1,048,576", "larger than 1,048,576")):
            PortfolioFile.load(tmp_path / "p.yaml")
        with pytest.raises(CertificateError, match=message):
            CardTemplate.load(tmp_path / "card.md")
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_compressed_arrays_and_tables_are_bounded_by_their_file(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1 << 25, np.uint8), y=np.zeros(1))
    np.savez_compressed(tmp_path / "fair.npz", x=np.zeros(1 << 20, np.uint8), y=np.zeros(1))
    with pytest.raises(DataError, match="a file of its size may hold 16,777,216: save it uncompressed"):
        read_training(tmp_path / "bomb.npz")
    assert read_training(tmp_path / "fair.npz")[0].nbytes == 1 << 20
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"f": np.zeros(1 << 22), "label": np.zeros(1 << 22, np.int64)})
    parquet.write_table(table, tmp_path / "bomb.parquet")
    with pytest.raises(DataError, match="holds more than 16,777,216 bytes"):
        read_training(tmp_path / "bomb.parquet")


def test_numbers_and_texts_that_no_float_or_file_can_hold(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for weights in (f"a={'9' * 400}/1,b=0", f"a={'9' * 5000}/1,b=0"):
        with pytest.raises(WeightsError, match="is not a number") as caught:
            Weights.parse(portfolio, weights)
        assert len(str(caught.value)) < 200
    path = tmp_path / "runs" / "a" / "record.json"
    good = path.read_text()
    for old, new, message in (
        ('"steps":10', f'"steps":1{"0" * 400}', "less than or equal to 9007199254740992"),
        ('"noise_multiplier":4.0', f'"noise_multiplier":1{"0" * 400}', "finite number"),
        ("test-data", "\\ud800", "Invalid JSON"),
        ('"schema":1', f'"schema":"{"y" * 10**6}"', "schema"),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        with pytest.raises(RecordError, match=message) as caught_too:
            Portfolio(tmp_path / "runs")
        assert len(str(caught_too.value)) < 600


@pytest.mark.skipif(sys.platform != "linux", reason="limits of open files are Unix'")
def test_more_shards_than_a_process_may_open(tmp_path: Path) -> None:
    """Three models of 150 files each, and as many written, with 200 descriptors, of which others hold many."""
    shards = [{f"t{number}": np.full(2, number / 1000, np.float32)} for number in range(150)]
    models = {name: sharded(tmp_path / name, *shards) for name in "abc"}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = [os.open(tmp_path, os.O_RDONLY)]
    while others[-1] < 150:  # the smallest number that is free
        others.append(os.open(tmp_path, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        merge_models(models, {"a": 0.25, "b": 0.25, "c": 0.5}, tmp_path / "out")
        assert not verify_combination(models, {"a": 0.25, "b": 0.25, "c": 0.5}, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in others:
            os.close(descriptor)


def test_a_file_that_is_not_held_open_must_stay_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.tensors.safetensors_file._MOST_HELD", 0)
    folder = single(tmp_path / "m", {"x": np.ones(3, np.float32)})
    with open_model(folder) as model:
        assert model.tensors["x"].load().tolist() == [1, 1, 1]
        single(folder, {"x": np.zeros(3, np.float32)})
        with pytest.raises(CheckpointError, match="was written to while it was read"):
            model.tensors["x"].load()


# --- what a verdict does not cover -------------------------------------------------------------------------------------------


def test_a_verdict_says_what_it_does_not_cover(released: Released) -> None:
    told = dpmerge("verify", released.folder, "--json")
    found = json.loads(told.stdout)
    assert found["code"] == 0 and found["standing"] == "proved"
    assert (found["epsilon"], found["delta"]) == (released.guarantee.epsilon, released.guarantee.delta)
    assert found["granted"] == []
    assert any(text.startswith("ledger total: not checked") for text in found["left_out"])
    lines = dpmerge("verify", released.folder).stdout.splitlines()
    assert any(line.startswith("not covered: ledger total: not checked") for line in lines) and lines[-1] == "it holds"
    assert any(line.startswith("certified: ") and "proved" in line for line in lines)
