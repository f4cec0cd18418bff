"""One way to write a thing down, so that its hash says whether it was changed."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(data: Any) -> bytes:
    """Plain data as JSON with sorted keys, no spaces, floats by their shortest exact digits; NaN and infinities refused."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes) -> str:
    """The digest in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
