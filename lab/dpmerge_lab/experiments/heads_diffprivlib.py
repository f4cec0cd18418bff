"""Logistic regression of diffprivlib on the features of `heads`, one against the rest, pure ε: a script of its own.

diffprivlib 0.6.6 does not load beside scikit-learn 1.9, so this needs an environment of its own, with scikit-learn 1.5:
`python heads_diffprivlib.py DIR` reads `cifar10-efficientnet-lite0.npz` in DIR and prints the accuracies as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
BOUND = 3.0


def main(folder: Path) -> dict[str, Any]:
    """One fit for each ε."""
    import diffprivlib  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import sklearn  # type: ignore[import-untyped,unused-ignore]
    from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found,import-untyped,unused-ignore]

    warnings.simplefilter("ignore")
    with np.load(folder / "cifar10-efficientnet-lite0.npz", allow_pickle=False) as held:
        train, test = (_rows(held[name].astype(np.float64) - held["centre"]) for name in ("x_train", "x_test"))
        labels, answers = held["y_train"], held["y_test"]
    found: dict[str, Any] = {"diffprivlib": diffprivlib.__version__, "scikit-learn": sklearn.__version__}
    clock = time.perf_counter()
    for epsilon in EPSILONS:
        model = LogisticRegression(epsilon=epsilon, data_norm=BOUND, max_iter=100, fit_intercept=False)
        model.fit(train, labels)
        found[f"{epsilon:g}"] = float(model.score(test, answers))
        print(epsilon, found[f"{epsilon:g}"], round(time.perf_counter() - clock), file=sys.stderr, flush=True)
    return {**found, "seconds": round(time.perf_counter() - clock, 1)}


def _rows(rows: Any) -> Any:
    """Norm 3 with a last 1 for the bias, less what rounding may add."""
    stretched = rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.sqrt(BOUND**2 - 1)
    return np.hstack([stretched, np.ones((len(rows), 1))]) * (1 - 1e-9)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1])), indent=1))
