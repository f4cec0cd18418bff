"""What a path holds, as far as names tell: for messages about a path that is not what was asked for."""

from __future__ import annotations

from pathlib import Path

_FILES = {".yaml": "a YAML file", ".yml": "a YAML file", ".json": "a JSON file"}


def looks_like(path: Path) -> str:
    """In words, e.g. "a portfolio"; empty where there is nothing, or nothing that can be read."""
    try:
        if path.is_dir():
            if (path / "certificate.json").exists():
                return "a release"
            if (path / "record.json").exists():
                return "one model"
            return "a portfolio" if any(path.glob("*/record.json")) else "a folder"
        if path.is_file():
            with path.open("rb") as file:
                database = file.read(16) == b"SQLite format 3\0"
            return "a database, as ledgers are" if database else _FILES.get(path.suffix.lower(), "a file")
    except OSError:
        pass
    return ""
