"""`python -m benchmarks [NAME]`: run everything, or one benchmark; print a table, fail if a promise is broken.

Each benchmark is a process of its own, and none keeps answers on disk: a row never finds what an earlier one computed.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import accounting, crowd, explorer, ledger, merging, training, weights
from benchmarks.report import Claim, machine

ALL = {one.__name__: one for room in (merging, training, weights, accounting, explorer, crowd, ledger) for one in room.ALL}


def main(names: list[str]) -> int:
    if not names:
        print(machine(), flush=True)
        command = [sys.executable, "-m", "benchmarks"]
        environment = {**os.environ, "DPMERGE_CACHE": "off"}
        return max(subprocess.run([*command, name], env=environment, check=False).returncode for name in ALL)
    claims: list[Claim] = []
    for name in names:
        for claim in ALL[name]():
            claims.append(claim)
            print(f"{'ok  ' if claim.holds else 'FAIL'}  {claim.name}: {claim.measured} (promised: {claim.limit})", flush=True)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
