"""Every example in a docstring runs, and prints what it says."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
    for home in (ROOT / "src", ROOT / "lab")
    for path in sorted(home.glob("dpmerge*/**/*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0 and found.failed == 0
