"""Where one run of a portfolio keeps its progress, and how its models appear: whole, and only when it has finished.

OUT/.training/states/NAME.safetensors   what an unfinished run has reached, where its trainer keeps it
OUT/.training/results/NAME/             appears whole when the run has finished: its models, until they are moved to OUT,
                                        and summary.json, which stays and says how they were asked for
OUT/.training/steps/NAME                the number of steps taken, to show progress
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.files import private_folder
from dpmerge.tensors import new_folder, require_absent
from dpmerge.training.saving import Checkpoint

_PATIENCE = 20.0  # seconds for a worker to notice that the process which started it was killed


class RunFolder:
    def __init__(self, out: Path, name: str) -> None:
        self.out, self.name = out, name
        work = out / ".training"
        self.state = work / "states" / f"{name}.safetensors"
        self._result = work / "results" / name
        self._steps = work / "steps" / name
        self._lock = work / "locks" / name

    def finished(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """The summary of the run if it has finished as asked; its models are then where they belong.

        If all its models were removed from the portfolio, it has not. A run asked for differently is refused.
        """
        summary = self._summary()
        if summary is not None:
            for model in summary["models"]:
                if (self._result / model).exists():
                    require_absent(self.out / model)
                    (self._result / model).rename(self.out / model)
            if any((self.out / model).exists() for model in summary["models"]):
                self.require_same(asked, summary["asked"])
                return summary
            shutil.rmtree(self._result)
        return None

    def finish(self, asked: Mapping[str, Any], models: list[tuple[Checkpoint, float]], seconds: float) -> dict[str, Any]:
        """Write the models with their accuracies, the last under the run's name, the others with their step."""
        last = models[-1][0]
        names = {self._model_name(model.step, last.step): (model, accuracy) for model, accuracy in models}
        told = {name: {"steps": model.step, "accuracy": accuracy} for name, (model, accuracy) in names.items()}
        run = last.record.mechanism.run
        summary = {"asked": asked, "run": run, "seconds": round(seconds, 1), "models": told}
        private_folder(self._result.parent)
        with new_folder(self._result, private=True) as folder:
            for name, (model, _) in names.items():
                model.save(folder / name)
            (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        self.state.unlink(missing_ok=True)
        self.tell(last.step)
        finished = self.finished(asked)
        assert finished is not None
        return finished

    def _model_name(self, step: int, last: int) -> str:
        return self.name if step == last else f"{self.name}@{step}"

    def require_room(self, steps: list[int]) -> None:
        """Refuse to begin where models of these names are, and are not this run's."""
        for step in steps:
            target = self.out / self._model_name(step, steps[-1])
            if os.path.lexists(target):
                raise TrainingError(f"{target} exists already and was not made by this run; choose another name or folder")

    def tell(self, step: int) -> None:
        with contextlib.suppress(OSError):  # a run does not fail because its progress cannot be shown
            private_folder(self._steps.parent)
            self._steps.write_text(str(step))

    def told(self) -> int:
        try:
            return int(self._steps.read_text())
        except (OSError, ValueError):
            return 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the run: no other process trains it meanwhile, not even a worker left over from a process that was killed."""
        private_folder(self._lock.parent)
        end = time.monotonic() + _PATIENCE
        with self._lock.open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TrainingError(f"run {self.name!r} in {self.out} is being trained by another process") from None
                    time.sleep(0.2)
                except OSError:  # a file system without such locks
                    break
            yield

    def _summary(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._result / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            raise TrainingError(f"{self._result / 'summary.json'}: cannot be read: {fault}") from None
        return found

    def require_same(self, asked: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Refuse a run that is asked for differently than before."""
        for name in sorted(asked.keys() | before.keys()):
            if asked.get(name) != before.get(name):
                raise TrainingError(
                    f"run {self.name!r} in {self.out} was made with {name} {before.get(name)!r}, but is now asked for with "
                    f"{asked.get(name)!r}; give the run another name, or choose another folder"
                )


def accuracies(out: Path) -> dict[str, float]:
    """The accuracies of all models in the portfolio's folder that were trained there."""
    names = sorted(path.parent.name for path in out.glob(".training/results/*/summary.json"))
    summaries = [RunFolder(out, name)._summary() or {"models": {}} for name in names]
    found = {model: told["accuracy"] for summary in summaries for model, told in summary["models"].items()}
    return {model: accuracy for model, accuracy in found.items() if (out / model).is_dir()}
