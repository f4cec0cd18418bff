"""Uncertainty end to end: folders of checkpoints and runs, the command, and the experiments in small."""

from __future__ import annotations

import copy
import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpmerge.checkpoints import PUBLIC, Spread
from dpmerge.checkpoints.spread import departures
from dpmerge.cli import app
from dpmerge.datasets import bounded_features
from dpmerge.errors import CheckpointError, DependentRuns, DpmergeError, EvaluationError, PortfolioError, TargetError
from dpmerge.figures import render
from dpmerge.profiles import run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import Joint
from dpmerge.training import Recipe, Tensors, train
from dpmerge_lab.experiments import quadratic as experiment
from dpmerge_lab.experiments.quadratic import checkpoints, covariance, exact_error, iterates, simulated_error
from dpmerge_lab.experiments.results import Options
from dpmerge_lab.experiments.uncertainty import ABOVE, ANSWERED, APART, LAST, RUNS, TOP, _disjoint
from dpmerge_lab.experiments.uncertainty_cifar10 import NOISE, design_of, uncertainty_cifar10
from dpmerge_lab.experiments.uncertainty_mnist import DESIGN, uncertainty_mnist
from tests.builders import dp_sgd

EXAMPLES, CLASSES, NORM = 40, 3, 2.0
GENERATOR = np.random.default_rng(11)
INPUTS = GENERATOR.random((EXAMPLES, 4)).astype(np.float32)
TRUTH = INPUTS[:, :CLASSES].argmax(axis=1)


def trained(folder: Path, name: str, noise: float = 1.0, kept: tuple[int, ...] = ()) -> dict[int, Tensors]:
    """A run of 20 steps on the examples, its checkpoints saved as NAME-STEP."""
    features = bounded_features(INPUTS, NORM)
    recipe = Recipe(steps=20, learning_rate=0.5, clip=3.0, noise_multiplier=noise)
    found = train(features, TRUTH, CLASSES, recipe, norm_bound=NORM, dataset="rows", checkpoints=kept)
    for model in found:
        model.save(folder / f"{name}-{model.step:02d}")
    return {model.step: model.tensors for model in found}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("uncertainty")
    for name in ("run", "runs", "different"):
        (home / name).mkdir()
    tensors = trained(home / "run", "step", kept=(4, 8, 12, 16, 20))
    for name in "abc":
        trained(home / "runs", name)
    trained(home / "different", "a")
    trained(home / "different", "b", noise=2.0)
    np.savez(home / "inputs.npz", inputs=INPUTS, labels=TRUTH)
    np.savez(home / "unlabelled.npz", inputs=INPUTS)
    return {"home": home, "tensors": tensors}


