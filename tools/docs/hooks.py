"""Hooks of mkdocs.yml: pages made from the code, and the files beside docs/ that pages link to (pictures, code)."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import dpmerge

LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(?:#[^)\s]*)?\)")
BESIDE = "repository"


def api() -> str:
    """Everything that `import dpmerge` offers, each by its own docstring. Errors have a page of their own."""
    public = {name: getattr(dpmerge, name) for name in dir(dpmerge) if not name.startswith("_")}
    found = {name: one for name, one in public.items() if not (inspect.isclass(one) and issubclass(one, Exception))}
    parts = [
        "# Python",
        "Everything here is a name of `dpmerge`; nothing needs an import from a room. [Errors](errors.md) are drawn apart.",
    ]
    for title, wanted in (("Functions", inspect.isfunction), ("Classes", inspect.isclass)):
        named = [f"::: {one.__module__}.{one.__qualname__}" for one in found.values() if wanted(one)]
        parts += [f"## {title}", *named]
    return "\n\n".join(parts) + "\n"


def first_lines(root: Path) -> str:
    """What each file of the tool is for, in its own first line, room by room."""
    house = root / "src" / "dpmerge"
    parts = [
        "# Files",
        "What each file of the tool is for, in its own words. [Architecture](architecture.md) walks through them.",
    ]
    for room in [house, *sorted(path.parent for path in house.glob("*/__init__.py"))]:
        parts.append(f"## {room.name}")
        rows = [
            (path.name, (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0])
            for path in sorted(room.glob("*.py"))
        ]
        parts.append(
            "\n".join(["| file | |", "|---|---|", *(f"| `{name}` | {words.replace('|', '&#124;')} |" for name, words in rows)])
        )
    return "\n\n".join(parts) + "\n"


def beside(root: Path, place: str) -> str | None:
    """Where the site keeps a file of the repository; a page of Markdown is kept as text, as its links lead elsewhere."""
    if not (root / place).is_file():
        return None
    return f"{BESIDE}/{place}" + (".txt" if place.endswith(".md") else "")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for _, place in LINK.findall(page.content_string):
            name = beside(root, place)
            if name is not None and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(root / place)))
    files.append(File.generated(config, "api.md", content=api()))
    files.append(File.generated(config, "files.md", content=first_lines(root)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point those links at the copies. One to a folder becomes its words; one to nothing stays, and fails the strict build."""
    root = Path(config.docs_dir).parent

    def moved(found: re.Match[str]) -> str:
        words, place = found.groups()
        if (root / place).is_dir():
            return words
        name = beside(root, place)
        return found[0] if name is None else f"[{words}]({name})"

    return LINK.sub(moved, markdown)
