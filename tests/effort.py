"""How long the suite's random searches look: `DPMERGE_SEARCH` times as long as usual (`make audit`: 15)."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("DPMERGE_SEARCH", "1"))
