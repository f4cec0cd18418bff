"""The experiments with networks, quickly on the digits: settings, runs, merges, and what is accounted for."""

from __future__ import annotations

import importlib
import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError, TrainingError
from dpmerge.figures import render
from dpmerge.profiles import gaussian_epsilon, run_profile
from dpmerge.records import Record
from dpmerge_lab.experiments import cifar10, cifar10_from_scratch, cifar10_settings
from dpmerge_lab.experiments.cifar10_from_scratch import EVEN_DRAW
from dpmerge_lab.experiments.cifar10_starts import BEST_AVERAGE, FROM_AVERAGE, PRIVATE_STEPS, TUNED
from dpmerge_lab.experiments.portfolio_pictures import AVERAGE
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation
from dpmerge_lab.tasks.images import digits_as_images
from tests.builders import dp_sgd

KEPT = Path(__file__).parent.parent / "results" / "cifar10"
SMALL = KEPT.with_name("cifar10-small")


def test_the_noise_is_the_least_below_the_bounds() -> None:
    steps = cifar10_settings.Size().epochs * math.ceil(50_000 / 256)

    def epsilon(sigma: float) -> float:
        model = dp_sgd("m", steps=steps, sampling=256 / 50_000, sigma=sigma)
        return run_profile(model).profile.epsilon_by_renyi(1e-5, "paper")

    for bound, sigma in cifar10_settings.NOISE_FOR_EPSILON.items():
        assert epsilon(sigma) < bound < epsilon(sigma - 0.001)


def test_grids_hold_the_models_alone() -> None:
    assert len(cifar10_settings.grid(3, 0.1)) == 66
    for models in (3, 4):
        rows = cifar10_settings.grid(models, 0.1)
        assert all(sum(row) == pytest.approx(1, abs=1e-12) for row in rows)
        assert all([float(k == i) for k in range(models)] in rows for i in range(models))


def test_names_bring_along_what_they_need_in_its_order() -> None:
    settings = cifar10_settings.wanted("settings")
    assert len(settings) == 18 and all(cifar10_settings.RUNS[name].pretrained is None for name in settings)
    assert cifar10_settings.wanted("scratch-b,settings") == [*settings, "scratch-b"]
    assert cifar10_settings.wanted("full-batch")[0] == "pretraining-views"


@pytest.mark.parametrize("folder", [KEPT, SMALL, SMALL.with_name("cifar10-pretrained-small")], ids=lambda folder: folder.name)
def test_what_was_run_is_what_was_asked_for(folder: Path) -> None:
    """And every run has randomness of its own."""
    if folder == KEPT:
        names = {path.stem for path in (KEPT / "1").glob("*.json")}
        for group in ("scratch-a", "scratch-b", "checkpoints", "pretrained"):
            assert names.issuperset(cifar10_settings.wanted(group))
    own = []
    for path in folder.glob("*/*.json"):
        name = path.stem
        if name not in cifar10_settings.RUNS:
            continue
        setting = cifar10_settings.RUNS[name]
        held = json.loads(path.read_text())
        record = Record.parse(json.dumps(held["checkpoints"][-1]["record"]))
        assert record.mechanism.kind == "dp-sgd"
        assert record.mechanism.noise_multiplier == setting.noise_multiplier
        assert record.mechanism.clip == setting.clip
        assert record.mechanism.phases[0].learning_rate == setting.learning_rate
        assert held["software"]["device"].startswith("NVIDIA") == (folder == KEPT)
        own.append((record.mechanism.run, record.mechanism.noise_fingerprint, record.mechanism.sampler_fingerprint))
    runs, noise, coins = (set(column) for column in zip(*own, strict=True))
    assert len(runs) == len(noise) == len(own)
    assert len(coins - {None}) == sum(coin is not None for _, _, coin in own)  # full batches are not drawn