def softmax(tensors: Tensors) -> np.ndarray:
    scores = bounded_features(INPUTS, NORM)[:, :-1].astype(float) @ tensors["weight"].T.astype(float) + tensors["bias"]
    powers = np.exp(scores)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def ask(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["run", "uncertainty", *arguments, "--delta", "1e-5", "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class TestSpread:
    def test_checkpoints_cost_the_run_and_runs_cost_all_of_them(self, folders: dict[str, Any]) -> None:
        one = Spread.over_checkpoints(folders["home"] / "run", last=3).guarantee(1e-5)
        latest = Portfolio(folders["home"] / "run").weights({"step-20": 1.0})
        assert one.epsilon == Joint(latest).guarantee(delta=1e-5).epsilon
        assert one.theorem == "single-run"
        several = Spread.over_runs(folders["home"] / "runs").guarantee(1e-5)
        assert several.theorem == "joint-release"
        assert several.epsilon > 1.5 * one.epsilon
        assert PUBLIC in one.assumptions
        assert PUBLIC in several.assumptions

    def test_checkpoints_are_never_more_than_a_heuristic(self, folders: dict[str, Any]) -> None:
        found = Spread.over_checkpoints(folders["home"] / "run")
        assert found.standing == "heuristic"
        assert any("strongly convex and smooth" in note for note in found.notes)
        assert "no record states that its loss is strongly convex" in found.notes[-1]
        assert Spread.over_runs(folders["home"] / "runs").standing == "estimate"

    def test_departures_name_what_the_record_says(self, folders: dict[str, Any]) -> None:
        model = Spread.over_checkpoints(folders["home"] / "run").models[-1]
        assert departures(model) == ("of this run: no record states that its loss is strongly convex",)
        sampled = Portfolio(_changed(folders, sampling={"scheme": "poisson", "rate": 0.1}, optimizer="adam", convex=None))
        (text,) = departures(sampled.models[0])
        for words in ("sampled batches", "the optimizer is adam", "clipping may bind"):
            assert words in text

    def test_checkpoints_chosen(self, folders: dict[str, Any]) -> None:
        found = Spread.over_checkpoints(folders["home"] / "run", burn_in=5, separation=8)
        assert [model.name for model in found.models] == ["step-12", "step-20"]

    def test_refusals(self, folders: dict[str, Any], tmp_path: Path) -> None:
        home = folders["home"]
        with pytest.raises(PortfolioError, match=r"'a-20' and 'b-20' were not trained by the same recipe"):
            Spread.over_runs(home / "different")
        with pytest.raises(PortfolioError, match="at least two independent runs are needed"):
            Spread.over_runs(home / "run")
        with pytest.raises(PortfolioError, match="is a checkpoint of run"):
            Spread.over_checkpoints(home / "runs")
        trained(tmp_path, "step", kept=(4, 8, 16, 20))
        with pytest.raises(PortfolioError, match="step 12 is missing"):
            Spread.over_checkpoints(tmp_path, last=3)
        assert len(Spread.over_checkpoints(tmp_path, last=2).models) == 2
        assert len(Spread.over_checkpoints(tmp_path, last=3, allow_gaps=True).models) == 3
        assert len(Spread.over_checkpoints(tmp_path, separation=12).models) == 2  # of steps 8 and 20, which are there

    def test_runs_that_share_their_noise_are_refused(self, folders: dict[str, Any]) -> None:
        same = {"noise_fingerprint": "one for both"}
        home = _changed(folders, **same)
        with pytest.raises(DependentRuns, match="same noise_fingerprint"):
            Spread.over_runs(home).guarantee(1e-5)


def _changed(folders: dict[str, Any], **fields: Any) -> Path:
    """The independent runs with other records."""
    home: Path = folders["home"] / f"changed-{'-'.join(fields)}"
    for model in sorted((folders["home"] / "runs").iterdir()):
        record = json.loads((model / "record.json").read_text())
        record["mechanism"] |= fields
        (home / model.name).mkdir(parents=True)
        (home / model.name / "record.json").write_text(json.dumps(record))
    return home


class TestCommand:
    def test_numbers_are_those_of_the_checkpoints(self, folders: dict[str, Any], tmp_path: Path) -> None:
        home, out = folders["home"], tmp_path / "out"
        found = ask(
            str(home / "run"), "--last", "3", "--data", str(home / "inputs.npz"), "--norm-bound", "2", "--out", str(out)
        )
        said = np.stack([softmax(folders["tensors"][step]) for step in (12, 16, 20)])
        mean = said.mean(axis=0)
        labels = mean.argmax(axis=1)
        spread = said[:, np.arange(EXAMPLES), labels].std(axis=0, ddof=1)
        widths = 2 * 4.302652729911275 * spread / math.sqrt(3)  # Student's 97.5 % quantile, two degrees of freedom
        with (out / "table.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [int(row["label"]) for row in rows] == labels.tolist()
        assert [float(row["width"]) for row in rows] == pytest.approx(widths.tolist(), rel=1e-4, abs=1e-6)
        assert [int(row["correct"]) for row in rows] == (labels == TRUTH).astype(int).tolist()
        assert found["mean_width"] == pytest.approx(widths.mean(), rel=1e-4)
        assert found["accuracy"] == pytest.approx(np.mean(labels == TRUTH))
        assert found["models"] == ["step-12", "step-16", "step-20"]
        assert json.loads((out / "summary.json").read_text())["mean_width"] == found["mean_width"]
        kinds = {f"{name}{suffix}" for name in ("widths", "abstention") for suffix in (".png", ".html")}
        assert {path.name for path in out.iterdir()} == kinds | {"table.csv", "summary.json"}

    def test_unlabelled_inputs_and_people(self, folders: dict[str, Any], tmp_path: Path) -> None:
        home, out = folders["home"], tmp_path / "out"
        asked = ["--runs", str(home / "runs"), "--data", str(home / "unlabelled.npz"), "--of", "last", "--out", str(out)]
        result = CliRunner().invoke(app, ["run", "uncertainty", *asked, "--delta", "1e-5"], catch_exceptions=False)
        assert "estimate, not a guarantee: 3 independent runs" in result.output
        assert "joint release" in result.output
        assert not (out / "abstention.png").exists()
        assert (out / "table.csv").read_text().splitlines()[0] == "example,label,score,width"

    def test_people_see_what_it_is(self, folders: dict[str, Any], tmp_path: Path) -> None:
        home = folders["home"]
        asked = [str(home / "run"), "--data", str(home / "inputs.npz"), "--out", str(tmp_path / "out"), "--delta", "1e-5"]
        result = CliRunner().invoke(app, ["run", "uncertainty", *asked], catch_exceptions=False)
        assert "heuristic, not a guarantee: 5 checkpoints of one run, steps 4 to 20" in result.output
        assert "accuracy where answered" in result.output

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            ([], TargetError, "either RUN"),
            (["run", "--runs", "runs"], TargetError, "either RUN"),
            (["--runs", "runs", "--last", "2"], TargetError, "--last has no meaning with --runs"),
            (["run", "--last", "1"], CheckpointError, "at least 2"),
            (["run", "--burn-in", "21"], CheckpointError, "longer than the run"),
            (["run", "--separation", "3"], CheckpointError, "step 17, which is missing"),
            (["run", "--confidence", "0"], EvaluationError, "confidence is 0"),
            (["run", "--predict", "nothing"], EvaluationError, "no predictor is named"),
        ],
    )
    def test_refusals_leave_nothing(
        self, folders: dict[str, Any], tmp_path: Path, arguments: list[str], error: type[DpmergeError], words: str
    ) -> None:
        home = folders["home"]
        named = [str(home / part) if part in ("run", "runs") else part for part in arguments]
        with pytest.raises(error, match=words):
            ask(*named, "--data", str(home / "inputs.npz"), "--out", str(tmp_path / "out"))
        assert not list(tmp_path.iterdir())

    def test_an_existing_folder_is_kept(self, folders: dict[str, Any], tmp_path: Path) -> None:
        home = folders["home"]
        with pytest.raises(CheckpointError, match="exists already"):
            ask(str(home / "run"), "--data", str(home / "inputs.npz"), "--out", str(tmp_path))


class TestQuadratic:
    def test_last_iterate_has_variance_one_and_the_process_is_autoregressive(self) -> None:
        assert covariance([128])[0, 0] == pytest.approx(1, rel=1e-12)
        found = covariance([10, 11, 40])
        assert found[0, 1] == pytest.approx(0.93 * found[0, 0])
        assert found[1, 2] == found[2, 1] == pytest.approx(0.93**29 * found[1, 1])
        assert covariance([0])[0, 0] == pytest.approx(100**2)

    @pytest.mark.parametrize(("burn_in", "separation"), [(32, 8), (64, 2), (96, 16)])
    def test_exact_errors_against_simulation(self, burn_in: int, separation: int) -> None:
        steps = checkpoints(burn_in, separation)
        found = iterates(20_000, np.random.default_rng(3))
        assert simulated_error(found, steps) == pytest.approx(exact_error(steps)["rmse"], rel=0.05)

    def test_two_independent_runs(self) -> None:
        """(x − y)²/2 for unit normal x, y is χ²₁: variance 2, so its root mean squared error is √2, not the paper's 2."""
        x, y = np.random.default_rng(4).standard_normal((2, 200_000))
        measured = math.sqrt(np.mean(((x - y) ** 2 / 2 - 1) ** 2))
        assert experiment._two_runs()["rmse, ignoring the bias of stopping at 64"] == pytest.approx(measured, rel=0.03)

    def test_quick(self) -> None:
        result = experiment.quadratic(Options(seeds=2, quick=True))
        best = result.numbers["best, exact"]
        assert best["burn-in"] == pytest.approx(64, abs=4)
        assert best["separation"] in (1, 2)
        assert best["rmse"] < 0.6
        assert len(result.numbers["best, simulated"]) == 2
        assert render(result.pictures["rmse"], ".png").startswith(b"\x89PNG")


class TestMnistInSmall:
    def test_quick(self) -> None:
        result = uncertainty_mnist(Options(seeds=2, quick=True, jobs=1))
        total = dict.fromkeys((RUNS, LAST, APART), 0.0)
        for found in result.numbers.values():
            for row in found["rows"]:
                widths = {way: row["mean width"][way]["mean"] for way in total}
                total = {way: total[way] + widths[way] for way in total}
                assert row["independent runs' width / checkpoints'"][LAST] == pytest.approx(widths[RUNS] / widths[LAST])
                assert row["epsilon of N runs together"] > row["epsilon of one run"]
            accuracies = found[ANSWERED]
            assert set(accuracies) == {RUNS, LAST, APART, *TOP.values()}
            assert set(found[ABOVE]) == {*(f"{way} − {score}" for way, score in TOP.items()), f"{RUNS} − {TOP[LAST]}"}
            for pair, differences in found[ABOVE].items():
                way, score = pair.split(" − ")
                for share, difference in differences.items():
                    apart = accuracies[way][share]["mean"] - accuracies[score][share]["mean"]
                    assert difference["mean"] == pytest.approx(apart)
            for way, score in TOP.items():  # where all are answered, it does not matter by what
                assert accuracies[score]["1"] == accuracies[way]["1"]
            # A pool of six has one draw of five; two runs were watched.
            assert [accuracies[way]["1"]["runs"] for way in (RUNS, LAST, APART)] == [1, 2, 2]
        assert 0 < total[LAST] < total[APART]  # neighbours are alike
        assert total[LAST] < total[RUNS]
        assert set(result.pictures) == {"widths", "ratios", "abstention", "abstention-compared"}
        for document in result.pictures.values():
            assert render(document, ".png").startswith(b"\x89PNG")

    def test_draws_share_no_run(self) -> None:
        pool = [np.full((1, 2), float(index)) for index in range(11)]
        for count, most, draws in ((3, 9, 3), (3, 2, 2), (5, 4, 2), (11, 4, 1)):
            held = [[float(one[0, 0]) for one in draw] for draw in _disjoint(pool, count, most)]
            assert [len(draw) for draw in held] == [count] * draws
            assert len({one for draw in held for one in draw}) == count * draws

    def test_steps_of_the_full_experiment(self) -> None:
        design = DESIGN
        assert design.steps(LAST, 5) == [701, 702, 703, 704, 705]
        for count in design.counts:
            apart = design.steps(APART, count)
            assert len(apart) == count
            assert apart[0] >= 352
            assert apart[-1] == 705


class TestCifarInSmall:
    """101 small networks at once; in small, on the digits."""

    def test_quick(self, tmp_path: Path) -> None:
        pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("opacus", reason="Opacus is not installed")
        options = Options(seeds=2, quick=True, jobs=1, folder=tmp_path)
        result = uncertainty_cifar10(options)
        design = design_of(quick=True)
        for found in result.numbers.values():
            assert found["test accuracy"]["runs"] == design.pool
            for row in found["rows"]:
                assert min(row["mean width"][way]["mean"] for way in (RUNS, LAST, APART)) > 0
                assert row["epsilon of N runs together"] > row["epsilon of one run"] > 0
        for document in result.pictures.values():
            assert render(document, ".png").startswith(b"\x89PNG")
        files = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
        assert len(files) == len(NOISE)
        for path, content in files.items():
            held = [record["mechanism"] for record in json.loads(content)["records"]]
            for one in ("run", "noise_fingerprint", "sampler_fingerprint"):  # of its own for every run
                assert len({mechanism[one] for mechanism in held}) == design.pool, path
        again = uncertainty_cifar10(options)  # nothing is trained again
        assert again.numbers == result.numbers
        assert files == {path: path.read_bytes() for path in tmp_path.glob("*.json")}

    def test_the_noise_is_the_least_for_its_epsilon(self) -> None:
        recipe = design_of(quick=False).recipe

        def found(sigma: float) -> float:
            model = dp_sgd("m", steps=recipe.steps, sampling=512 / 50_000, sigma=sigma)
            return run_profile(model).profile.epsilon(1e-5)

        for epsilon, sigma in NOISE.items():
            assert found(sigma) <= epsilon < found(sigma - 0.001)

    def test_networks_together_are_those_one_by_one(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from dpmerge_lab.training.networks import cnn
        from dpmerge_lab.training.private_sgd import clipped_sums as of_one
        from dpmerge_lab.training.together import clipped_sums, patches, probabilities

        drawn = torch.Generator().manual_seed(3)
        networks = [cnn((3, 8, 8)).double() for _ in range(3)]
        images = torch.randn(3, 7, 3, 8, 8, generator=drawn, dtype=torch.float64)
        labels, sizes = torch.randint(0, 10, (3, 7), generator=drawn), torch.tensor([7, 5, 0])
        every = {
            name: torch.stack([dict(one.named_parameters())[name].detach() for one in networks])
            for name, _ in networks[0].named_parameters()
        }
        columns = patches(images)
        sums = clipped_sums(every, columns, labels, torch.arange(7) < sizes[:, None], 0.7)
        for index, network in enumerate(networks[:2]):
            expected = of_one(network, images[index, : sizes[index]], labels[index, : sizes[index]], 0.7)
            for one, (name, _) in zip(expected, network.named_parameters(), strict=True):
                torch.testing.assert_close(sums[name][index], one, rtol=1e-10, atol=1e-12)
            own = torch.softmax(network(images[index]), dim=1).detach()
            torch.testing.assert_close(probabilities(every, columns[index])[index], own, rtol=1e-10, atol=1e-12)
        assert all(not sums[name][2].any() for name in sums)  # an empty batch

    def test_every_network_takes_the_recorded_steps(self) -> None:
        """Without noise, a run of the program is a run of its own with the same batches."""
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from dpmerge_lab.training import together
        from dpmerge_lab.training.networks import cnn, from_seed
        from dpmerge_lab.training.private_sgd import Randomness, steps
        from dpmerge_lab.training.recipe import LabRecipe

        recipe = LabRecipe(steps=4, learning_rate=0.5, clip=1.0, noise_multiplier=0.0, rate=0.3)
        images, labels = torch.rand(30, 1, 8, 8), torch.arange(30) % 10
        randomness = [Randomness(torch.device("cpu")) for _ in range(2)]
        coins = [copy.deepcopy(one) for one in randomness]
        networks = together.first((1, 8, 8), 5, 2, torch.device("cpu"))
        assert list(together.steps(networks, together.patches(images), labels, recipe, randomness)) == [1, 2, 3, 4]
        for index, own in enumerate(coins):
            network = from_seed(lambda: cnn((1, 8, 8)), 5)
            for _ in steps(network, images, labels, recipe, own, "alone"):
                pass
            for name, parameter in network.named_parameters():
                torch.testing.assert_close(networks[name][index], parameter.detach(), rtol=1e-4, atol=1e-6)
