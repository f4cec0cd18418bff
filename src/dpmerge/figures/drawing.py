"""From results (or their documents: what a JSON file says) to PNG files, web pages and plotly's data."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpmerge.errors import FigureError
from dpmerge.figures import frontier, heatmap, page, web
from dpmerge.figures.picture import Chart, Picture, fault, plain
from dpmerge.figures.png import png
from dpmerge.files import write_whole
from dpmerge.planning import Edge, Frontier, Heatmap

_LIBRARIES = {".png": "matplotlib", ".html": "plotly"}
_KINDS: dict[str, type[Frontier | Heatmap | Chart]] = {"frontier": Frontier, "heatmap": Heatmap, "lines": Chart}
Result = Frontier | Heatmap | Edge | Picture
Drawable = Result | Mapping[str, Any]


def describe(result: Drawable) -> Picture:
    """The description that is drawn for a result, or for its document: of kind "frontier", "heatmap" or "lines"."""
    kind = result.get("kind") if isinstance(result, Mapping) else type(result).__name__.lower()
    try:
        return _picture(_read(result, kind) if isinstance(result, Mapping) else result)
    except ValidationError as error:
        raise FigureError(f"this picture ({kind}) cannot be drawn: {fault(error)}") from None


def _read(document: Mapping[str, Any], kind: Any) -> Result:
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FigureError(f"cannot draw a document of kind {kind!r}; known are {', '.join(map(repr, _KINDS))}")
    found: Result = TypeAdapter(_KINDS[kind]).validate_python(plain(document))
    return found


def _picture(result: Result) -> Picture:
    if isinstance(result, Frontier):
        return frontier.picture(result)
    if isinstance(result, Heatmap):
        return heatmap.picture(result)
    return heatmap.edge_picture(result) if isinstance(result, Edge) else result


def render(result: Drawable, suffix: str) -> bytes:
    """The file's content; `suffix` is .png or .html."""
    if suffix not in _LIBRARIES:
        raise FigureError(f"no picture format has the suffix {suffix!r}; use {', '.join(_LIBRARIES)}")
    picture = describe(result)
    require_library(suffix)
    return png(picture) if suffix == ".png" else page.page(picture).encode()


def draw(result: Drawable, path: Path) -> None:
    """Draw a result, or its document, into a file; the suffix chooses the format: .png or .html."""
    write_whole(render(result, path.suffix.lower()), path)


def web_figure(result: Drawable) -> dict[str, Any]:
    """What plotly.js draws for it: "data" and "layout" as plain JSON data, for pages that have the script."""
    return web.web_figure(describe(result))


def require_library(suffix: str) -> None:
    """Refuse a format whose library is missing, before long work begins."""
    library = _LIBRARIES[suffix]
    try:
        importlib.import_module(library)
    except ImportError:
        raise FigureError(f"pictures as {suffix} need {library}: install dpmerge[plots]") from None


def require_place(path: Path, suffix: str) -> None:
    """Refuse a place where no such file can be written, before long work begins."""
    if path.suffix.lower() != suffix:
        raise FigureError(f"{path}: the file's name must end in {suffix}")
    if path.is_dir() or not path.parent.is_dir():
        raise FigureError(f"{path}: cannot be written: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FigureError(f"{path}: cannot be written: its folder is read-only")
