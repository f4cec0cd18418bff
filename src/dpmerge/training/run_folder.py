"""Where one run of a portfolio leaves what it has so far, and how its models appear: whole, and only when it has finished.

OUT/.training/states/NAME.safetensors   what an unfinished network has reached
OUT/.training/results/NAME/             appears whole when the run has finished: its models, until they are moved to OUT,
                                        and summary.json, which stays and says how they were asked for
OUT/.training/steps/NAME                the number of steps taken, for whoever waits
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator, Record
from dpmerge.tensors import new_folder, require_absent
from dpmerge.training.saving import save_model

Tensors = Mapping[str, npt.NDArray[Any]]
_PATIENCE = 20.0  # seconds for a worker to notice that whoever started it has been killed


@dataclass(frozen=True)
class Model:
    """One model of a finished run."""

    step: int
    tensors: Tensors
    record: Record
    accuracy: float


@dataclass(frozen=True)
class State:
    """What an unfinished run has reached: its parameters, the checkpoints kept, and which randomness went into them."""

    asked: Mapping[str, Any]
    data: str  # their digest
    run: str
    step: int
    noise: list[str]
    sampler: list[str]
    parameters: Tensors
    kept: dict[int, Tensors]
    generators: list[NoiseGenerator] = field(default_factory=list)  # of the noise, as many as its fingerprints if known


class RunFolder:
    """The places of one run in the portfolio's folder."""

    def __init__(self, out: Path, name: str) -> None:
        self.out, self.name = out, name
        work = out / ".training"
        self._state = work / "states" / f"{name}.safetensors"
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
                self._require_same(asked, summary["asked"])
                return summary
            shutil.rmtree(self._result)
        return None

    def finish(self, asked: Mapping[str, Any], models: list[Model], seconds: float) -> dict[str, Any]:
        """Write the models, the last under the run's name, the others with their step; then let them appear."""
        names = {self.model_name(model.step, models[-1].step): model for model in models}
        told = {name: {"steps": model.step, "accuracy": model.accuracy} for name, model in names.items()}
        run = models[-1].record.mechanism.run
        summary = {"asked": asked, "run": run, "seconds": round(seconds, 1), "models": told}
        self._result.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(self._result) as folder:
            for name, model in names.items():
                save_model(folder / name, model.tensors, model.record)
            (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        self._state.unlink(missing_ok=True)
        self.tell(models[-1].step)
        finished = self.finished(asked)
        assert finished is not None
        return finished

    def model_name(self, step: int, last: int) -> str:
        """A checkpoint's folder is named after the run and its step."""
        return self.name if step == last else f"{self.name}@{step}"

    def require_room(self, steps: list[int]) -> None:
        """Refuse to begin where models of these names are, and are not this run's."""
        for step in steps:
            target = self.out / self.model_name(step, steps[-1])
            if os.path.lexists(target):
                raise TrainingError(f"{target} exists already and was not made by this run; choose another name or --out")

    def save(self, state: State) -> None:
        """Keep what the run has reached; whatever happens, the last whole state is there."""
        from safetensors.numpy import save_file

        tensors = {f"now/{name}": tensor for name, tensor in state.parameters.items()}
        for step, kept in state.kept.items():
            tensors |= {f"{step}/{name}": tensor for name, tensor in kept.items()}
        facts = {key: value for key, value in vars(state).items() if key not in ("parameters", "kept")}
        self._state.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._state.with_suffix(".tmp")
        save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, temporary, {"facts": json.dumps(facts)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self._state)

    def saved(self, asked: Mapping[str, Any], data: str) -> State | None:
        """What the run had reached; refused if it was asked for differently, or its data are no longer the same."""
        from safetensors import SafetensorError, safe_open

        if not self._state.exists():
            return None
        groups: dict[str, dict[str, Any]] = {"now": {}}
        try:
            with safe_open(self._state, "numpy") as file:
                facts = json.loads(file.metadata()["facts"])
                for key in file.keys():  # noqa: SIM118 (this is no dictionary)
                    group, _, name = key.partition("/")
                    groups.setdefault(group, {})[name] = file.get_tensor(key)
            now = groups.pop("now")
            state = State(**facts, parameters=now, kept={step: groups[str(step)] for step in sorted(map(int, groups))})
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as fault:
            raise TrainingError(f"{self._state}: cannot be read ({fault}); remove it to begin run {self.name!r} anew") from None
        self._require_same(asked, state.asked)
        if state.data != data:
            raise TrainingError(f"run {self.name!r} was begun on other data; remove {self._state} to begin it anew")
        return state

    def tell(self, step: int) -> None:
        """Say how far the run is."""
        with contextlib.suppress(OSError):  # a run does not fail for want of an audience
            self._steps.parent.mkdir(parents=True, exist_ok=True)
            self._steps.write_text(str(step))

    def told(self) -> int:
        """How far the run is."""
        try:
            return int(self._steps.read_text())
        except (OSError, ValueError):
            return 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else trains this run meanwhile, not even a worker left over from a process that was killed."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
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

    def _require_same(self, asked: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        for name in sorted(asked.keys() | before.keys()):
            if asked.get(name) != before.get(name):
                raise TrainingError(
                    f"run {self.name!r} in {self.out} was made with {name} {before.get(name)!r}, but is now asked for with "
                    f"{asked.get(name)!r}; give the run another name, or choose another --out"
                )


def accuracies(out: Path) -> dict[str, float]:
    """Of all models in the portfolio's folder that were trained there."""
    names = sorted(path.parent.name for path in out.glob(".training/results/*/summary.json"))
    summaries = [RunFolder(out, name)._summary() or {"models": {}} for name in names]
    found = {model: told["accuracy"] for summary in summaries for model, told in summary["models"].items()}
    return {model: accuracy for model, accuracy in found.items() if (out / model).is_dir()}
