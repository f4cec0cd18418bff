"""`log_privacy`: what a training costs so far, a guarantee, or a release, in a run of MLflow or Weights & Biases.

Only what is public goes along: the guarantee with all that it assumes, the certificate and the card. A record stays here: it
holds fingerprints of the noise, by which a seed could be searched for (docs/records.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge.errors import CertificateError, TargetError, TrainingError
from dpmerge.release import CARD, NAME, Certificate, Released
from dpmerge.rules import Guarantee, Standing
from dpmerge.training.so_far import guarantee_so_far

if TYPE_CHECKING:
    from dpmerge.training.recorder import Recorder


@dataclass
class _Privacy:
    """What is logged: numbers, words, files by name, and after how many steps it holds, if it is a point of a curve."""

    numbers: dict[str, float]
    words: dict[str, str]
    files: dict[str, str]
    steps: int | None = None


def log_privacy(what: Recorder | Guarantee | Released | str | Path, *, to: Any, delta: float | None = None) -> None:
    """Log to a run of MLflow (what `mlflow.start_run` returns) or Weights & Biases (what `wandb.init` returns).

    Of a recorder: ε at `delta` after the steps so far; called again and again, a curve. Of a guarantee: ε and δ as numbers;
    theorem, adjacency and standing as tags; what it assumes as a file. Of a release, or its folder: the same, with the
    certificate, the card and the ledger's total. Everything is named `privacy/…`. An infinite ε is left out of the numbers.
    """
    tracker = _TRACKERS.get(type(to).__module__.partition(".")[0])
    if tracker is None:
        raise TrainingError(
            f"to: privacy is logged to a run of MLflow or Weights & Biases, not to a {type(to).__name__}; pass what "
            "mlflow.start_run or wandb.init returned"
        )
    tracker(to, _privacy(what, delta))


def _privacy(what: Recorder | Guarantee | Released | str | Path, delta: float | None) -> _Privacy:
    if isinstance(what, str | Path):
        return _of_release(Path(what))
    if isinstance(what, Released):
        return _of_release(what.folder)
    if isinstance(what, Guarantee):
        return _of_guarantee(what)
    if not hasattr(what, "steps"):
        raise TrainingError(
            f"privacy cannot be logged of a {type(what).__name__}; pass a recorder, a guarantee, a release or its folder"
        )
    if delta is None:
        raise TargetError("delta is missing: what a training costs so far is asked at some δ")
    said = _of_guarantee(guarantee_so_far(what, delta))
    said.numbers["steps"], said.steps = what.steps, what.steps
    return said


def _of_guarantee(guarantee: Guarantee) -> _Privacy:
    text = "\n".join([guarantee.claim, "It assumes:", *(f"- {one}" for one in guarantee.assumptions), *guarantee.notes, ""])
    words = _words(guarantee.theorem, guarantee.standing, guarantee.adjacency)
    return _Privacy(_pair(guarantee.epsilon, guarantee.delta), words, {"guarantee.txt": text})


def _of_release(folder: Path) -> _Privacy:
    """What the certificate says. A release that depends on earlier ones has no guarantee of its own: the ledger's counts."""
    files = {name: _text(folder / name) for name in (NAME, CARD)}
    certificate = Certificate.parse(files[NAME].encode(), str(folder / NAME))
    own, ledger = certificate.guarantee, certificate.ledger
    words = {**_words(own.theorem, own.standing, certificate.adjacency), "certificate": certificate.sha256}
    numbers = {} if certificate.dependent else _pair(own.epsilon, own.delta)
    if ledger is not None:
        numbers |= {f"ledger_{name}": value for name, value in _pair(ledger.epsilon, ledger.delta).items()}
    if certificate.dependent:
        words |= {"dependent": "yes", "theorem": "none of its own" if ledger is None else ledger.theorem or "several-releases"}
    return _Privacy(numbers, words, files)


def _words(theorem: str, standing: Standing, adjacency: str) -> dict[str, str]:
    return {"theorem": theorem, "standing": standing, "adjacency": adjacency}


def _pair(epsilon: float, delta: float) -> dict[str, float]:
    return {name: value for name, value in (("epsilon", epsilon), ("delta", delta)) if math.isfinite(value)}


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()  # as it is: the certificate has its digest
    except (OSError, UnicodeDecodeError) as fault:
        raise CertificateError(f"{path}: cannot be read: {fault}; name the folder of a release") from None


def _to_mlflow(run: Any, said: _Privacy) -> None:
    from mlflow import MlflowClient

    client, identity = MlflowClient(), run.info.run_id
    for name, value in said.numbers.items():
        client.log_metric(identity, f"privacy/{name}", value, step=said.steps)
    for name, word in said.words.items():
        client.set_tag(identity, f"privacy/{name}", word)
    for name, text in said.files.items():
        client.log_text(identity, text, f"privacy/{name}")


def _to_wandb(run: Any, said: _Privacy) -> None:
    from wandb import Artifact

    if said.steps is None:
        run.summary.update(_named({**said.numbers, **said.words}))
    else:  # with an axis of its own: the tracker's counts calls
        run.define_metric("privacy/*", step_metric="privacy/steps")
        run.log(_named(said.numbers))
        run.summary.update(_named(said.words))
    artifact = Artifact(f"privacy-{run.id}", type="privacy")
    for name, text in said.files.items():
        with artifact.new_file(name, "w", encoding="utf-8") as file:
            file.write(text)
    run.log_artifact(artifact)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"privacy/{name}": value for name, value in values.items()}


_TRACKERS: dict[str, Callable[[Any, _Privacy], None]] = {"mlflow": _to_mlflow, "wandb": _to_wandb}
