"""Settings for the whole suite."""

import os

# One BLAS thread for each test process: vectors are short, and the suite already uses every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Numbers are computed, not remembered; the tests of the cache turn it on.
os.environ["DPMERGE_CACHE"] = "off"
