"""The score of a merged model: the models are combined into a temporary folder, on which an evaluator is called."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dpmerge.errors import EvaluationError
from dpmerge.tensors.digests import folder_digest
from dpmerge.tensors.merge import merge_models
from dpmerge.user_code import find, running

Evaluator = Callable[[Path], float]


def find_evaluator(name: str) -> Evaluator:
    """An evaluator that an installed package adds (entry points `dpmerge.evaluators`), or `module:function`."""
    return find(name, "evaluators", "the evaluator", EvaluationError)


@dataclass(frozen=True)
class MergedScore:
    """Scores of the combinations of these models; small enough to be sent to other processes and machines."""

    folders: Mapping[str, Path]
    evaluator: str
    fingerprint: str

    @classmethod
    def of(cls, folders: Mapping[str, Path], evaluator: str) -> Self:
        find_evaluator(evaluator)
        digest = hashlib.sha256(evaluator.encode())
        for name, folder in folders.items():
            digest.update(folder_digest(folder, name, without="record.json"))
        return cls({name: folder.resolve() for name, folder in folders.items()}, evaluator, digest.hexdigest())

    def __call__(self, weights: tuple[float, ...]) -> float:
        """The score of the models combined with these weights, in the folders' order; a single model is scored as it is."""
        evaluate = find_evaluator(self.evaluator)
        named = dict(zip(self.folders, weights, strict=True))
        alone = [name for name, weight in named.items() if weight == 1]
        if alone:
            return self._asked(evaluate, self.folders[alone[0]], named)
        with tempfile.TemporaryDirectory(prefix="dpmerge-") as folder:
            merged = Path(folder) / "merged"
            merge_models(self.folders, named, merged, digests=False, threads=1)
            return self._asked(evaluate, merged, named)

    def _asked(self, evaluate: Evaluator, folder: Path, weights: Mapping[str, float]) -> float:
        what = ", ".join(f"{name}={weight:g}" for name, weight in weights.items() if weight > 0)
        with running(f"the evaluator {self.evaluator!r} failed on {what}", EvaluationError):
            score = evaluate(folder)
        if isinstance(score, bool) or (not isinstance(score, int | float) and not hasattr(score, "__float__")):
            raise EvaluationError(f"the evaluator {self.evaluator!r} gave {score!r} for {what}; it must give a number")
        if not math.isfinite(float(score)):
            raise EvaluationError(f"the evaluator {self.evaluator!r} gave {float(score)} for {what}; scores are finite")
        return float(score)
