"""Words that are printed name only what is installed; help comes with the wheel; numbers without a use are not shown."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpmerge as library
from dpmerge.cli.topics import TOPICS
from dpmerge.errors import DpmergeError, FigureError
from dpmerge.rules.compare import NO_USE
from tests.release_builders import DELTA, dpmerge, runs
from tests.test_plan_advice import networks

ROOT = Path(__file__).parent.parent


def printed(path: Path) -> Iterator[str]:
    """Every string of a file that may be printed: all but docstrings; those of commands are their help."""
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    scopes = [one for one in ast.walk(tree) if isinstance(one, kinds)]
    if path.parent.name == "cli":
        scopes = [one for one in scopes if not isinstance(one, ast.FunctionDef)]
    first = [one.body[0] for one in scopes if one.body]
    docstrings = {id(one.value) for one in first if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docstrings:
            yield one.value


def test_messages_name_no_file_that_is_not_installed() -> None:
    found = {
        str(path.relative_to(ROOT)): text
        for path in (ROOT / "src").rglob("*.py")
        for text in printed(path)
        if any(place in text for place in ("docs/", "lab/", "tests/", "CONTRIBUTING"))
    }
    assert not found


def test_every_topic_is_a_page_that_the_wheel_brings() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    brought = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert brought == {f"docs/{page}": f"dpmerge/help/{topic}.md" for topic, page in TOPICS.items()}
    assert all((ROOT / page).is_file() for page in brought)


def test_help_lists_topics_and_prints_them() -> None:
    listed = json.loads(dpmerge("help", "--json").stdout)
    assert set(listed) == set(TOPICS) and listed["records"] == "Records"
    assert all(topic in dpmerge("help").stdout for topic in TOPICS)
    text = (ROOT / "docs" / "records.md").read_text()
    assert dpmerge("help", "records").stdout.rstrip() == text.rstrip()
    assert json.loads(dpmerge("help", "records", "--json").stdout) == {"topic": "records", "text": text}
    refused = dpmerge("help", "theroy").exception
    assert isinstance(refused, DpmergeError) and "did you mean theory?" in str(refused)


def test_a_page_that_is_gone_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dpmerge.cli.topics._WRITTEN", tmp_path)
    assert "missing from this installation" in str(dpmerge("help", "records").exception)


def test_installing_is_described_as_it_works_today() -> None:
    """From a checkout; every extra with its size; what torch downloads is said before anyone types it."""
    page, readme = (ROOT / "docs" / "install.md").read_text(), (ROOT / "README.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = {line.split("|")[1].strip(" `"): line.split("|")[3:5] for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(extras) - {"dev"}
    assert all(0 < int(download) < int(installed) for download, installed in rows.values())
    for text in (readme, page):
        assert "pip install dpmerge" not in text and "pip install 'dpmerge" not in text
        assert "CPU build" in text and "registry" in text
    assert "2.7 GB" in readme and "2740 MB" in page


# --- pictures -----------------------------------------------------------------------------------------------------------------


def test_a_frontier_as_json_needs_no_library_for_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("matplotlib", "plotly")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("matplotlib", "plotly"):
        monkeypatch.setitem(sys.modules, name, None)
    asked = ("frontier", tmp_path / "runs", "--delta", DELTA, "--epsilons", "1,2", "--jobs", 1, "--out", tmp_path / "out")
    refused = dpmerge(*asked)
    assert isinstance(refused.exception, FigureError) and "install dpmerge[plots]" in str(refused.exception)
    assert not (tmp_path / "out").exists(), "refused before the work"
    done = dpmerge(*asked, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kind"] == "frontier" and done.stderr.count("none is drawn") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"frontier.json", "points.jsonl"}


# --- numbers without a use ----------------------------------------------------------------------------------------------------


def test_a_bound_that_promises_nothing_is_not_shown_as_a_number(tmp_path: Path) -> None:
    """Advanced composition grows like ε·e^ε: above basic composition it is of no use. JSON and tables of pandas keep it."""
    found = library.compare(networks(1.0, 1.0), {"m0": 0.5, "m1": 0.5}, delta=DELTA)
    rows = {row.label: row for row in found}
    advanced, basic = rows["advanced composition"], rows["basic composition"]
    assert advanced.guarantee and basic.guarantee and advanced.guarantee.epsilon > basic.guarantee.epsilon
    assert advanced.cells["ε"] == NO_USE and f"advanced composition: {NO_USE}" in repr(found)
    assert basic.cells["ε"] != NO_USE and rows["joint release"].cells["ε"] != NO_USE
    exact = next(row for row in found.as_dict()["rows"] if row["label"] == "advanced composition")
    assert exact["epsilon"] == advanced.guarantee.epsilon
    many = library.compare(networks(*[4000.0] * 40), {f"m{place}": 1 / 40 for place in range(40)}, delta=DELTA)
    assert NO_USE not in [row.cells["ε"] for row in many], "where it is below basic composition it is shown"
    runs(tmp_path)
    assert "no use" not in dpmerge("compare", tmp_path / "runs", "--weights", "b=1", "--epsilon", 1).stdout
