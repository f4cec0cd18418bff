"""Two verifiers that share no code agree: on every kind of certificate, tightly, and on forgeries."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from attacks.victim import forge
from dpmerge.records import Adjacency, Model
from dpmerge.release import release, verify
from dpmerge.rules import Accounting, RuleName
from tests import builders
from tests.release_builders import DELTA, certificate, chosen, on_disk, runs
from verifier import recheck as second

SOURCE = Path(second.__file__)
CONVEX: dict[str, Any] = {"smoothness": 0.1, "convex": "unclipped"}
POISSON: dict[str, Any] = {"sampling": 0.05, "batch": 50.0}
SHOWN = Accounting(only_release=False)


def test_it_is_small_and_shares_no_code() -> None:
    text = SOURCE.read_text()
    assert len(text.splitlines()) < 600
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) == {"numpy", "scipy"}


def two(adjacency: Adjacency, sigmas: tuple[float, float], **settings: Any) -> list[Model]:
    return [builders.dp_sgd(name, sigma=s, adjacency=adjacency, **settings) for name, s in zip("ab", sigmas, strict=True)]


def agreed(tmp_path: Path, models: list[Model], rule: RuleName, weights: dict[str, float], **options: Any) -> tuple[Path, str]:
    """The release, which both hold, the second within half a percent of ε on either side; and the theorem."""
    portfolio = on_disk(tmp_path / "runs", *models)
    out = release(portfolio, chosen(portfolio, rule, weights=portfolio.weights(weights), **options), tmp_path / "out").folder
    return out, agree(out)


def agree(out: Path) -> str:
    assert verify(out).code == 0
    assert second.recheck(out)[0] == "holds", second.recheck(out)
    claim = second.Claim(certificate(out))
    low, high = claim.bounds(claim.epsilon * (1 - second.TOLERANCE) - 1e-6)
    assert high > claim.delta, "an ε that is half a percent smaller would hold as well: one of the two is not tight"
    assert low <= high
    return str(claim.guarantee["theorem"])


EVEN = {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("rule", ["selection", "joint"])
def test_sampled_steps(rule: RuleName, adjacency: Adjacency, tmp_path: Path) -> None:
    agreed(tmp_path, two(adjacency, (1.0, 2.0), steps=300, sampling=0.02, batch=50.0), rule, EVEN)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_averages(adjacency: Adjacency, tmp_path: Path) -> None:
    theorems = set()
    for name, models, weights, options in (
        ("full", two(adjacency, (8.0, 40.0), steps=30, smoothness=0.2), EVEN, {"accounting": SHOWN}),
        ("alone", [builders.dp_sgd("a", sigma=8.0, steps=30, adjacency=adjacency, **CONVEX)], {"a": 1.0}, {"noise": 0.02}),
        ("hidden", two(adjacency, (8.0, 40.0), steps=30, **CONVEX), EVEN, {"noise": 0.2}),
        ("coins", two(adjacency, (0.3, 3.0), steps=12, **POISSON, **CONVEX), {"a": 0.02, "b": 0.98}, {"accounting": SHOWN}),
        ("means", [builders.gaussian(x, noise_std=s, adjacency=adjacency) for x, s in (("a", 2.0), ("b", 4.0))], EVEN, {}),
    ):
        theorems.add(agreed(tmp_path / name, models, "combination", weights, **options)[1])
    sampled = {"transport-replace-one"} if adjacency == "replace-one" else {"coupled-coins"}
    assert theorems == {"transport", "hidden-run", "mean-estimation-combination"} | sampled
    again = dpmerge.renoise(tmp_path / "alone" / "out", out=tmp_path / "again", delta=DELTA, noise=0.05)
    assert agree(again.folder) == "hidden-run"


def test_a_window_of_poisson_steps(tmp_path: Path) -> None:
    models = two("add-remove", (2.0, 2.0), steps=40, smoothness=0.5, **POISSON)
    assert agreed(tmp_path, models, "combination", EVEN, accounting=SHOWN)[1] == "transport-poisson"


def test_tempered_selection(tmp_path: Path) -> None:
    agreed(tmp_path, two("add-remove", (4.0, 8.0), steps=10), "tempered", EVEN)


@pytest.mark.parametrize("rule", ["selection", "joint", "combination", "tempered"])
def test_a_forged_guarantee_is_not_held(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    out = release(portfolio, chosen(portfolio, rule), tmp_path / "out").folder
    assert second.recheck(out)[0] == "holds"

    def halve(content: dict[str, Any]) -> None:
        content["guarantee"]["epsilon"] /= 2

    forge(out, halve)
    assert second.recheck(out)[0] == "BROKEN" and verify(out).code == 1


def test_edits_of_files_are_noticed(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    out = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out").folder
    text = (out / "certificate.json").read_text()
    (out / "certificate.json").write_text(text.replace('"clip": 1.0', '"clip": 2.0'))
    assert second.recheck(out)[0] == "BROKEN"
    (out / "certificate.json").write_text(text)
    (out / "model.safetensors").rename(tmp_path / "elsewhere")
    (out / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert second.recheck(out) == ("BROKEN", "'model.safetensors' is no regular file here")


@pytest.mark.parametrize(
    ("mechanism", "what"),
    [
        ({"kind": "rdp", "orders": [2.0, 8.0, 32.0], "values": [0.02, 0.08, 0.32]}, "a record of kind 'rdp'"),
        ({"kind": "dp-ftrl", "noise_multiplier": 9.0, "steps": 30, "restarts": 1}, "a record of kind 'dp-ftrl'"),
    ],
)
def test_what_it_does_not_know_it_does_not_call_held(mechanism: dict[str, Any], what: str, tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", builders.model("a", mechanism, "replace-one"))
    out = release(portfolio, chosen(portfolio, "joint", weights=portfolio.weights({"a": 1.0})), tmp_path / "out").folder
    verdict, why = second.recheck(out)
    assert verdict == "not recomputed" and what in why
    told = subprocess.run([sys.executable, str(SOURCE), str(out)], capture_output=True, text=True, check=False)
    assert told.returncode == 2 and "not recomputed" in told.stdout


def test_hidden_poisson_runs_are_not_recomputed(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", *two("add-remove", (2.0, 2.0), steps=20, **POISSON, **CONVEX))
    how = chosen(portfolio, "combination", weights=portfolio.weights(EVEN), noise=0.02)
    out = release(portfolio, how, tmp_path / "out").folder
    assert json.loads((out / "certificate.json").read_text())["guarantee"]["theorem"] == "hidden-run"
    assert second.recheck(out)[0] == "not recomputed"
