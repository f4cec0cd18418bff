"""Files that appear whole, and documents as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmerge.errors import FigureError


def write_whole(content: bytes, path: Path) -> None:
    """The file appears complete or not at all."""
    temporary = path.with_name(f".dpmerge-{secrets.token_hex(6)}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise FigureError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


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
