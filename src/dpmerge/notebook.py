"""How results show in a notebook: tables, pictures, pandas frames where pandas is installed, and progress by tqdm."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from dpmerge.errors import MissingLibrary

if TYPE_CHECKING:
    from pandas import DataFrame

P = ParamSpec("P")
R = TypeVar("R")


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a heading row, if there are columns; a tuple in a cell is a list. Everything is escaped."""
    head = f"<thead>{_row(columns, 'th')}</thead>" if columns else ""
    return f"<table>{head}<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"


def _row(cells: Sequence[object], tag: str) -> str:
    inside = "".join(f"<{tag} style='text-align: left'>{_cell(cell)}</{tag}>" for cell in cells)
    return f"<tr>{inside}</tr>"


def _cell(content: object) -> str:
    if isinstance(content, tuple):
        items = "".join(f"<li>{escape(str(item))}</li>" for item in content)
        return f"<ul>{items}</ul>"
    return "" if content is None else escape(str(content))


def frame(rows: Iterable[Mapping[str, object]]) -> DataFrame:
    """A pandas frame with these rows."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise MissingLibrary("a frame needs pandas: install dpmerge[notebook]") from None
    return DataFrame(list(rows))


class Drawn:
    """A result that is a picture in a notebook. How it is drawn, `_api` says: pictures are made further up the house."""

    _png: ClassVar[Callable[[Any], bytes | None]] = lambda result: None

    def _repr_png_(self) -> bytes | None:
        return type(self)._png(self)


def draw_with(png: Callable[[Any], bytes | None]) -> None:
    """Say how pictures are drawn; None from it: as text instead."""
    Drawn._png = png


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def bar(total: int | None, label: str) -> Any | None:
    """A bar of tqdm in a notebook; None elsewhere, or without tqdm."""
    if not in_notebook() or importlib.util.find_spec("tqdm") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets its bars are of text, and it says so
        from tqdm.auto import tqdm

    steps = {} if total else {"bar_format": "{desc} {elapsed}"}
    return tqdm(total=total, desc=label, leave=False, **steps)


def amounts(label: str) -> Callable[[int, int], None] | None:
    """How much of the work is done: a bar in a notebook."""
    shown = bar(1, label)
    if shown is None:
        return None

    def tell(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)  # shown some ten times a second at most: blocks of tensors come by the thousand
        if done >= total:
            shown.close()

    return tell


def tells(work: Callable[P, R]) -> Callable[P, R]:
    """For a function with an argument `progress`, told the step that work is at: not given, a notebook shows these steps."""

    @wraps(work)
    def told(*given: P.args, **options: P.kwargs) -> R:
        shown = None if "progress" in options else bar(None, "")
        if shown is None:
            return work(*given, **options)

        def tell(label: str) -> None:
            shown.set_description_str(label)
            shown.update()

        try:
            options["progress"] = tell
            return work(*given, **options)
        finally:
            shown.close()

    return told
