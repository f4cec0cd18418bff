"""`dpmerge reproduce`: what it writes, one line for every mistake, and the two experiments that need neither data nor torch."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from typer.testing import CliRunner

from dpmerge.cli import app, main
from dpmerge.errors import FigureError, TrainingError
from dpmerge_lab.experiments import catalogue
from dpmerge_lab.experiments.catalogue import EXPERIMENTS, Experiment, find
from dpmerge_lab.experiments.composition import composition
from dpmerge_lab.experiments.mean_estimation import DELTA, Setting, mean_estimation
from dpmerge_lab.experiments.results import Options, Result, check_writable, write

NAMES = {"mean-estimation", "mnist", "mnist-full-batch", "cifar10", "cifar10-pretrained", "checkpoints", "composition"}
LINES = {"kind": "lines", "title": "t", "x_label": "x", "y_label": "y", "lines": [{"label": "a", "x": [1, 2], "y": [1, 2]}]}


def toy(options: Options) -> Result:
    """An experiment that takes no time."""
    numbers = {"seeds": options.seeds, "infinite": math.inf, "device": options.device}
    return Result("toy", {"quick": options.quick}, numbers, {"line": LINES}, 1.23)


def faulty(fault: BaseException) -> Any:
    """An experiment that ends like this."""

    def run(options: Options) -> Result:
        raise fault

    return run


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An experiment of the test's own: `toys.function` is what runs."""
    module = SimpleNamespace(function=toy)
    monkeypatch.setitem(sys.modules, "dpmerge_lab.experiments.toys", module)
    monkeypatch.setitem(EXPERIMENTS, "toy", Experiment("a toy", "toys:function", torch=False))
    monkeypatch.setitem(EXPERIMENTS, "toy-network", Experiment("a toy", "toys:function", ("mnist",), torch=True))
    return module


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The one line that a user sees."""
    monkeypatch.setattr(sys, "argv", ["dpmerge", "reproduce", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


def test_every_experiment_is_listed_with_what_it_needs() -> None:
    for arguments in (["reproduce"], ["reproduce", "list"]):
        plain = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert plain.exit_code == 0
        for name in NAMES:
            assert name in plain.stdout
    listed = json.loads(CliRunner().invoke(app, ["reproduce", "--json"], catch_exceptions=False).stdout)
    assert set(listed) >= NAMES
    assert listed["mean-estimation"]["needs"] == []
    assert listed["cifar10"]["needs"] == ["cifar10.npz", "torch, better with a GPU"]


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_names_a_module_that_exists(name: str) -> None:
    module, _, function = EXPERIMENTS[name].function.partition(":")
    assert function.isidentifier() and EXPERIMENTS[name].about
    found = importlib.util.find_spec(f"dpmerge_lab.experiments.{module}")
    assert found is not None and found.origin is not None
    assert f"def {function}(options: Options) -> Result:" in Path(found.origin).read_text()


def test_numbers_and_pictures_are_written(toys: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "toy", "--seeds", "3", "--quick"], catch_exceptions=False)
    assert result.exit_code == 0
    written = [Path("results/toy") / name for name in ("toy.json", "toy-line.png", "toy-line.html")]
    assert result.stdout.splitlines() == [str(path) for path in written]
    assert sorted(Path("results/toy").iterdir()) == sorted(written)
    held = json.loads(written[0].read_text())
    assert held["experiment"] == "toy" and held["configuration"] == {"quick": True}
    assert held["numbers"] == {"seeds": 3, "infinite": None, "device": "cpu"}
    assert held["wall_seconds"] == 1.2
    assert held["software"]["numpy"] == np.__version__ and re.search(r"\d+ cores", held["machine"])
    printed = CliRunner().invoke(app, ["reproduce", "toy", "--out", "there", "--json"], catch_exceptions=False)
    told = json.loads(printed.stdout)
    assert told["numbers"]["seeds"] == 5 and told["numbers"]["infinite"] == math.inf
    assert told["files"] == [f"there/{path.name}" for path in written]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "no experiment is called 'nothing'; there are mean-estimation, mnist,"),
        (["toy", "--seeds", "0"], "--seeds is 0; at least one"),
        (["toy", "--jobs", "0"], "--jobs is 0; give a number"),
        (["toy", "--data", "."], "toy reads no data; leave out --data"),
        (["toy", "--device", "cuda"], "toy trains no network and runs on the CPU; leave out --device cuda"),
        (["toy-network", "--data", "nowhere"], "--data nowhere: no such folder; it must hold mnist.npz"),
        (["mnist"], "mnist.npz is needed: name the folder that holds it"),
        (["mnist", "--data", "."], "mnist.npz: no such file"),
        (["toy", "--out", "file"], "file: no folder for results can be made there"),
        (["toy", "--out", "file/below"], "file/below: no folder for results can be made there"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    arguments: list[str],
    complaint: str,
    toys: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("in the way")
    assert complaint in refused(capsys, monkeypatch, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (MemoryError(), "toy: out of memory; use fewer --jobs, or --quick"),
        (OutOfMemoryError("CUDA out of memory.\nTried"), "toy: out of memory; free some, use another --device, or --quick"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "toy: out of memory; free some"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "needs torch and Opacus; install dpmerge[torch]"),
        (ModuleNotFoundError("No module", name="opacus.optimizers"), "needs torch and Opacus; install dpmerge[torch]"),
    ],
)
def test_what_the_machine_lacks_is_one_line(
    fault: BaseException,
    complaint: str,
    toys: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    toys.function = faulty(fault)
    assert complaint in refused(capsys, monkeypatch, "toy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [RuntimeError("a defect"), ModuleNotFoundError("x", name="elsewhere"), KeyError("x")])
def test_defects_are_not_hidden(fault: Exception, toys: SimpleNamespace) -> None:
    toys.function = faulty(fault)
    with pytest.raises(type(fault)):
        find("toy", Options())()


def test_a_gpu_without_memory_is_named(toys: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules,
        "dpmerge_lab.training.private_sgd",
        SimpleNamespace(device=str),
    )
    toys.function = faulty(OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(TrainingError, match="toy-network: the GPU's memory is too small; free some"):
        find("toy-network", Options(device="cuda"))()


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is not installed, also for modules that were loaded before."""
    for name in list(sys.modules):
        if name.startswith(("dpmerge_lab.training.", "dpmerge_lab.experiments.cifar10")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("arguments", [["toy-network", "--device", "cuda"], ["cifar10", "--quick"]])
def test_missing_torch_is_one_line(
    arguments: list[str],
    toys: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    toys.function = faulty(AssertionError("it ran"))
    said = refused(capsys, monkeypatch, *arguments)
    assert f"{arguments[0]} trains networks, which needs torch and Opacus; install dpmerge[torch]" in said
    assert list(tmp_path.iterdir()) == []


def test_absent_cuda_is_one_line(
    toys: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees no CUDA GPU on this machine" in refused(capsys, monkeypatch, "toy-network", "--device", "cuda")
    assert "'abacus' is no device of torch" in refused(capsys, monkeypatch, "toy-network", "--device", "abacus")


def test_missing_plotting_is_noticed_before_anything_runs(
    toys: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.function = faulty(AssertionError("it ran"))
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "pictures as .html need plotly: install dpmerge[plots]" in refused(capsys, monkeypatch, "toy")


def test_a_picture_that_cannot_be_drawn_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match="cannot be drawn"):
        write(Result("toy", {}, {}, {"good": LINES, "bad": {"kind": "lines", "title": "t", "lines": []}}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_results_replace_older_ones_whole(tmp_path: Path) -> None:
    write(toy(Options(seeds=1)), tmp_path)
    paths = write(toy(Options(seeds=2)), tmp_path, (".png",))
    assert [path.name for path in paths] == ["toy.json", "toy-line.png"]
    assert json.loads(paths[0].read_text())["numbers"]["seeds"] == 2
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_a_folder_to_be_made_is_writable_if_its_parent_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(TrainingError, match="is no folder that can be written"):
            check_writable(bad)


def test_progress_is_told_to_whoever_asks() -> None:
    told: list[str] = []

    class Bar:
        def __init__(self, title: str) -> None:
            self.title = title

        def start(self, total: int, label: str) -> None:
            told.append(f"{self.title}: {total}")

        def advance(self) -> None:
            told.append(self.title)

        def finish(self) -> None:
            told.append(f"{self.title} done")

    mean_estimation(Options(seeds=2, quick=True, jobs=1, progress=Bar))
    assert told.count("weights: 17") == told.count("seeds: 2") == 1
    assert told.count("seeds") == 2 and told[-1] == "seeds done"
    assert Options().bar("weights") is None


# --- mean estimation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def means() -> Result:
    return mean_estimation(Options(seeds=3, quick=True, jobs=1))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Of the Gaussian mechanism (Balle and Wang 2018)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def test_means_alone_and_averaged_are_the_gaussian_mechanism(means: Result) -> None:
    setting = Setting()
    for one, noise in zip(means.numbers["alone"].values(), setting.deviations, strict=True):
        assert gaussian_delta(one["pld"], setting.sensitivity / noise) == pytest.approx(DELTA, rel=1e-6)
    averages = means.numbers["combination"]
    for weight, pld, rdp in zip(averages["weight"], averages["pld"], averages["rdp"], strict=True):
        mu = setting.sensitivity / math.sqrt(setting.combination_noise(weight))
        assert gaussian_delta(pld, mu) == pytest.approx(DELTA, rel=1e-6)
        # Conversion of Differentially Private Model Merging v1, minimised over the order in closed form (App. G): the grid of
        # orders is a little above.
        assert mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / DELTA)) <= rdp * (1 + 1e-12) <= 1.002 * (mu**2 / 2 + mu * 4.7985)
    together = means.numbers["joint release"]
    best = Setting().best_weight
    mu = setting.sensitivity / math.sqrt(setting.combination_noise(best))
    assert gaussian_delta(together["pld"], mu) == pytest.approx(DELTA, rel=1e-6)  # the best average reveals everything


def test_a_draw_is_accounted_by_its_law(means: Result) -> None:
    """Against the trapezoid rule on the density of what is released, and against the mixture of the merging paper's Thm 5.2."""
    setting, draws = Setting(), means.numbers["selection"]
    x = np.linspace(-1.6, 1.6, 400_001)

    def density(at: Any, weight: float) -> Any:
        parts = [
            share * np.exp(-(at**2) / (2 * s**2)) / (s * math.sqrt(2 * math.pi))
            for share, s in zip((weight, 1 - weight), setting.deviations, strict=True)
        ]
        return parts[0] + parts[1]

    for weight, pld, exact in zip(draws["weight"], draws["pld"], draws["exact"], strict=True):
        excess = density(x, weight) - math.exp(exact) * density(x - setting.sensitivity, weight)
        # Valid, and tight to what rounding up costs on its grid.
        assert 0.95 * DELTA <= np.trapezoid(np.maximum(excess, 0), x) <= DELTA * (1 + 1e-6)
        mixed = [gaussian_delta(pld, setting.sensitivity / s) for s in setting.deviations]
        assert weight * mixed[0] + (1 - weight) * mixed[1] == pytest.approx(DELTA, rel=1e-4)


def test_what_the_paper_says_of_means_holds_for_its_bounds(means: Result) -> None:
    found = means.numbers["comparisons"]
    for name in ("selection", "combination"):
        assert found[f"largest PLD ε / RDP ε of {name}"] < 1
    for by in ("RDP", "PLD"):
        assert found[f"largest combination ε / selection ε at equal error, {by}"] < 1


def test_and_fails_for_the_law_of_what_is_released(means: Result) -> None:
    """Thm 4.2 is about small sensitivities at a fixed order; in (ε, δ) hidden draws beat averages (theory.md §3.4)."""
    found = means.numbers["comparisons"]
    assert found["smallest exact selection ε / combination ε at equal error"] < 0.7
    renyi = means.numbers["renyi"]
    assert renyi["selection"][0] > renyi["combination"][0] and renyi["selection"][-1] < renyi["combination"][-1]
    assert all(a <= b * (1 + 1e-9) for a, b in zip(renyi["selection"], renyi["selection, bound"], strict=True))
    epsilons = renyi["ε by these orders"]
    assert epsilons["selection"] < epsilons["combination"] < epsilons["selection, bound"]


def test_errors_measured_are_those_of_the_closed_form(means: Result) -> None:
    setting = Setting()
    inside = np.linspace(-1, 1, 200_001)
    density = np.exp(-(inside**2) / 2) / math.sqrt(2 * math.pi)
    variance = np.trapezoid(inside**2 * density, inside) + 2 * ndtr(-1)
    assert setting.sampling_error == pytest.approx(variance / 100, rel=1e-8)
    for rule in ("selection", "combination"):
        held = means.numbers[rule]
        assert held["measured error"]["runs"] == 3
        # 60,000 squared errors, whose relative deviation is at most 2: six standard errors are 5 %.
        assert held["measured error"]["mean"] == pytest.approx(held["error"], rel=0.05)
    noises = [setting.selection_noise(weight) for weight in (0.0, 0.3, 0.9, 1.0)]
    for noise in noises:
        assert setting.combination_noise(setting.weight_of_equal_error(noise)) == pytest.approx(noise, rel=1e-9)


# --- composition ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def composed() -> Result:
    return composition(Options(quick=True, jobs=1))


def test_joint_release_of_gaussian_mechanisms_is_gaussian(composed: Result) -> None:
    rows = [row for name, rows in composed.numbers.items() if "Gaussian" in name for row in rows]
    assert len(rows) == 4 + 5 + 4
    for row in rows:
        mu = math.sqrt(row["models"]) / row["noise multiplier"]
        assert gaussian_delta(row["joint, PLD"], mu) == pytest.approx(1e-5, rel=1e-6)
        assert row["combination, PLD"] == pytest.approx(row["joint, PLD"], rel=1e-9)  # the average is sufficient
        assert row["selection, PLD"] == pytest.approx(row["alone"], rel=1e-6)  # equal models: as private as one


def test_pairs_are_composed_by_the_formula_of_the_proposition(composed: Result) -> None:
    for row in composed.numbers["over ε, Gaussian mechanisms"]:
        count, mu, delta = row["models"], 1 / row["noise multiplier"], 1e-5
        single = mu**2 / 2 + mu * math.sqrt(2 * math.log(2 * count / delta))  # the merging paper's App. G, step 2, at δ/2N
        step3 = single * math.sqrt(2 * count * math.log(2 / delta)) + count * single * math.expm1(single)
        assert row["advanced, RDP"] == pytest.approx(step3, rel=0.02)
        step4 = count * mu**2 / 2 + mu * math.sqrt(2 * count * math.log(1 / delta))
        assert row["joint, RDP"] == pytest.approx(step4, rel=2e-3)


def test_what_the_paper_says_of_composition(composed: Result) -> None:
    """The merging paper's Prop. 7.1 and §7; but optimal composition of exact pairs may be below Rényi's joint release."""
    found = composed.numbers["comparisons"]
    for name in (
        "smallest advanced ε / joint ε, both by RDP (M1 Prop. 7.1)",
        "smallest advanced ε / joint ε, both by PLD",
        "smallest optimal ε / joint ε, both by PLD, several models",
    ):
        assert found[name] > 1, name
    assert found["smallest optimal ε by PLD / joint ε by RDP, several models"] < 1
    assert found["cases of several models where optimal composition of PLD's pairs is below joint RDP"] > 0
    assert found["the same with the tight conversion"] == 0 and found["most models of them"] == 2
    assert found["largest joint PLD ε / joint RDP ε"] < 1
    assert found["largest selection ε / joint ε, both by PLD, several models"] < 1
    rows = [row for name, rows in composed.numbers.items() if name != "comparisons" for row in rows]
    assert all(row["optimal, PLD"] <= row["basic, PLD"] for row in rows)


def test_both_draw(means: Result, composed: Result, tmp_path: Path) -> None:
    assert list(means.pictures) == ["tradeoff", "selection", "combination", "renyi"]
    assert list(composed.pictures) == ["models", "epsilon", "two"]
    for result in (means, composed):
        for path in write(result, tmp_path / result.name, (".png", ".html")):
            assert path.stat().st_size > 1000
    assert catalogue.EXPERIMENTS["composition"].data == ()
