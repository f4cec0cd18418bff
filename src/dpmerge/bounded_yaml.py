"""YAML that others wrote: a few lines of it can stand for any amount of data, by aliases of aliases."""

from __future__ import annotations

from typing import Any

import yaml

MOST_BYTES = 1 << 20  # PyYAML reads some 100 kB a second
MOST_NODES = 100_000  # texts, lists and mappings, every alias counted as what it stands for


class BoundedLoader(yaml.SafeLoader):
    """Plain data of at most so many nodes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before, alias = self._nodes, self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if alias and id(node) not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "an alias stands for what it is in", mark)
        self._nodes += self._sizes[id(node)] if alias else 1
        if self._nodes > MOST_NODES:
            raise yaml.composer.ComposerError(None, None, f"with its aliases it has more than {MOST_NODES:,} values", mark)
        if not alias:
            self._sizes[id(node)] = self._nodes - before
        return node


def parse_yaml(text: str, loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """The one document of a text; every fault is a ValueError that says what is wrong, and in which line."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} characters")
    try:
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as fault:
        where = f" (line {fault.problem_mark.line + 1})" if fault.problem_mark else ""
        raise ValueError(f"{fault.problem}{where}") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as fault:  # of dates, numbers, odd tags
        raise ValueError(" ".join(str(fault).split())) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