def test_the_quick_experiment_trains_merges_and_accounts(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    options = Options(quick=True, jobs=1, seeds=1, folder=tmp_path)
    result = cifar10.cifar10_checkpoints(options)
    run = json.loads((tmp_path / "1" / "eps10-lr0.04-c1.json").read_text())
    records = [Record.parse(json.dumps(point["record"])) for point in run["checkpoints"]]
    assert [record.mechanism.steps for record in records] == [20, 30, 40]  # type: ignore[union-attr]
    found = result.numbers["checkpoints"]
    assert found["alone"]["eps10-lr0.04-c1 after 16"]["test accuracy"]["mean"] == run["checkpoints"][1]["accuracy"]
    for row in found["averages"]:
        assert row["random selection"] <= row["joint release"] * (1 + 1e-6)
        assert row["linear combination, proved"] <= row["joint release"] * (1 + 1e-6)
    again = cifar10.cifar10_checkpoints(options)  # nothing left to train
    assert again.numbers == result.numbers


def test_what_private_steps_make_of_public_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences are taken within repetitions."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments import cifar10_training

    monkeypatch.setattr(
        cifar10_training,
        "grid",
        lambda models, step: [*np.eye(models).tolist(), [1 / models] * models, [0.5, 0.5] + [0.0] * (models - 2)],
    )
    result = cifar10.cifar10_pretrained_small(Options(quick=True, jobs=1, seeds=2, folder=tmp_path))
    assert set(result.numbers) >= {*TUNED, PRIVATE_STEPS, FROM_AVERAGE, BEST_AVERAGE}
    held = [{path.stem: json.loads(path.read_text()) for path in (tmp_path / one).glob("*.json")} for one in "12"]

    def gained(last: str, first: str) -> list[float]:
        return [one[last]["checkpoints"][-1]["accuracy"] - one[first]["checkpoints"][-1]["accuracy"] for one in held]

    name, other = "pretrained-views-ema-lr0.01-s0.4", "pretrained-views-lr0.01-s0.4"
    assert result.numbers[FROM_AVERAGE][name] == mean_and_deviation(gained(name, other))
    public = [one["pretraining-views-ema"]["history"][-1] for one in held]
    averages = [one["moving average"]["accuracy"] for one in public]
    assert result.numbers["public networks"]["pretraining-views-ema"] == mean_and_deviation(averages)
    private = [one[name]["checkpoints"][-1]["accuracy"] for one in held]
    assert result.numbers[PRIVATE_STEPS][name] == mean_and_deviation(np.subtract(private, averages))
    lasts = [one["accuracy"] - two["accuracy"] for one, two in zip([o["moving average"] for o in public], public, strict=True)]
    assert result.numbers[FROM_AVERAGE]["pretraining-views-ema"] == mean_and_deviation(lasts)
    for group in TUNED:
        best, of = result.numbers[BEST_AVERAGE][group], result.numbers[group]
        assert best["averages"] == len(of["averages"]) == 2
        top = max(row["test accuracy"] for row in of["averages"])
        assert best["mean"] == pytest.approx(top - max(one["test accuracy"]["mean"] for one in of["alone"].values()))
        assert result.pictures[group]["warning"].startswith("weights in this picture are chosen by test accuracy")
    picture = result.pictures["starts"]
    assert picture["title"] == "Private networks of 5,226 parameters from public ones on digits"
    assert picture["subtitle"] == "mean of 2 repetitions"
    # One repetition lacks the group that later ones have.
    (tmp_path / "1" / "full-batch-ema.json").unlink()
    again = cifar10.cifar10_pretrained_small(Options(quick=True, jobs=1, seeds=2, folder=tmp_path))
    shorter, longer = "full-batch-ema-lr0.1-s10.0", "full-batch-lr0.1-s10.0"
    held = held[1:]
    assert again.numbers[FROM_AVERAGE][shorter] == mean_and_deviation(gained(shorter, longer))
    assert again.numbers[PRIVATE_STEPS][longer] == result.numbers[PRIVATE_STEPS][longer]
    assert again.numbers["public networks"] == result.numbers["public networks"]
    assert again.pictures["starts"]["subtitle"] == "mean of 1 or 2 repetitions"
    assert render(picture, ".png").startswith(b"\x89PNG")


def test_full_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step sees all examples, and neighbours differ in one of them: the sum of clipped gradients moves by 2C."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments import cifar10_training

    monkeypatch.setattr(cifar10_training, "grid", lambda models, step: [*np.eye(3).tolist(), [0.2, 0.3, 0.5]])
    pieces = cifar10_settings.wanted("full-batch")
    cifar10_training.make(pieces, None, "cpu", cifar10_settings.QUICK, tmp_path / "1")
    for name in cifar10_settings.MERGES["full-batch"]:
        record = Record.parse(
            json.dumps(json.loads((tmp_path / "1" / f"{name}.json").read_text())["checkpoints"][-1]["record"])
        )
        assert record.mechanism.sampling.scheme == "full-batch"  # type: ignore[union-attr]
        assert record.mechanism.expected_batch == 200  # type: ignore[union-attr]
    result = Result("full-batch", {})
    held = {piece: json.loads((tmp_path / "1" / f"{piece}.json").read_text()) for piece in pieces}
    cifar10._account("full-batch", [held], Options(jobs=1), result)
    for name, found in result.numbers["full-batch"]["alone"].items():
        run = cifar10_settings.RUNS[name]
        mu = 2 * math.sqrt(run.full_batches) / run.noise_multiplier
        assert found["epsilon by PLD"] == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-4)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """What is kept of the small networks, but two repetitions lack something: a run from another start; and all but a merge."""
    for repetition in "123":
        shutil.copytree(SMALL / repetition, tmp_path / repetition)
    (tmp_path / "2" / f"{cifar10_settings.MERGES['apart'][1]}.json").unlink()
    (tmp_path / "3-of-before").mkdir()
    shutil.copy(SMALL / "3" / "scratch-b.json", tmp_path / "3-of-before")
    numbers: dict[str, Any] = json.loads((SMALL / "cifar10-small.json").read_text())["numbers"]
    return tmp_path, numbers


