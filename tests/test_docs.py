"""What the documents say holds: code runs, files exist, errors are as drawn, the site builds without a warning."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpmerge import errors
from dpmerge.cli import app
from tests.builders import DATASET
from tests.release_builders import runs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "RELEASE.md",
    "docs/architecture.md",
    "src/dpmerge/rules/README.md",
    "docs/tutorials/knob.md",
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.split()) < 900


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    exec(compile(code.replace("clinic-2026", DATASET), "README.md", "exec"), {})
    assert (tmp_path / "out" / "certificate.json").exists()


def test_the_readmes_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two models that are there already; what trains, and what serves until it is stopped, is only asked for its help."""
    runs(tmp_path)
    shutil.rmtree(tmp_path / "runs" / "c")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("shell") for line in block.splitlines() if line.startswith("dpmerge ")]
    assert len(lines) == 10
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        words = ["test-data" if word == "sklearn-digits-train-1437" else word for word in words]
        done = CliRunner().invoke(app, [words[0], "--help"] if words[0] in ("train", "explore") else words)
        assert done.exit_code == 0, (line, done.output, done.exception)


def test_the_tutorials_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tenth of the data and full batches, whose accounting is in closed form; ten commands at most."""
    text = (ROOT / "docs" / "tutorials" / "knob.md").read_text().replace("_000", "_00")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            exec(compile(block, "knob.md", "exec"), {})
        elif language == "yaml":
            Path("portfolio.yaml").write_text(re.sub(r"rate: 0\.[0-9]+, ", "full_batch: true, ", block, count=1))
        for line in block.splitlines() if language == "shell" else []:
            ran += 1
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, (line, done.output, done.exception)
    assert ran <= 10
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "for-partners",
        "for-customers",
        "for-everyone",
    ]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    linked = [(ROOT / page).parent / place for place in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)]
    named = [ROOT / place for place in re.findall(r"`((?:src|lab|tests|docs|attacks|tools|benchmarks)/[\w./-]*)`", text)]
    rooms = "|".join(path.name for path in (ROOT / "src" / "dpmerge").iterdir() if path.is_dir())
    named += [ROOT / "src" / "dpmerge" / place for place in re.findall(rf"`((?:{rooms})/[\w./]+\.\w+)`", text)]
    missing = [str(path) for path in (*linked, *named) if not path.exists()]
    assert not missing


def test_the_errors_are_those_drawn() -> None:
    """The tree in the docstring of errors.py: every class under its parent, in the words of its own docstring."""
    drawn: dict[str, str] = {}
    above: list[str] = []
    for depth, name in re.findall(r"^ {4}((?:[│ ] {3})*[├└]── |)(\w+)", errors.__doc__ or "", flags=re.MULTILINE):
        del above[len(depth) // 4 :]
        drawn[name] = above[-1] if above else "Exception"
        above.append(name)
    known = {name: one.__bases__[0].__name__ for name, one in vars(errors).items() if isinstance(one, type)}
    assert drawn == known


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dpmerge.planning" in (tmp_path / "api.html").read_text()
