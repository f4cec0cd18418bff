"""YAML as strict as the other files here: every field once, names are text, and 1e-5 is a number."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from dpmerge.errors import DpmergeError


def read_yaml(path: Path, error: type[DpmergeError]) -> str:
    """The one document of the file as JSON text; a fault is one line that names the file and where it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise error(f"{path}: cannot be read: {fault}") from None
    try:
        document = yaml.load(text, _Loader)
        # Dates and the like become text, which no field accepts for a number.
        return json.dumps(document, default=str)
    except yaml.MarkedYAMLError as fault:
        where = f" (line {fault.problem_mark.line + 1})" if fault.problem_mark else ""
        raise error(f"{path}: not valid YAML: {fault.problem}{where}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as fault:
        raise error(f"{path}: not valid YAML: {fault}") from None


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {key!r} is no text; quote it", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the field {key!r} appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML speaks, takes 1e-5 for text: it wants 1.0e-5. In YAML 1.2 both are numbers.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