def test_pictures_are_of_whole_repetitions_and_say_how_many(small: tuple[Path, dict[str, Any]]) -> None:
    found = cifar10.small_pictures(*small)
    assert found["weights"]["subtitle"] == "mean of 3 and 2 repetitions", "one number for each panel"
    assert [found[group]["subtitle"].split(";")[0] for group in ("scratch-b", "apart")] == [
        "mean of 3 repetitions",
        "mean of 2 repetitions",
    ]
    names = list(small[1]["apart"]["alone"])
    first, third = (
        {tuple(point["weights"]): point["accuracy"] for point in json.loads((SMALL / one / "apart.json").read_text())["points"]}
        for one in "13"
    )
    for row in cifar10.repeated(small[0], "apart", names):
        point = tuple(row["weights"].values())
        assert row[AVERAGE]["mean"] == pytest.approx((first[point] + third[point]) / 2)


def test_titles_say_what_was_run(small: tuple[Path, dict[str, Any]]) -> None:
    folder, numbers = small
    for path in folder.glob("*/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "size": asdict(cifar10_settings.QUICK)}))
    titles = [document["title"] for document in cifar10.small_pictures(folder, numbers).values()]
    assert titles[0] == "Private networks of 5,226 parameters from scratch on digits, one by one"
    assert titles[1] == "Checkpoints of one run: private networks of 5,226 parameters from scratch on digits"
    assert all(title.startswith("digits, a CNN of 5,226 parameters: averages") for title in titles[2:])
    kept = json.loads((KEPT / "cifar10.json").read_text())["numbers"]
    whole = cifar10.pictures_of_settings(KEPT, kept)
    assert whole["settings"]["title"] == "Private ResNet-18s from scratch on CIFAR-10, one by one"
    assert whole["checkpoints"]["title"] == "Checkpoints of one run: private ResNet-18s from scratch on CIFAR-10"


def test_draws_over_checkpoints_are_those_of_each_run(small: tuple[Path, dict[str, Any]]) -> None:
    folder, numbers = small
    name, left = "eps9-lr0.02-c2", "eps10-lr0.04-c1"
    for path in folder.glob("*/eps*.json"):
        if path.stem not in (name, left) or (path.stem, path.parent.name) == (left, "2"):
            path.unlink()
    found = cifar10_from_scratch.drawn_over_checkpoints(folder)
    assert found[name] == numbers["checkpoints"][name]
    assert found[left][EVEN_DRAW]["runs"] == 2, "a repetition that lacks it is left out"
    runs = [json.loads((folder / one / f"{name}.json").read_text())["checkpoints"] for one in "123"]
    gains = [sum(point["accuracy"] for point in run) / 3 - run[1]["accuracy"] for run in runs]
    assert found[name][EVEN_DRAW]["mean"] == pytest.approx(sum(gains) / 3)
    epsilons = [one["epsilon by PLD"] for one in found[name]["alone"].values()]
    even = found[name]["random selection"][1]["epsilon by PLD"]
    assert epsilons[0] < epsilons[1] < even < epsilons[2] == pytest.approx(numbers["settings"][name]["epsilon"], rel=1e-6)


def test_networks_have_the_parameters_that_titles_say() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dpmerge_lab.training.networks import cnn, small_cnn

    for name, network in {"cnn": cnn((3, 32, 32)), "small-cnn": small_cnn(1)}.items():
        count = sum(parameter.numel() for parameter in network.parameters())
        assert all(f"of {count:,} parameters" in told for told in cifar10._NETWORKS[name])


def test_refusals_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no run or merge is called"):
        cifar10_settings.wanted("everything")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "pretraining.json").write_text("{")
    for name in cifar10_settings.wanted("pretrained")[1:]:
        (tmp_path / "1" / f"{name}.json").write_text("{}")
    with pytest.raises(TrainingError, match="remove it to make it again"):
        cifar10.cifar10_pretrained(Options(folder=tmp_path))
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments import cifar10_training

    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "pretraining-views.json").write_text("{}")  # its moving average, of the same training, is missing
    with pytest.raises(TrainingError, match="makes it anew; remove it"):
        cifar10_training.make(["pretraining-views-ema"], None, "cpu", cifar10_settings.QUICK, tmp_path / "2")
    with pytest.raises(DataError, match="no such file"):
        cifar10.cifar10(Options(folder=tmp_path, data=tmp_path))


