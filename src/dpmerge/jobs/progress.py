"""Progress of long computations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from dpmerge.errors import printable
from dpmerge.notebook import bar

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Called when `total` pieces of work start, after each piece, and when the work ends, also after an error."""

    def start(self, total: int, label: str) -> None: ...

    def advance(self) -> None: ...

    def finish(self) -> None: ...


class Silent:
    def start(self, total: int, label: str) -> None: ...

    def advance(self) -> None: ...

    def finish(self) -> None: ...


class ProgressBar:
    """A bar with percentage, count, elapsed and remaining time, on a terminal's stderr or in a notebook; else nothing.

    `title` names the pieces of work and precedes the label.
    """

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._bar: RichProgress | None = None
        self._cell: Any | None = None  # tqdm's, in a notebook

    def start(self, total: int, label: str) -> None:
        told = printable(" ".join(filter(None, (self._title, label))))
        if not sys.stderr.isatty():
            self.finish()
            self._cell = bar(total, told)
            return
        from rich import progress
        from rich.console import Console

        self.finish()
        counts = (progress.TaskProgressColumn(), progress.MofNCompleteColumn())
        times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn(), *counts, *times)
        # Stdout is for results: by default Rich would redirect it to the bar's console, stderr.
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._bar.add_task(told, total=total)
        self._bar.start()

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif self._cell is not None:
            self._cell.update()

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._cell is not None:
            self._cell.close()
            self._cell = None
