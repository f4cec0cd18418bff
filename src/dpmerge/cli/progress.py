"""One line on a terminal that says what is being done."""

import sys


def show_progress(label: str) -> None:
    """Rewrite the line; nothing where stderr is not a terminal. An empty label clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{label}…" if label else "\r\x1b[K")
        sys.stderr.flush()
