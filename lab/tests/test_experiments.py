"""The papers' experiments on linear models, quickly, on the digits: they run, and their numbers keep the order theory says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError
from dpmerge.figures import describe
from dpmerge.planning import Heatmap, Surface
from dpmerge.profiles import gaussian_epsilon
from dpmerge.records import DpSgd, Portfolio
from dpmerge_lab.experiments import portfolio_pictures
from dpmerge_lab.experiments.checkpoints import checkpoints
from dpmerge_lab.experiments.mnist import (
    full_batch,
    logistic_twin,
    mnist,
    mnist_full_batch,
    mnist_replace_one,
    papers,
    poisson_twin,
)
from dpmerge_lab.experiments.portfolio_pictures import AVERAGE, DRAW, LAST_ONLY, kept_frontier_panel
from dpmerge_lab.experiments.portfolios import CHOSEN_BY_TEST, average, guarantees, measure
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, write

QUICK = Options(seeds=2, quick=True, jobs=1)
PROVED, FORMULA = "linear combination, proved", "linear combination, papers' formula"
UP = 1 + 1e-6


@pytest.fixture(scope="module")
def papers_result() -> Result:
    return mnist(QUICK)


@pytest.fixture(scope="module")
def full_batch_result() -> Result:
    return mnist_full_batch(QUICK)


@pytest.fixture(scope="module")
def replace_one_result() -> Result:
    return mnist_replace_one(QUICK)


@pytest.fixture(scope="module")
def checkpoints_result() -> Result:
    return checkpoints(QUICK)


def in_order(row: dict[str, Any], alone: dict[str, Any]) -> None:
    used = [name for name, weight in row["weights"].items() if weight > 0]
    assert row[FORMULA] <= row[PROVED] * UP
    assert row[PROVED] <= row["joint release"] * UP
    assert row["random selection"] <= max(alone[name]["epsilon by PLD"] for name in used) * UP
    assert row["joint release"] >= max(alone[name]["epsilon by PLD"] for name in used) / UP


def test_the_papers_portfolio(papers_result: Result) -> None:
    numbers = papers_result.numbers
    assert len(numbers["averages"]) == 3  # of a grid of 6, the corners are the models
    for row in numbers["averages"]:
        in_order(row, numbers["alone"])
        assert row["test accuracy of the average"]["runs"] == 2
        draw = sum(weight * numbers["alone"][name]["test accuracy"]["mean"] for name, weight in row["weights"].items())
        assert row["expected test accuracy of a draw"]["mean"] == pytest.approx(draw)
    for known in numbers["alone"].values():
        assert known["epsilon by PLD"] <= known["epsilon by RDP"] <= known["epsilon by RDP, papers' conversion"]
        assert 0.3 < known["test accuracy"]["mean"] < 1
    assert papers_result.configuration["data"] == "digits"


def test_frontiers_say_that_their_weights_were_chosen_by_looking(
    papers_result: Result, full_batch_result: Result, replace_one_result: Result, checkpoints_result: Result
) -> None:
    for result in (papers_result, full_batch_result, replace_one_result, checkpoints_result):
        for name, picture in result.pictures.items():
            if "frontier" in name or name == "mnist":
                assert picture["warning"] == CHOSEN_BY_TEST
            elif picture["kind"] == "lines":
                assert "warning" not in picture  # those weights are a grid
    assert papers_result.numbers["frontier"]["how the weights were chosen"] == CHOSEN_BY_TEST


def test_frontiers_show_the_spread(papers_result: Result) -> None:
    curves = {curve["label"]: curve for curve in papers_result.numbers["frontier"]["curves"]}
    assert len(curves) == 6
    assert {curve["standing"] for label, curve in curves.items() if "formula" in label} == {"conditional"}
    for curve in curves.values():
        assert all(low <= y <= high for low, y, high in zip(curve["low"], curve["y"], curve["high"], strict=True))
        assert curve["rule"] in curve["label"] or "formula" in curve["label"]
        assert curve["label"].endswith(curve["by"].upper())
        assert curve["x"] == sorted(curve["x"])
        assert np.sum(curve["weights"], axis=1) == pytest.approx(1)
    drawn = {line["label"]: line for line in papers_result.pictures["frontier"]["panels"][0]["lines"]}
    stairs, raw = drawn["linear combination, PLD"], curves["linear combination, PLD"]
    assert len(stairs["x"]) == len(stairs["y"]) == len(stairs["low"]) == 2 * len(raw["x"]) - 1
    for low, high in zip(stairs["x"], stairs["x"][1:], strict=False):
        assert low <= high
    assert all(low <= high for low, high in zip(stairs["y"], stairs["y"][1:], strict=False))


def test_heatmaps_are_those_of_the_paper_for_both_accounts(papers_result: Result) -> None:
    panels = papers_result.pictures["heatmap"]["panels"]
    assert [(panel["rule"], panel["standing"], panel["by"]) for panel in panels] == [
        ("selection", "proved", "rdp"),
        ("selection", "proved", "pld"),
        ("combination", "proved", "rdp"),
        ("combination", "proved", "pld"),
        ("combination", "conditional", "rdp"),
        ("combination", "conditional", "pld"),
    ]
    for proved, formula in zip(panels[2:4], panels[4:], strict=True):
        assert all(low <= high * UP for low, high in zip(formula["epsilons"], proved["epsilons"], strict=True))
    assert papers_result.pictures["heatmap"]["title"] == "digits: ε of every merge (RDP by the tight conversion)"
    colours = describe(papers_result.pictures["heatmap"]).colours()
    values = [value for panel in panels for value in panel["epsilons"]]
    assert (colours.low, colours.high) == (min(values), max(values)), "one scale for all that is compared"


@pytest.mark.parametrize("name", ["warm-up and decay", "constant rate", "Poisson twin", "logistic twin"])
def test_bounded_features_make_averages_cheap(full_batch_result: Result, name: str) -> None:
    numbers = full_batch_result.numbers[name]
    rows = {round(next(iter(row["weights"].values())), 3): row for row in numbers["averages"]}
    assert list(rows) == [0.02, 0.1, 0.5]
    for row in rows.values():
        in_order(row, numbers["alone"])
    small = rows[0.02]
    assert (
        small[PROVED] < 0.3 * small["random selection"]
    )  # where random selection pays nearly the whole of the less private model
    assert small[PROVED] < 0.3 * small["joint release"]
    assert small[PROVED] < 1.5 * small[FORMULA]
    assert small["theorem"] == ("coupled-coins" if "twin" in name else "transport")


def test_longer_training_with_decay_costs_and_convexity_helps(full_batch_result: Result) -> None:
    lengths = full_batch_result.numbers["length of training"]
    for rows in lengths.values():
        for row in rows:
            assert row[PROVED] <= row["linear combination, proved from smoothness alone"] * UP
    short, long = lengths["warm-up and decay"]
    assert short[PROVED] < 1.3 * short[FORMULA]
    assert long[PROVED] > 3 * long[FORMULA]
    for row in lengths["constant rate"]:
        assert row[PROVED] < 1.3 * row[FORMULA]


def test_what_the_bound_depends_on_is_stated(full_batch_result: Result) -> None:
    stated = full_batch_result.configuration["warm-up and decay"]
    recipe = stated["recipes"]["σ=1000"]
    assert (recipe["steps"], recipe["noise_multiplier"], recipe["warmup"], recipe["decay"]) == (40, 1000.0, 4, True)
    assert stated["smoothness β"] == pytest.approx(5.0)
    assert stated["Σηβ"]["σ=50"] == pytest.approx(1.0)
    said = full_batch_result.pictures["warm-up-and-decay"]["subtitle"]
    assert all(part in said for part in ("T = 40", "η ≤ 0.009524", "β = 5", "σ = 50, 1000"))


def test_three_full_batches_under_replace_one(replace_one_result: Result) -> None:
    """One step is 2/σ-GDP there; two models share their σ; what is proved pays only where clipping never binds."""
    for name, numbers in replace_one_result.numbers.items():
        assert replace_one_result.configuration[name]["adjacency"] == "replace-one"
        own = [known["epsilon by PLD"] for known in numbers["alone"].values()]
        assert own[0] == own[1] == pytest.approx(gaussian_epsilon(2 * 40**0.5 / 50, 1e-5), rel=1e-3)
        assert own[2] == pytest.approx(gaussian_epsilon(2 * 40**0.5 / 1000, 1e-5), rel=1e-3)
        for row in numbers["averages"]:
            in_order(row, numbers["alone"])
            assert row[LAST_ONLY] <= row[PROVED] * UP
            first, second, third = row["weights"].values()
            pays = row[PROVED] < 0.9 * row["joint release"]
            assert pays == (third > 0 and "never" in name)
            assert first + second + third == pytest.approx(1)


def test_one_heatmap_has_every_account(replace_one_result: Result) -> None:
    document = replace_one_result.pictures["heatmap-never-clipped-constant-rate"]
    assert document["adjacency"] == "replace-one"
    assert document["title"] == "digits, never clipped, constant rate: ε of every merge by PLD"
    drawn = {panel["title"]: panel for panel in document["panels"]}
    proved, hidden, formula = (
        drawn[title]["epsilons"] for title in (PROVED, "the same, nothing else published", "papers' formula")
    )
    assert drawn["papers' formula"]["standing"] == "conditional"
    assert {panel["standing"] for title, panel in drawn.items() if "formula" not in title} == {"proved"}
    for low, middle, high, joint in zip(formula, hidden, proved, drawn["joint release"]["epsilons"], strict=True):
        assert low <= middle * 1.001 and middle <= high * 1.001 and high <= joint * 1.001
    last = next(names for text, names in document["assumptions"].items() if text.startswith("nothing of these runs but"))
    assert last == ["the same, nothing else published"]


def test_heatmaps_of_all_portfolios_have_one_scale(replace_one_result: Result) -> None:
    drawn = [describe(document) for name, document in replace_one_result.pictures.items() if name.startswith("heatmap")]
    assert len({picture.title for picture in drawn}) == len(drawn) == 3
    values = [value for picture in drawn for triangle in picture.triangles for value in triangle.values if value is not None]
    for picture in drawn:
        assert (picture.colours().low, picture.colours().high) == (min(values), max(values))


@pytest.mark.parametrize(("last", "scale"), [((0.5, 4.0), (0.5, 4.0)), ((math.inf, 0.0), (2.0, 2.0))])
def test_a_scale_is_of_finite_positive_epsilons(
    last: tuple[float, float], scale: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge without a finite ε, or with ε = 0, does not end an experiment at its pictures."""
    epsilons = {"first": [0.0, math.inf, 2.0], "last": [math.inf, *last]}

    def drawn(portfolio: Portfolio, options: Options, name: str) -> Heatmap:
        surface = Surface("joint", "pld", "proved", "joint release", epsilons[name])
        return Heatmap(1e-5, "add-remove", 1.0, {}, ("a", "b", "c"), np.eye(3).tolist(), (surface,))

    monkeypatch.setattr(portfolio_pictures, "_heatmap_of_accounts", drawn)
    nothing: Any = dict.fromkeys(epsilons)
    documents = portfolio_pictures.heatmaps_of_accounts(nothing, QUICK, "digits")
    for name, document in documents.items():
        assert document["reach"] == list(scale) and document["title"] == f"digits, {name}: ε of every merge by PLD"
        describe(document).colours()
    (alone,) = portfolio_pictures.heatmaps_of_accounts({"last": nothing["last"]}, QUICK, "digits").values()
    assert bool(alone["reach"]) == (last == (0.5, 4.0))
    assert describe(alone).triangles[0].values[0] is None


