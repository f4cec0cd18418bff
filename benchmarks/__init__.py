"""Benchmarks, each against its peer in the same run. `make bench` runs them all."""

import os

# As the command line does; neither side multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
