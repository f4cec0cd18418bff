"""How results show in a notebook: as an HTML table, and as a pandas frame where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dpmerge.errors import MissingLibrary

if TYPE_CHECKING:
    from pandas import DataFrame


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


def frame(rows: Iterable[dict[str, object]]) -> DataFrame:
    """A pandas frame with these rows."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise MissingLibrary("a frame needs pandas, which is not installed: pip install pandas") from None
    return DataFrame(list(rows))
