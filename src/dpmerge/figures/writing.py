"""A document as the JSON file it is read back from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finite_or_null(value: Any) -> Any:
    """Plain data with null for what is not finite: strict JSON has no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item) for item in value]
    return value


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """The document, infinities as null; the file appears whole."""
    temporary = path.with_suffix(".json.tmp")
    text = json.dumps(finite_or_null(document), indent=1, ensure_ascii=False, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)
