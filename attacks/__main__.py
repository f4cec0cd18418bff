"""`python -m attacks`: carry out every attack, print how each was stopped, fail if one was not."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from attacks import all_attacks


def main() -> None:
    """Each attack in a folder of its own."""
    table = Table("attack", "outcome", show_lines=True)
    succeeded = 0
    for name, attack in all_attacks().items():
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"XDG_STATE_HOME": f"{folder}/state"}):
            try:
                outcome = f"stopped: {attack(Path(folder))}"
            except Exception:  # an attack that breaks anything, also itself, has not been stopped in the way it should be
                succeeded += 1
                outcome = f"NOT STOPPED\n{traceback.format_exc(limit=-2)}"
        table.add_row(name, outcome)
    Console(width=150).print(table)
    sys.exit(1 if succeeded else 0)


main()
