"""What a recheck found, and the digest of a file that may not be readable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from dpmerge.notebook import html_table


@dataclass(repr=False)
class Verdict:
    """What was checked and holds, what does not, and what could not be checked; `warnings` are about promises of little."""

    holds: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """0: holds, 1: does not, 2: could not be checked."""
        return 1 if self.broken else 2 if self.unchecked else 0

    @property
    def sentence(self) -> str:
        return ("it holds", "it does NOT hold", "it could not be checked")[self.code]

    def note(self, faults: list[str], holds: str) -> bool:
        """Add the faults, or what holds if there are none."""
        self.broken += faults
        if not faults:
            self.holds.append(holds)
        return not faults

    def digest(self, path: Path) -> str | None:
        """A file's SHA-256, or nothing where it cannot be read, which is noted."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as fault:
            self.unchecked.append(f"{path}: cannot be read: {fault.strerror}")
            return None

    def __repr__(self) -> str:
        return f"<Verdict: {'; '.join([self.sentence, *self.broken, *self.unchecked, *self.warnings])}>"

    def _repr_html_(self) -> str:
        found = {"does NOT hold": self.broken, "not checked": self.unchecked, "beware": self.warnings, "holds": self.holds}
        return html_table([], [(name, tuple(texts)) for name, texts in found.items() if texts])
