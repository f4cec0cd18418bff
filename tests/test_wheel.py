"""The tool alone: a wheel, installed where neither this checkout nor the laboratory is, does the whole walk."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.release_builders import runs

ROOT = Path(__file__).parent.parent


def run(*words: object, cwd: Path, code: int = 0) -> str:
    """What a process prints, with nothing of this environment's paths."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the wheel and, linked from here, every library but this project's two packages."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", *build, ROOT, cwd=folder)
    (wheel,) = folder.glob("dpmerge-*.whl")
    venv.create(folder / "clean", with_pip=False, symlinks=True)
    (packages,) = (folder / "clean" / "lib").glob("python*/site-packages")
    for library in Path(sysconfig.get_path("purelib")).iterdir():
        if "dpmerge" not in library.name and library.suffix != ".pth":
            (packages / library.name).symlink_to(library)
    python = folder / "clean" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "clean" / "bin"


def test_the_tool_works_without_the_laboratory(installed: Path, tmp_path: Path) -> None:
    python, dpmerge = installed / "python", installed / "dpmerge"
    found = run(python, "-c", "import dpmerge; print(dpmerge.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.parent)
    assert "No module named 'dpmerge_lab'" in run(python, "-c", "import dpmerge_lab", cwd=tmp_path, code=1)
    runs(tmp_path)
    weights = ("--weights", "a=0.25,b=0.75", "--delta", "1e-5")
    assert "-DP" in run(dpmerge, "account", "runs", "--rule", "selection", *weights, cwd=tmp_path)
    assert "combination" in run(dpmerge, "plan", "runs", "--epsilon", "2", "--delta", "1e-5", cwd=tmp_path)
    target = ("--epsilon", "2", "--delta", "1e-5")
    run(dpmerge, "merge", "runs", "--rule", "combination", *target, "--out", "out", cwd=tmp_path)
    assert run(dpmerge, "verify", "out", "--portfolio", "runs", cwd=tmp_path).endswith("it holds\n")
    refused = run(dpmerge, "audit", "gaussian-mean", cwd=tmp_path, code=2)
    assert refused.startswith("error: ") and "laboratory" in refused and "install" in refused
