"""A text task whose data come with the dependencies: which package a paragraph of documentation is from.

Paragraphs of the docstrings of installed packages; hashed words and pairs of words as features, which need no vocabulary and
so no look at the data. What is trained on depends on the installed versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpmerge.errors import DataError
from dpmerge_lab.tasks.features import Features

PACKAGES = ("numpy", "scipy", "pandas", "sklearn", "torch")
COLUMNS = 1024
_SHORTEST = 60  # characters
_MOST = 8000  # paragraphs of one package


def docstring_features(bound: float) -> Features:
    """Four fifths to train on, one fifth to test on, by a hash of each paragraph."""
    from sklearn.feature_extraction.text import HashingVectorizer

    texts, labels = _paragraphs()
    rows = HashingVectorizer(n_features=COLUMNS, ngram_range=(1, 2), alternate_sign=True, norm="l2").transform(texts)
    features, known = rows.toarray().astype(np.float32), np.array(labels, dtype=np.int64)
    tested = np.array([hashlib.sha256(text.encode()).digest()[0] < 51 for text in texts])
    parts = (features[~tested], known[~tested], features[tested], known[tested])
    return Features.of(parts, bound, f"docstrings-train-{int((~tested).sum())}")


def _paragraphs() -> tuple[list[str], list[int]]:
    """Each once: what two packages share says nothing of either."""
    owners: dict[str, set[int]] = {}
    for label, package in enumerate(PACKAGES):
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise DataError(f"the text task needs {package}; install it")
        own: dict[str, None] = {}
        for path in sorted(Path(found.origin).parent.rglob("*.py")):
            if "tests" not in path.parts and len(own) < _MOST:
                own.update(dict.fromkeys(_of_file(path)))
        for text in own:
            owners.setdefault(text, set()).add(label)
    told = [(text, min(whose)) for text, whose in owners.items() if len(whose) == 1]
    return [text for text, _ in told], [label for _, label in told]


def _of_file(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                text = " ".join(paragraph.split())
                # The names themselves would be an answer, not a task.
                for package in (*PACKAGES, "np", "pd", "scikit-learn", "pytorch"):
                    text = text.replace(package, "")
                if len(text) >= _SHORTEST:
                    yield text
