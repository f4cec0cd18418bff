"""How far the work is, for whoever waits for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Whoever wants to be told how far the work is."""

    def start(self, total: int, label: str) -> None:
        """The work begins: `total` pieces, and a few words about them."""

    def advance(self) -> None:
        """One more piece is finished."""

    def finish(self) -> None:
        """The work has ended, with or without success."""


class ProgressBar:
    """A bar on stderr with percentage, count, elapsed and remaining time; nothing where stderr is not a terminal.

    `title` says what the pieces are; it stands before the label.
    """

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._bar: RichProgress | None = None

    def start(self, total: int, label: str) -> None:
        """Draw the empty bar."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress as RichProgress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.finish()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        # Stdout belongs to the results: Rich would otherwise send what is printed there to the bar's console, stderr.
        self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._bar.add_task(" ".join(filter(None, (self._title, label))), total=total)
        self._bar.start()

    def advance(self) -> None:
        """Move the bar by one piece."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