@pytest.mark.parametrize(
    ("module", "given"),
    [
        ("aggregation_cifar10_training", ["--only", "eps1,eps2"]),
        ("aggregation_cifar10_training", ["--runs", "0"]),
        ("aggregation_cifar10_training", ["--runs", "one"]),
        ("aggregation_cifar10_training", ["--on", ""]),
        ("uncertainty_cifar10_training", ["--only", "1,3"]),
    ],
)
def test_lists_of_a_training_are_checked_before_it_begins(
    module: str, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    main = importlib.import_module(f"dpmerge_lab.experiments.{module}").main
    with pytest.raises(SystemExit) as stopped:
        main(["--data", str(tmp_path), "--out", str(tmp_path / "out"), *given])
    assert stopped.value.code == 2 and not (tmp_path / "out").exists()
    option, text = given
    assert f"argument {option}: {text!r} is not some of " in capsys.readouterr().err


@pytest.mark.parametrize("module", ["aggregation_cifar10_training", "cifar10_training", "uncertainty_cifar10_training"])
def test_a_training_ends_when_its_time_is_over(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments.unfinished import TimeIsUp

    training = importlib.import_module(f"dpmerge_lab.experiments.{module}")
    images = digits_as_images()
    monkeypatch.setattr(training, "load_images", lambda *_: images)
    given = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(TimeIsUp, match=r"1e-09 minutes are over; the same command goes on"):
        training.main([*given, "--minutes", "1e-9"])
    assert not list((tmp_path / "out").rglob("*.json"))
    for wrong in ("0", "-1", "nan", "soon"):
        with pytest.raises(SystemExit):
            training.main([*given, "--minutes", wrong])
