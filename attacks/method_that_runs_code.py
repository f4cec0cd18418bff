"""A certificate names a function of the forger's as its merge method: whoever verifies it would run it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attacks.victim import forge, release, stopped, verified


def attack(folder: Path) -> str:
    """The module lies where Python finds it, beside the release."""
    out = release(folder, "joint")
    ran = folder / "ran"
    (folder / "kind_of_average.py").write_text(f"open({str(ran)!r}, 'w').close()\ndef merge(name, tensors, weights): ...\n")

    def by_my_method(certificate: dict[str, Any]) -> None:
        certificate["merge"]["method"] = "kind_of_average:merge"

    forge(out, by_my_method)
    with patch.object(sys, "path", [str(folder), *sys.path]):
        stopped(verified(out, "--portfolio", folder / "runs"), "if you trust it, name it", code=2)
    assert not ran.exists(), "the forger's code ran"
    return "code that a certificate names is not loaded unless whoever verifies names it too"
