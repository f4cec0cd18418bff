"""Guarantees, certificates and what a training costs so far, read back from MLflow and Weights & Biases."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from dpmerge import Guarantee, Ledger, Portfolio
from dpmerge.errors import CertificateError, TargetError, TrainingError
from dpmerge.training import guarantee_so_far, log_privacy
from tests.release_builders import DELTA, WEIGHTS, runs

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")

# MLflow's own, with SQLAlchemy 2.1; and a folder that Weights & Biases leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]
_BLOCK, _HEAD = 32768, 7


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """MLflow's, which takes seconds to make."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("private", artifact_location=f"{folder}/artifacts")
    yield folder / "mlflow.db"
    mlflow.set_tracking_uri(None)


@pytest.fixture
def run(database: Path) -> Iterator[Any]:
    """A run of MLflow."""
    place = mlflow.MlflowClient().get_experiment_by_name("private")
    with mlflow.start_run(experiment_id=place.experiment_id) as made:
        yield made


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run of Weights & Biases that is written to the disk only."""
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with wandb.init(mode="offline", dir=tmp_path, project="private", settings=wandb.Settings(silent=True)) as made:
        yield made


def read(run: Any) -> tuple[dict[str, float], dict[str, str], Path]:
    """Numbers, words and the folder of the files that MLflow has of a run."""
    found = mlflow.MlflowClient().get_run(run.info.run_id)
    short = {name.removeprefix("privacy/"): value for name, value in {**found.data.metrics, **found.data.tags}.items()}
    numbers = {name: value for name, value in short.items() if isinstance(value, float)}
    words = {name: value for name, value in short.items() if isinstance(value, str)}
    return numbers, words, Path(found.info.artifact_uri) / "privacy"


def written(run: Any) -> list[Any]:
    """What Weights & Biases has written of a run. Another process writes it: its end may come a moment after `finish`."""
    run.finish()
    (path,) = Path(run.settings.sync_dir).glob("run-*.wandb")
    for _ in range(100):
        found = messages(path.read_bytes())
        if any(one.HasField("exit") for one in found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def messages(content: bytes) -> list[Any]:
    """Records in the log format of LevelDB."""
    made: Any = import_module("wandb.proto.wandb_internal_pb2")
    at, part, found = _HEAD, b"", []
    while at + _HEAD <= len(content):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + _HEAD])
        part += content[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if at > len(content):  # not yet written to its end
            break
        if kind in (1, 4):  # whole, or the last piece
            one = made.Record()
            one.ParseFromString(part)
            found.append(one)
            part = b""
    return found


def summary(records: list[Any]) -> dict[str, str]:
    """The last value of everything in the summary, as JSON."""
    return {"/".join(item.nested_key) or item.key: item.value_json for one in records for item in one.summary.update}


def guarantee(portfolio: Portfolio, rule: Any = "combination") -> Guarantee:
    return getattr(dpmerge, rule)(portfolio, WEIGHTS).guarantee(delta=DELTA)  # type: ignore[no-any-return]


def secrets(portfolio: Portfolio) -> list[str]:
    """What a record says of its noise."""
    return [f"{kind}-{name}" for name in portfolio.names for kind in ("noise", "sampler")]


def test_a_guarantee_in_mlflow(tmp_path: Path, run: Any) -> None:
    found = guarantee(runs(tmp_path))
    log_privacy(found, to=run)
    numbers, words, files = read(run)
    assert numbers == {"epsilon": found.epsilon, "delta": DELTA}
    assert [words[name] for name in ("theorem", "standing", "adjacency")] == [found.theorem, "proved", "add-remove"]
    text = (files / "guarantee.txt").read_text()
    assert found.claim in text and all(one in text for one in found.assumptions)


def counted(portfolio: Portfolio, folder: Path, **more: Any) -> dpmerge.Released:
    """A joint release that the ledger in this folder counts."""
    how: dict[str, Any] = {"rule": "joint", "delta": DELTA, "provenance": "a-priori", **more}
    return dpmerge.merge(portfolio, WEIGHTS, out=folder / "out", ledger=folder / "ledger.db", **how)


def test_a_release_in_mlflow_is_its_certificate_and_nothing_private(tmp_path: Path, database: Path, run: Any) -> None:
    portfolio = runs(tmp_path)
    Ledger.create(tmp_path / "ledger.db", dataset="test-data", adjacency="add-remove", epsilon=50.0, delta=DELTA)
    made = counted(portfolio, tmp_path)
    log_privacy(made, to=run)
    numbers, words, files = read(run)
    entered = made.certificate.ledger
    assert entered is not None and words["certificate"] == made.certificate.sha256
    assert numbers["epsilon"] == made.guarantee.epsilon and numbers["ledger_epsilon"] == entered.epsilon
    assert sorted(one.name for one in files.iterdir()) == ["README.md", "certificate.json"]
    for name in ("README.md", "certificate.json"):
        assert (files / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    everything = b"".join(one.read_bytes() for one in [*files.iterdir(), database])
    assert not [text for text in secrets(portfolio) if text.encode() in everything]


def test_a_dependent_release_has_no_epsilon_of_its_own(tmp_path: Path, run: Any) -> None:
    portfolio = runs(tmp_path)
    Ledger.create(
        tmp_path / "ledger.db", dataset="test-data", adjacency="add-remove", epsilon=50.0, delta=DELTA, declared=[portfolio]
    )
    made = counted(portfolio, tmp_path, dependent=True)
    log_privacy(made.folder, to=run)
    numbers, words, _ = read(run)
    assert made.certificate.ledger is not None
    assert numbers == {"ledger_epsilon": made.certificate.ledger.epsilon, "ledger_delta": DELTA}
    assert words["dependent"] == "yes" and words["theorem"] == "several-releases"


def test_a_release_in_weights_and_biases(tmp_path: Path, offline: Any) -> None:
    portfolio = runs(tmp_path)
    made = dpmerge.merge(portfolio, WEIGHTS, out=tmp_path / "out", rule="joint", delta=DELTA, provenance="a-priori")
    log_privacy(made, to=offline)
    records = written(offline)
    said = summary(records)
    assert float(said["privacy/epsilon"]) == made.guarantee.epsilon and said["privacy/theorem"] == '"joint-release"'
    (artifact,) = [one.request.log_artifact.artifact for one in records if one.request.HasField("log_artifact")] or [
        one.artifact for one in records if one.HasField("artifact")
    ]
    assert [entry.path for entry in artifact.manifest.contents] == ["README.md", "certificate.json"]
    for entry in artifact.manifest.contents:
        assert Path(entry.local_path).read_bytes() == (tmp_path / "out" / entry.path).read_bytes()
    everything = b"".join(one.SerializeToString() for one in records)
    assert b"certificate.json" in everything and not [text for text in secrets(portfolio) if text.encode() in everything]


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning", "ignore:Full backward hook:UserWarning")
def test_epsilon_so_far_is_a_curve_over_steps(run: Any, offline: Any) -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge.training import record
    from tests.opacus_builders import as_a_new_process, private

    as_a_new_process()
    training = private(sigma=2.0)
    recorder = record(*training.parts, dataset="test-data")
    epsilons = []
    for _ in range(2):
        training.train()
        for to in (run, offline):
            log_privacy(recorder, to=to, delta=DELTA)
        epsilons.append(guarantee_so_far(recorder, DELTA).epsilon)
    assert epsilons[0] < epsilons[1]
    curve = mlflow.MlflowClient().get_metric_history(run.info.run_id, "privacy/epsilon")
    assert [(one.step, one.value) for one in curve] == [(12, epsilons[0]), (24, epsilons[1])]
    rows = [{"/".join(item.nested_key): item.value_json for item in one.history.item} for one in written(offline)]
    rows = [row for row in rows if "privacy/epsilon" in row]
    assert [(row["privacy/steps"], float(row["privacy/epsilon"])) for row in rows] == [("12", epsilons[0]), ("24", epsilons[1])]
    with pytest.raises(TargetError, match="delta is missing"):
        log_privacy(recorder, to=run)


def test_what_cannot_be_logged_is_refused(tmp_path: Path, run: Any) -> None:
    found = guarantee(runs(tmp_path))
    with pytest.raises(TrainingError, match="not to a dict"):
        log_privacy(found, to={})
    with pytest.raises(TrainingError, match="cannot be logged of a dict; pass a recorder"):
        log_privacy({}, to=run)  # type: ignore[arg-type]
    with pytest.raises(CertificateError, match="name the folder of a release"):
        log_privacy(tmp_path / "runs" / "a", to=run)
    log_privacy(Guarantee.from_dict({**found.as_dict(), "epsilon": float("inf")}), to=run)
    assert read(run)[0] == {"delta": DELTA}
