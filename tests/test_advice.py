"""Settings that make averages and noise pay, and warnings with numbers where they do not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dpmerge import Portfolio, combination
from dpmerge.cli import app
from dpmerge.training import LinearSetting, Recipe, advice, facts_of_linear, limits

R = math.sqrt(26)
RECIPE = Recipe(steps=60, learning_rate=0.2, clip=7.22, noise_multiplier=0.6, rate=0.05)


def test_the_limits_are_those_of_the_theorem() -> None:
    """At the limit ε is what non-expansive steps cost, whatever the rate; a little above, steps drive models apart."""
    for loss, clip in (("softmax", 7.22), ("one-vs-rest", 0.5)):
        for rate, decay in ((0.05, 0.0), (None, 0.0), (0.05, 0.05)):
            recipe = replace(RECIPE, clip=clip, rate=rate, weight_decay=decay)
            setting = LinearSetting(recipe, loss, 4000, R)  # type: ignore[arg-type]
            most = setting.largest_learning_rate(1, 1e-5)
            if rate is None and not decay:
                assert most == pytest.approx(2 / facts_of_linear(loss, clip, R)[0])  # type: ignore[arg-type]

            def told(learning_rate: float, setting: LinearSetting = setting) -> float:
                moved = replace(setting, recipe=replace(setting.recipe, learning_rate=learning_rate))
                # Noise in units of the rate: then every rate that expands nothing costs the same.
                return combination(moved.alike(1), {"run-0": 1.0}, noise=0.3 * learning_rate).guarantee(delta=1e-5).epsilon

            if not decay:
                assert told(most) == pytest.approx(told(most / 3), rel=0.01)  # a tenth of δ goes to larger batches
            assert told(1.1 * most) > 1.02 * told(most)
    wide = LinearSetting(RECIPE, "softmax", 4000, R)
    assert limits(wide, 1, 1e-5)["least_clip"] == pytest.approx(math.sqrt(52), abs=2e-3)
    assert limits(replace(wide, loss="one-vs-rest"), 1, 1e-5)["least_clip"] == 0.0
    for clip, convex in ((wide.least_clip(), "unclipped"), (wide.least_clip() * (1 - 1e-9), None)):
        assert facts_of_linear("softmax", clip, R)[1] == convex


def test_warnings_have_numbers_that_hold() -> None:
    setting = LinearSetting(RECIPE, "softmax", 4000, R)
    assert advice([("a", replace(setting, recipe=replace(RECIPE, learning_rate=0.1)))], 1e-5) == []
    fast = replace(setting, recipe=replace(RECIPE, learning_rate=0.2))
    (text,) = advice([("a", fast), ("b", fast)], 1e-5)
    most = limits(fast, 2, 1e-5)["largest_learning_rate"]
    assert text.startswith(f"learning rate 0.2 is above {most:g}: proved ε of the average of a, b with as much noise")
    now, below = (float(part) for part in (text.split("1e-05: ")[1].split(";")[0], text.rsplit(": ", 1)[1]))
    slow = replace(fast, recipe=replace(RECIPE, learning_rate=most))
    assert 0 <= now - fast.epsilon_of_average(2, 1e-5) <= 0.01 and 0 <= below - slow.epsilon_of_average(2, 1e-5) <= 0.01
    assert below < 0.8 * now
    (text,) = advice([("a", replace(setting, recipe=replace(RECIPE, clip=1.0)))], 1e-5)
    assert text.startswith("clip 1 is below 7.212, √2 times norm_bound 5.09902, so clipping may bind: proved ε of a alone")
    assert "with model one-vs-rest at this clip" in text and "learning rates at most" in text
    silent = replace(setting, recipe=replace(RECIPE, clip=1.0, noise_multiplier=0.0))
    assert advice([("a", silent)], 1e-5) == []


def test_the_command_warns_and_says_the_limits(tmp_path: Path) -> None:
    run: dict[str, Any] = {"model": "softmax", "learning_rate": 3.0, "rate": 0.2, "steps": 5, "clip": 2.01}
    runs = {"a": {"noise_multiplier": 1}, "b": {"noise_multiplier": 1}}
    path = tmp_path / "portfolio.yaml"
    path.write_text(yaml.safe_dump({"data": "digits", "norm_bound": 1.415, "defaults": run, "runs": runs}))
    command = ["train", str(path), "--out", str(tmp_path / "out"), "--jobs", "1", "--delta", "1e-6"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.stderr.startswith("warning: learning rate 3 is above 1.") and "at δ = 1e-06" in result.stderr
    assert "averages and noise at release pay with a clip of 2.002 or more, learning rates up to 1." in result.stdout
    command[3] = str(tmp_path / "again")
    document = json.loads(CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False).stdout)
    assert document["limits"]["a"]["least_clip"] == 2.002 and len(document["warnings"]) == 1
    document = json.loads(CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False).stdout)
    assert document["warnings"] == [] and len(Portfolio(tmp_path / "again")) == 2  # nothing is left to be trained
