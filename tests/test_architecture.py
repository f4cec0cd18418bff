"""The house rules: imports go down only, accounting never loads torch, the public surface is what it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import dpmerge
import dpmerge.errors
from dpmerge.rules import THEOREMS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "dpmerge"
LAB = ROOT / "lab" / "dpmerge_lab"
# From the ground up; a room may import from those before it.
FLOORS = [
    "errors",
    "files",
    "bounded_yaml",
    "notebook",
    "user_code",
    "_version",
    "jobs",
    "cache",
    "datasets",
    "records",
    "profiles",
    "rules",
    "planning",
    "figures",
    "tensors",
    "release",
    "checkpoints",
    "training",
    "audit",
    "_api",
    "explorer",
    "cli",
    "__main__",
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "dpmerge":
                found |= {f"dpmerge.{alias.name}" for alias in node.names}
    return found


def floor(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


def behind_doors(paths: Iterable[Path], room: str | None) -> list[str]:
    """Imports that go behind the front door, the `__init__`, of a room that is not this one."""
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in paths
        for module in imports(path)
        if module.startswith("dpmerge.") and module.count(".") > 1 and module.split(".")[1] != room
    ]


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_rooms_are_entered_by_their_front_doors(room: str) -> None:
    assert not behind_doors((PACKAGE / room).rglob("*.py"), room)


@pytest.mark.parametrize("folder", [LAB, ROOT / "benchmarks", ROOT / "attacks"], ids=lambda folder: folder.name)
def test_the_laboratory_uses_front_doors_only(folder: Path) -> None:
    assert not behind_doors([*PACKAGE.glob("*.py"), *folder.rglob("*.py")], None)


def test_the_tool_knows_nothing_of_the_laboratory() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not any(module.split(".")[0] == "dpmerge_lab" for module in imports(path)), path


def test_imports_go_down_only() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        room = relative.parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for module in imports(path):
            if module.startswith("dpmerge.") and module.split(".")[1] in FLOORS:
                assert floor(module) <= FLOORS.index(room), f"{relative} imports {module}"


def test_records_have_no_numerics() -> None:
    for path in (PACKAGE / "records").glob("*.py"):
        assert not any(module.split(".")[0] in ("numpy", "scipy", "dp_accounting") for module in imports(path)), path


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_after("import dpmerge.cli")
    assert not loaded & {"numpy", "scipy", "pydantic", "dp_accounting", "torch"}


def test_accounting_never_loads_torch_or_dp_accountings_slow_import() -> None:
    portfolio = str(dpmerge.example_portfolio())
    loaded = loaded_after(
        "import dpmerge\n"
        f"p = dpmerge.Portfolio({portfolio!r})\n"
        "w = {'mnist-c1-s0.5': 0.05, 'mnist-c1-s2': 0.95}\n"
        "for rule in (dpmerge.selection, dpmerge.combination, dpmerge.joint):\n"
        "    rule(p, w).guarantee(delta=1e-5)\n"
    )
    assert "scipy" in loaded
    assert not loaded & {"torch", "scipy.stats", "dp_accounting", "matplotlib"}


def test_every_theorem_has_a_heading_in_the_docs() -> None:
    headings = [line for line in (ROOT / "docs" / "theory.md").read_text().splitlines() if line.startswith("#")]
    for key in THEOREMS:
        assert any(f"`{key}`" in line for line in headings), f"docs/theory.md has no heading for {key}"


def test_sections_and_results_cited_in_the_code_exist() -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    for path in PACKAGE.rglob("*.py"):
        for section in re.findall(r"theory\.md §([\d.]+\d|\d)", path.read_text()):
            assert re.search(rf"^#+ §{re.escape(section)}\b", text, re.MULTILINE), f"{path} cites §{section}"


def test_public_surface() -> None:
    calls = "combination compare example_portfolio frontier joint merge no_free_lunch_threshold plan renoise selection verify"
    nouns = (
        "Accounting Certificate Combination Comparison Frontier Guarantee Joint Ledger Merge Model Option Plan Portfolio "
        "Question Record Released Rule Selection ShuffleAsPoisson Utilities Verdict Weights"
    )
    errors = {name for name in vars(dpmerge.errors) if isinstance(getattr(dpmerge.errors, name), type)}
    offered = set(dir(dpmerge))
    assert offered - errors == {"__version__", *calls.split(), *nouns.split()}
    assert {"DpmergeError", "AccountingError", "BudgetExceeded", "LedgerError", "PortfolioError"} <= offered
    assert all(getattr(dpmerge, name) is not None for name in offered)
    with pytest.raises(AttributeError, match="no attribute 'Path'"):
        _ = dpmerge.Path


def test_docs_name_no_machine_path() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md")]:
        assert not re.search(r"(?<![\w.])/(home|root|work|Users)/", path.read_text()), path
