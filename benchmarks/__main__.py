"""`python -m benchmarks`: run everything, print a table, fail if a promise is broken."""

from __future__ import annotations

import sys

from benchmarks import accounting, explorer, merging, training, weights
from benchmarks.report import Claim, machine


def main() -> None:
    print(machine(), flush=True)
    claims: list[Claim] = []
    for benchmark in (*merging.ALL, *training.ALL, *weights.ALL, *accounting.ALL, *explorer.ALL):
        for claim in benchmark():
            claims.append(claim)
            print(f"{'ok  ' if claim.holds else 'FAIL'}  {claim.name}: {claim.measured} (promised: {claim.limit})", flush=True)
    sys.exit(0 if all(claim.holds for claim in claims) else 1)


main()