def test_frontiers_of_kept_numbers_have_standard_errors(replace_one_result: Result) -> None:
    """Also where the spread of single runs was kept, as earlier results did."""
    for name, numbers in replace_one_result.numbers.items():
        curves = numbers["frontier"]["curves"]
        wide = [
            {
                **{key: value for key, value in curve.items() if key not in ("rule", "by")},
                **{
                    side: [y + 2**0.5 * (end - y) for y, end in zip(curve["y"], curve[side], strict=True)]
                    for side in ("low", "high")
                },
            }
            for curve in curves
        ]
        earlier = {**numbers["frontier"], "y": "mean test accuracy, low and high: mean ± deviation", "curves": wide}
        for kept in (numbers, {**numbers, "frontier": earlier}):
            panel = kept_frontier_panel(name, kept)
            for line, curve in zip(panel["lines"], curves, strict=True):
                assert (line["rule"], line["by"], line["standing"]) == (curve["rule"], curve["by"], curve["standing"])
                assert line["low"] == pytest.approx(curve["low"]) and line["high"] == pytest.approx(curve["high"])
        assert [mark["mark"] for mark in panel["points"]] == ["model"] * 3 + ["joint"]


def test_averages_beside_draws(replace_one_result: Result) -> None:
    for panel in describe(replace_one_result.pictures["averages"]).panels:
        assert panel.categories == ["(0.5, 0, 0.5)"]  # of the weights shown, the only one of a quick grid
        average, draw = panel.lines
        (row,) = (
            row
            for row in replace_one_result.numbers[panel.title]["averages"]
            if list(row["weights"].values()) == [0.5, 0.0, 0.5]
        )
        for line, key in ((average, AVERAGE), (draw, DRAW)):
            mean, error = row[key]["mean"], row[key]["std"] / 2**0.5
            assert line.band[0] == pytest.approx((mean - error, mean + error))


