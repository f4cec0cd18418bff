"""`dpmerge train --design`: settings within the limits, targets that are met as computed, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from dpmerge import combination, joint
from dpmerge.cli import app
from dpmerge.errors import DpmergeError, TargetError, TrainingError
from dpmerge.planning import training_variance
from dpmerge.training import LinearSetting, PortfolioFile, Recipe, design

SETTING = LinearSetting(
    Recipe(steps=40, learning_rate=0.5, clip=1.0, noise_multiplier=1.0, rate=0.1), "softmax", 3000, math.sqrt(2)
)


def test_a_design_serves_its_targets_within_the_limits() -> None:
    told: list[str] = []
    found = design(SETTING, runs=2, targets=[4.0, 0.5, 4.0], delta=1e-5, progress=told.append)
    made = found.setting
    recipe = made.recipe
    assert recipe.rate is not None and recipe.learning_rate <= made.largest_learning_rate(2, 1e-5)
    assert recipe.clip >= made.least_clip() and made.facts[1] == "unclipped"
    # The same training: what is rounded away is little.
    assert 0.97 * 20 <= recipe.learning_rate * recipe.steps <= 20 and recipe.rate * recipe.steps == pytest.approx(4, rel=1e-2)
    # The fewest steps: one fewer would take a learning rate that is too large.
    fewer = replace(made, recipe=replace(recipe, steps=round(recipe.steps / 1.1), rate=4 / round(recipe.steps / 1.1)))
    assert 20 / fewer.recipe.steps > fewer.largest_learning_rate(2, 1e-5)
    assert [one.epsilon for one in found.served] == [0.5, 4.0] and told[-1].startswith("noise for an average of ")
    portfolio = made.alike(found.averaged)
    weights = dict.fromkeys(portfolio.names, 1 / found.averaged)
    assert found.composed == joint(portfolio, weights).guarantee(delta=1e-5).epsilon > 4.0
    for one in found.served:
        guarantee = combination(portfolio, weights, noise=one.release_noise).guarantee(delta=1e-5)
        assert 0.97 * one.epsilon <= guarantee.epsilon <= one.epsilon
        own = (training_variance(portfolio.models[0]) or 0.0) / found.averaged
        assert one.deviation == pytest.approx(math.sqrt(own + one.release_noise**2))
    # More noise in the training would be dearer somewhere, less would hardly be cheaper anywhere.
    quiet = replace(made, recipe=replace(recipe, noise_multiplier=recipe.noise_multiplier / 5))
    own = (training_variance(quiet.alike(1).models[0]) or 0.0) / 2
    weights = dict.fromkeys(quiet.alike(2).names, 0.5)
    room = math.sqrt(found.served[1].deviation ** 2 / 1.1**2 - own)
    assert combination(quiet.alike(2), weights, noise=room).guarantee(delta=1e-5).epsilon > 4.0


def test_much_training_in_few_passes_is_full_batches() -> None:
    setting = replace(SETTING, recipe=replace(SETTING.recipe, rate=None, steps=30, learning_rate=1.0), loss="one-vs-rest")
    found = design(setting, runs=1, targets=[1.0], delta=1e-5)
    recipe = found.setting.recipe
    assert (recipe.rate, recipe.steps, recipe.learning_rate, recipe.clip) == (None, 30, 1.0, 1.0)
    assert found.fields()["full_batch"] is True
    # Full batches: M = Ts/√(Tν² + τ²), so any division of the noise has the deviation of the closed form (theory.md §9.3).
    deviation = found.served[0].deviation
    assert 30 * 1.0 / 3000 / deviation == pytest.approx(0.27, abs=0.01)  # μ of (1, 1e-5)


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"runs": 0}, TrainingError, "at least one run and one target"),
        ({"targets": []}, TrainingError, "at least one run and one target"),
        ({"targets": [0.0]}, TargetError, "epsilon is 0"),
        ({"targets": [math.nan]}, TargetError, "epsilon is nan"),
        ({"delta": 0.0}, TargetError, "delta is 0"),
    ],
)
def test_designs_that_mean_nothing_are_refused(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        design(SETTING, **{"runs": 1, "targets": [1.0], "delta": 1e-5, **changes})


def test_recipes_that_cannot_be_designed_are_refused() -> None:
    for recipe, text in (
        (replace(SETTING.recipe, warmup=3), "leave out warmup and decay"),
        (replace(SETTING.recipe, decay=True), "leave out warmup and decay"),
        (replace(SETTING.recipe, learning_rate=1e5), "takes more than 100000 steps"),
    ):
        with pytest.raises(TrainingError, match=text):
            design(replace(SETTING, recipe=recipe), runs=1, targets=[1.0], delta=1e-5)


def test_the_command_prints_what_can_be_trained(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"x_train": rng.standard_normal((400, 5)), "x_test": rng.standard_normal((20, 5))}
    np.savez(tmp_path / "all.npz", **arrays, y_train=np.arange(400) % 2, y_test=np.arange(20) % 2)
    content = {
        "data": "all.npz",
        "dataset": "mine",
        "classes": 2,
        "norm_bound": 2,
        "defaults": {"model": "logistic", "learning_rate": 0.5, "full_batch": True, "steps": 10, "clip": 1},
        "runs": {"a": {}, "b": {}},
    }
    path = tmp_path / "portfolio.yaml"
    path.write_text(yaml.safe_dump(content))
    command = ["train", str(path), "--design", "--epsilon", "1", "--epsilon", "4"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "ε by composition" in result.stdout
    settings = yaml.safe_load(result.stdout.split("\n\n")[0])
    path.write_text(yaml.safe_dump({**content, **settings}))
    assert set(PortfolioFile.load(path).runs) == {"a", "b"}
    document = json.loads(CliRunner().invoke(app, [*command, "--json", "--examples", "4000"], catch_exceptions=False).stdout)
    assert document["examples"] == 4000 and [one["epsilon"] for one in document["targets"]] == [1.0, 4.0]
    assert not list(tmp_path.glob("out*"))
    for arguments, text in (
        ([], "--out is needed"),
        (["--out", "x", "--epsilon", "1"], "--epsilon and --examples belong to --design"),
    ):
        refused = CliRunner().invoke(app, ["train", str(path), *arguments])
        assert isinstance(refused.exception, DpmergeError) and text in str(refused.exception)
    runs: dict[str, Any] = {"a": {}, "b": {"steps": 3}}
    path.write_text(yaml.safe_dump({**content, "runs": runs}))
    with pytest.raises(TrainingError, match="the runs differ"):
        PortfolioFile.load(path, {"noise_multiplier": 1.0}).one_setting(100)
    parts = {**content["defaults"], "full_batch": None, "rate": 0.1, "shards": 2}  # type: ignore[dict-item]
    path.write_text(yaml.safe_dump({**content, "defaults": parts, "runs": {"a": {}}}))
    with pytest.raises(TrainingError, match="without from and shards"):
        PortfolioFile.load(path, {"noise_multiplier": 1.0}).one_setting(100)
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if key != "norm_bound"}))
    with pytest.raises(TrainingError, match="linear models with a norm_bound"):
        PortfolioFile.load(path, {"noise_multiplier": 1.0}).one_setting(100)


def test_a_design_is_a_table_and_a_line_of_the_file() -> None:
    full = replace(SETTING, recipe=replace(SETTING.recipe, rate=None))
    found = design(full, runs=2, targets=[1.0, 4.0], delta=1e-4)
    read = yaml.safe_load(f"{{{found.defaults}}}")
    assert read == found.fields() and read["full_batch"] is True
    assert found.defaults in repr(found) and found._repr_html_().count("<tr>") == 4
    assert [row["ε"] for row in found.rows()] == ["1", "4"]
