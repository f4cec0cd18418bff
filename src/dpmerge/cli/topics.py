"""`dpmerge help`: the documentation that is installed with the package, by topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import dpmerge
from dpmerge.cli.commands import JsonOption, argument
from dpmerge.cli.output import echo_lines, print_json, table
from dpmerge.errors import DpmergeError
from dpmerge.records import meant

# In a wheel; in a checkout the pages are where they are written.
_INSTALLED = Path(dpmerge.__file__).parent / "help"
_WRITTEN = Path(dpmerge.__file__).parents[2] / "docs"
TOPICS = {
    "knob": "tutorials/knob.md",
    **{
        name: f"{name}.md"
        for name in (
            *("install", "records", "training", "frontier", "release", "checkpoints", "ftrl"),
            *("explorer", "report", "theory", "soundness"),
        )
    },
}


def page(topic: str) -> str:
    """The text of a topic."""
    if topic not in TOPICS:
        raise DpmergeError(f"no topic is named {topic!r}; there are {', '.join(TOPICS)}{meant(topic, TOPICS)}")
    installed = _INSTALLED / f"{topic}.md"
    path = installed if installed.exists() else _WRITTEN / TOPICS[topic]
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        raise DpmergeError(f"the page {topic!r} is missing from this installation; install dpmerge again") from None


def help(
    topic: Annotated[str | None, argument("One of the topics; without it, they are listed.")] = None,
    json: JsonOption = False,
) -> None:
    """The documentation, by topic.

    For one command: dpmerge COMMAND --help.
    """
    if topic is not None:
        text = page(topic)
        if json:
            print_json({"topic": topic, "text": text})
        else:
            echo_lines(text)
        return
    titles = {name: page(name).partition("\n")[0].lstrip("# ") for name in TOPICS}
    if json:
        print_json(titles)
    else:
        table("dpmerge help TOPIC", ["topic", "page"], [[name, title] for name, title in titles.items()])