def test_checkpoints_of_one_run(checkpoints_result: Result) -> None:
    for numbers in checkpoints_result.numbers["mnist"].values():
        own = [known["epsilon by PLD"] for known in numbers["alone"].values()]
        assert list(numbers["alone"]) == ["epoch 1", "epoch 2", "epoch 3"]
        assert own == sorted(own)
        drawn = [row["epsilon by PLD"] for row in numbers["random selection"]]
        assert own[0] < drawn[0] < drawn[1] < drawn[2] < own[2]
        curves = {curve["label"]: curve for curve in numbers["frontier"]["curves"]}
        assert not any("formula" in label for label in curves)  # the runs are not independent
        for epsilon, weights in zip(*(curves["linear combination, PLD"][key] for key in ("x", "weights")), strict=True):
            latest = max(index for index, weight in enumerate(weights) if weight > 0)
            assert epsilon == pytest.approx(own[latest], rel=1e-3)
    assert [panel["title"] for panel in checkpoints_result.pictures["mnist"]["panels"]] == list(papers().recipes)


def test_results_are_written_without_paths(full_batch_result: Result, tmp_path: Path) -> None:
    paths = write(full_batch_result, tmp_path / "results", (".png",))
    text = paths[0].read_text()
    held = json.loads(text)
    assert held["software"]["numpy"] == np.__version__
    assert "/home" not in text
    assert str(tmp_path) not in text
    assert [path.suffix for path in paths[1:]] == [".png"] * 5
    assert all(path.stat().st_size > 1000 for path in paths[1:])


