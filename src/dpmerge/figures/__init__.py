"""Pictures of what was computed: pure functions from documents (what a JSON file says) to PNG, SVG and web pages.

The same document always gives the same bytes: no dates, no random identifiers, no settings of the machine's own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dpmerge.errors import FigureError
from dpmerge.figures.report import page as page
from dpmerge.figures.writing import finite_or_null as finite_or_null, write_json as write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LIBRARIES = {".png": "matplotlib", ".svg": "matplotlib", ".html": "plotly"}
_KINDS = ("frontier", "heatmap", "lines")

_SETTINGS: Any = {
    "figure.dpi": 140,
    "savefig.dpi": "figure",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a dollar in a model's name is a dollar
    "svg.fonttype": "none",  # text stays text: names can be searched, read aloud and copied
    "svg.hashsalt": "dpmerge",
    "axes.unicode_minus": True,
}


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw a frontier, a heatmap or lines; the suffix chooses the format: .png, .svg or .html."""
    write_whole(render(document, path.suffix.lower()), path)


def write_whole(content: bytes, path: Path) -> None:
    """The file appears complete or not at all."""
    temporary = path.with_name(f".dpmerge-{secrets.token_hex(6)}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise FigureError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def render(document: Mapping[str, Any], suffix: str) -> bytes:
    """The file's content; `suffix` is .png, .svg or .html."""
    if suffix not in _LIBRARIES:
        raise FigureError(f"no picture format has the suffix {suffix!r}; use {', '.join(_LIBRARIES)}")
    module = _drawing(document)
    library = require_library(suffix)
    if library == "plotly":
        page: Callable[[Mapping[str, Any]], str] = module.page
        return page(document).encode()
    return _image(module.figure, document, suffix)


def web_figure(document: Mapping[str, Any]) -> dict[str, Any]:
    """What plotly.js draws for the document: "data" and "layout" as plain JSON data, for who brings the script himself."""
    made: dict[str, Any] = _drawing(document).web_figure(document)
    return made


def _drawing(document: Mapping[str, Any]) -> ModuleType:
    """The module that draws documents of this kind."""
    kind = document.get("kind")
    if kind not in _KINDS:
        raise FigureError(f"cannot draw a document of kind {kind!r}; known are {', '.join(map(repr, _KINDS))}")
    return importlib.import_module(f"dpmerge.figures.{kind}")


def require_library(suffix: str) -> str:
    """The library that draws this format, loaded; for who wants to know that it is there before the work begins."""
    library = _LIBRARIES[suffix]
    try:
        importlib.import_module(library)
    except ImportError:
        raise FigureError(f"pictures as {suffix} need {library}: install dpmerge[plots]") from None
    return library


def require_place(path: Path, suffix: str) -> None:
    """Refuse a place where no such file can be written; for who wants to know before the work begins."""
    if path.suffix.lower() != suffix:
        raise FigureError(f"{path}: this is written as {suffix}; give it a name that ends so")
    if path.is_dir() or not path.parent.is_dir():
        raise FigureError(f"{path}: cannot be written: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FigureError(f"{path}: cannot be written: its folder is read-only")


def _image(figure: Callable[[Mapping[str, Any]], Figure], document: Mapping[str, Any], suffix: str) -> bytes:
    """Draw with matplotlib's defaults and the settings above, whatever the user's own are, and leave those untouched."""
    import matplotlib

    unsigned = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Names in scripts that the font lacks: boxes in a PNG, right in an SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        buffer = io.BytesIO()
        figure(document).savefig(buffer, format=suffix[1:], metadata=unsigned[suffix])
    return buffer.getvalue()