def test_randomness_is_never_shared() -> None:
    """Not between the runs of a repetition; that repetitions differ shows in their scores."""
    measured = measure(poisson_twin().sized(QUICK), [], replace(QUICK, seeds=4), "training")
    mechanisms = [model.mechanism for model in measured.portfolio.models]
    for field in ("run", "noise_fingerprint", "sampler_fingerprint"):
        assert len({getattr(mechanism, field) for mechanism in mechanisms}) == 2
    # Two may have equal scores by chance, about once in a thousand pairs.
    assert len({tuple(row) for row in measured.scores.tolist()}) >= 3


@pytest.mark.parametrize(
    ("setting", "convex"),
    [(papers(), None), (full_batch(1.0, True), "unclipped"), (poisson_twin(), "unclipped"), (logistic_twin(), "glm")],
)
def test_records_state_what_holds(setting: Any, convex: str | None) -> None:
    measured = measure(setting.sized(QUICK), [], replace(QUICK, seeds=1), "training")
    for model in measured.portfolio.models:
        assert isinstance(model.mechanism, DpSgd)
        assert model.mechanism.convex == convex
        assert model.mechanism.smoothness == pytest.approx(setting.smoothness)


def test_an_even_average_of_tensors() -> None:
    models = [{"weight": np.full((2, 3), value, np.float32), "bias": np.full(2, value, np.float32)} for value in (1.0, 2.0)]
    merged = average(models, (0.25, 0.75))
    assert merged["weight"].dtype == np.float32
    assert merged["weight"].tolist() == [[1.75] * 3] * 2
    assert merged["bias"].tolist() == [1.75] * 2


def test_the_papers_reference_values() -> None:
    """docs/theory.md §8, from records of the real setting (nothing is trained)."""
    from dpmerge.records import Model, Portfolio

    marks = [f"{index:064x}" for index in range(6)]
    records = [
        recipe.record(705, 60000, dataset="d", run=f"run{i}", noise=marks[2 * i], sampler=marks[2 * i + 1])
        for i, recipe in enumerate(papers().recipes.values())
    ]
    portfolio = Portfolio(tuple(Model(f"m{i}", record) for i, record in enumerate(records)))
    found = guarantees(portfolio, (1 / 3, 1 / 3, 1 / 3))
    assert found["random selection"] == pytest.approx(6.214, rel=2e-3)
    assert found["joint release"] == pytest.approx(7.927, rel=2e-3)
    assert found[FORMULA] == pytest.approx(0.871, rel=2e-3)


def test_deviations_are_those_of_single_runs() -> None:
    assert mean_and_deviation([[1.0, 2.0], [3.0, 2.0]]) == {"mean": [2.0, 2.0], "std": [pytest.approx(2**0.5), 0.0], "runs": 2}


def test_data_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist\.npz: no such file; name a folder"):
        mnist(Options(data=tmp_path, seeds=1, jobs=1))
