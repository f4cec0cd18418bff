"""What every target would give: exact selections, points of combinations, pictures, measured scores."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from safetensors.numpy import save_file
from typer.testing import CliRunner

import dpmerge
from dpmerge import plan
from dpmerge.cli import app
from dpmerge.cli.options import parse_targets
from dpmerge.cli.scoring import NoisyScore
from dpmerge.errors import EvaluationError, TargetError, UtilityError
from dpmerge.figures import describe
from dpmerge.planning import Utilities, edge, frontier, heatmap, selection_optimum, simplex_grid
from dpmerge.profiles import DIRECTIONS, accuracy, gaussian_delta, grids_of_accuracy, run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, Combination, Joint, Selection, build
from dpmerge.tensors import MergedScore, find_evaluator
from dpmerge_lab.tasks import digits
from tests import builders
from tests.effort import EFFORT
from tests.test_jobs import started_cluster

DELTA = 1e-5
# A last iterate alone may cost less than the papers' formula says of every step, and takes longer to account for.
EVERY_STEP = Accounting(only_release=False)


def here(function: Any, items: Any, *, keys: Any) -> list[Any]:
    """The mapping function in this process; every piece has a key of its own."""
    assert len(set(keys)) == len(items)
    return [function(item) for item in items]


def sampled() -> Portfolio:
    """Three Poisson-sampled runs of twelve steps."""
    common = {"steps": 12, "sampling": 0.05, "batch": 50, "smoothness": 0.2, "convex": "unclipped"}
    return builders.portfolio(
        builders.dp_sgd("a", sigma=0.6, **common),  # type: ignore[arg-type]
        builders.dp_sgd("b", sigma=0.9, clip=2.0, **common),  # type: ignore[arg-type]
        builders.dp_sgd("c", sigma=2.0, **common),  # type: ignore[arg-type]
    )


UTILITY = {"a": 0.93, "b": 0.9, "c": 0.8}


# --- curves -----------------------------------------------------------------------------------------------------------


@settings(max_examples=5 * EFFORT, deadline=None)
@given(
    sigma=st.floats(0.4, 4),
    rate=st.floats(0.001, 0.6),
    steps=st.integers(1, 300),
    low=st.floats(0.01, 2),
    seed=st.integers(0, 99),
)
@example(sigma=0.4375, rate=0.03, steps=73, low=2.0, seed=0)
def test_many_deltas_are_the_single_ones_and_wide_curves_are_as_good(
    sigma: float, rate: float, steps: int, low: float, seed: int
) -> None:
    profile = run_profile(builders.dp_sgd("m", sigma=sigma, sampling=rate, steps=steps)).profile
    high = low + 5
    epsilons = np.sort(np.random.default_rng(seed).uniform(low, high, 5))
    for direction in DIRECTIONS:
        curve = profile.wide_curve(direction, low, high, DELTA)
        many = curve.deltas(epsilons)
        assert np.all(np.diff(many) <= 0)
        for epsilon, value in zip(epsilons.tolist(), many.tolist(), strict=True):
            # Sums in another order, and a larger allowance for rounding.
            assert value == pytest.approx(curve.delta(epsilon), rel=1e-6, abs=1e-9 * DELTA + 9 * curve.noise(epsilon))
            precise = profile.curve(direction, epsilon, None)
            # Near the largest loss δ is next to nothing, and what one curve allows for rounding is more than it.
            assert value == pytest.approx(precise.delta(epsilon), rel=5e-3, abs=1e-6 * DELTA + precise.noise(epsilon))


def test_curves_of_every_kind_answer_many_questions() -> None:
    models = [
        builders.gaussian("g", noise_std=2.0),
        builders.model("n", {"kind": "non-private"}),
        builders.model("r", {"kind": "rdp", "orders": [2.0, 8.0, 32.0], "values": [0.1, 0.4, 1.6]}),
        builders.model("e", {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6}),
    ]
    epsilons = np.array([0.1, 0.9, 1.1, 3.0])
    for one in models:
        curve = run_profile(one).profile.wide_curve("remove", 0.1, 3.0, DELTA)
        assert curve.deltas(epsilons).tolist() == pytest.approx([curve.delta(e) for e in epsilons.tolist()], rel=1e-9)


def test_accuracy_is_a_setting_of_a_block_and_never_costs_validity() -> None:
    weights = sampled().weights({"a": 0.2, "b": 0.3, "c": 0.5})
    fine = Combination(weights, 0.0).guarantee(delta=DELTA, by="pld").epsilon
    for value, limit in ((1e-6, 1e-4), (1e-4, 1e-3), (1e-3, 1e-2)):
        with grids_of_accuracy(value):
            assert accuracy() == value
            found = Combination(weights, 0.0).guarantee(delta=DELTA, by="pld").epsilon
        assert found == pytest.approx(fine, rel=limit)
    assert accuracy() == 1e-5
    with grids_of_accuracy(1e-7):
        assert fine >= Combination(weights, 0.0).guarantee(delta=DELTA, by="pld").epsilon * (1 - 1e-9)


def test_simplex_grid() -> None:
    grid = simplex_grid(3, 0.01)
    assert grid.shape == (5151, 3)
    assert len({tuple(row) for row in grid.tolist()}) == 5151
    assert np.all(np.abs(grid.sum(axis=1) - 1) < 1e-12)
    for step in (0.3, 0.0, -0.1, 2.0):
        with pytest.raises(TargetError, match="does not divide 1"):
            simplex_grid(3, step)


# --- the frontier -----------------------------------------------------------------------------------------------------


def test_frontier_is_exact_for_selection_and_true_for_combinations() -> None:
    portfolio = sampled()
    targets = [0.4, 1.0, 3.5, 6.0]
    document = frontier(
        portfolio,
        delta=DELTA,
        epsilons=targets,
        utility=Utilities.stated(portfolio, UTILITY),
        edge_points=2,
        run=here,
        accounting=EVERY_STEP,
    ).as_dict()
    profiles = [run_profile(model).profile for model in portfolio.models]
    curves = {(curve["rule"], curve["by"], curve["standing"]): curve for curve in document["curves"]}
    assert len(curves) == 6
    for by in ("pld", "rdp"):
        points = curves["selection", by, "proved"]["points"]
        assert [point["epsilon"] for point in points] == targets
        for point in points:
            best = selection_optimum(profiles, [0.93, 0.9, 0.8], point["epsilon"], DELTA, Accounting(by))
            assert (best is None) == (point["utility"] is None)
            if best is not None:
                assert point["utility"] == pytest.approx(best.utility, abs=2e-5)
                with grids_of_accuracy(1e-6):  # the returned weights hold on an independent, finer path
                    rule = Selection(portfolio.weights(point["weights"]))
                    assert rule.guarantee(epsilon=point["epsilon"], by=by).delta <= DELTA * (1 + 1e-9)
    for standing, assumed in (("proved", None), ("conditional", 0.0)):
        for by in ("pld", "rdp"):
            points = curves["combination", by, standing]["points"]
            assert len(points) == 3 + 2 * 2
            best_so_far = -math.inf
            for point in points:
                combined = Combination(portfolio.weights(point["weights"]), assumed, only_release=False)
                exact = combined.guarantee(delta=DELTA, by=by).epsilon  # type: ignore[arg-type]
                assert point["epsilon"] == pytest.approx(exact, rel=1e-3)
                worth = sum(UTILITY[name] * weight for name, weight in point["weights"].items())
                assert point["utility"] == pytest.approx(worth)
                assert point["on_frontier"] == (point["utility"] > best_so_far)
                best_so_far = max(best_so_far, point["utility"])
    assert document["warning"] is None
    assert document["joint"]["epsilon"] > max(model["epsilon"]["pld"] for model in document["models"])


def test_frontier_on_a_grid_and_without_utilities() -> None:
    portfolio = sampled()
    document = frontier(
        portfolio, delta=DELTA, accounting=Accounting(assume_smoothness=0.0), epsilons=[1.0, 3.0], step=0.5, run=here
    ).as_dict()
    assert document["utilities_source"] == "less predicted noise is more useful"
    formula = [curve for curve in document["curves"] if curve["rule"] == "combination"]
    assert [curve["standing"] for curve in formula] == ["conditional", "conditional"]
    assert all("papers' formula" in curve["title"] and len(curve["points"]) == 6 for curve in formula)


def test_no_formula_for_checkpoints_of_one_run() -> None:
    same = {"run": "one", "noise_fingerprint": "n", "sampler_fingerprint": "s"}
    portfolio = builders.portfolio(*(builders.dp_sgd(f"at-{k}", sigma=20.0, steps=k, **same) for k in (10, 20)))  # type: ignore[arg-type]
    found = frontier(portfolio, delta=DELTA, epsilons=[1.0, 3.0], step=0.5, run=here, scorer=None)
    titles = {curve.title for curve in found.curves}
    assert "linear combination" in titles and not any("formula" in title for title in titles)
    assert not any("formula" in rule for rules in found.assumptions.values() for rule in rules)


def heads() -> Portfolio:
    """Convex models of one recipe, and one with larger clips: full batches, so that everything has a closed form."""
    common = {"steps": 25, "eta": 1.0, "batch": 10.0, "smoothness": 0.5, "convex": "glm"}
    return builders.portfolio(
        *(builders.dp_sgd(n, sigma=4.0, clip=clip, **common) for n, clip in (("a", 1.0), ("b", 1.0), ("c", 2.0)))  # type: ignore[arg-type]
    )


def test_the_main_line_is_the_average_with_noise() -> None:
    """Full batches: a model alone with noise τ has μ = Ts/√(Tν² + τ²) (docs/theory.md §9.3)."""
    portfolio = heads()
    found = frontier(portfolio, delta=DELTA, epsilons=[0.5, 1.0, 4.0], run=here)
    line, *others = found.curves
    assert line.continuous and line.title == "average with noise at release"
    assert {curve.rule for curve in others} == {"selection"}  # averages without noise are not needed
    epsilons, utilities = [one.epsilon for one in line.points], [one.utility for one in line.points]
    assert epsilons == sorted(epsilons) and utilities == sorted(utilities)  # type: ignore[type-var]
    assert min(epsilons) <= 0.5 and max(epsilons) >= 4.0 and len(epsilons) >= 8
    widest = max(math.log(high / low) for low, high in itertools.pairwise(epsilons))
    assert widest < 1.0
    for point in line.points:
        assert point.weights is not None and point.utility_kind == "predicted"
        rule = build("combination", portfolio.weights(point.weights), noise=point.noise)
        assert point.epsilon == pytest.approx(rule.guarantee(delta=DELTA).epsilon, rel=1e-3)
        if point.weights["c"] == 0:
            like = max(point.weights.values())  # 1 or ½: the runs' own noise is averaged, what a record does is not
            mu = 25 * 0.1 / math.sqrt(25 * 0.4**2 * like + point.noise**2)
            assert float(gaussian_delta(mu, point.epsilon)) == pytest.approx(DELTA, rel=1e-2)
    document = found.as_dict()["curves"][0]
    assert document["continuous"] and all(point["noise"] >= 0 for point in document["points"])
    picture = describe(found)
    assert picture.panels[0].lines[0].label == line.title and not picture.panels[0].lines[0].steps
    assert describe(found.as_dict()).panels[0].lines[0] == picture.panels[0].lines[0]


def test_where_noise_does_not_pay_averages_without_it_are_drawn() -> None:
    networks = builders.portfolio(*(builders.dp_sgd(n, sigma=s, steps=9) for n, s in (("a", 4.0), ("b", 9.0))))
    for portfolio, how in ((networks, Accounting()), (heads(), EVERY_STEP)):
        found = frontier(portfolio, delta=DELTA, epsilons=[1.0], run=here, accounting=how, edge_points=1)
        assert {curve.rule for curve in found.curves} == {"selection", "combination"}


def test_looking_is_said(tmp_path: Path) -> None:
    portfolio = sampled()
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"schema": 1, "measured_on": "public", "models": "private", "utilities": UTILITY}))
    looked = Utilities.load(portfolio, path)
    found = frontier(portfolio, delta=DELTA, epsilons=[1.0], utility=looked, edge_points=1, run=here, accounting=EVERY_STEP)
    document = found.as_dict()
    assert document["provenance"] == "after-looking"
    assert "joint release" in document["warning"]


def test_refusals(tmp_path: Path) -> None:
    portfolio = sampled()
    stated = Utilities.stated(portfolio, UTILITY)

    def ask(**changes: Any) -> None:
        frontier(portfolio, **{"delta": DELTA, "epsilons": [1.0], "run": here, **changes})

    with pytest.raises(TargetError, match="delta"):
        ask(delta=0.0)
    with pytest.raises(TargetError, match="epsilon"):
        ask(epsilons=[1.0, -1.0])
    with pytest.raises(TargetError, match="at least one target"):
        ask(epsilons=[])
    with pytest.raises(TargetError, match="at least 1"):
        ask(edge_points=0)
    with pytest.raises(TargetError, match="does not divide"):
        ask(step=0.3)
    with pytest.raises(UtilityError, match="not both"):
        ask(utility=stated, scorer=lambda weights: 0.0)
    content = {"schema": 1, "measured_on": "v", "models": "private", "utilities": UTILITY}
    path = tmp_path / "private.json"
    path.write_text(json.dumps({**content, "validation": {"records": 100, "disjoint": True}}))
    with pytest.raises(UtilityError, match="would publish them"):
        ask(utility=Utilities.load(portfolio, path))


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "0:3", "3:1", "1:inf", "1:2:1", "1:2:x", "1,,2", "1:2:1000000000"])
def test_bad_targets_are_refused(text: str) -> None:
    with pytest.raises(TargetError, match="targets"):
        parse_targets(text)


def test_targets() -> None:
    assert parse_targets("0.5, 1,2") == [0.5, 1.0, 2.0]
    spaced = parse_targets("0.3:8")
    assert len(spaced) == 100
    assert (spaced[0], spaced[-1]) == (0.3, 8.0)
    assert np.allclose(np.diff(np.log(spaced)), math.log(8 / 0.3) / 99)
    assert len(parse_targets("0.3:8:200")) == 200


def test_every_option_of_a_plan_holds_on_an_independent_path() -> None:
    """Of three models that count every step, and of two whose last iterates alone are released."""
    whole = sampled()
    for portfolio, epsilon, only_release in ((whole, 0.7, False), (Portfolio(whole.models[:2]), 3.0, True)):
        how = Accounting(only_release=only_release)
        utility = {name: UTILITY[name] for name in portfolio.names}
        found = plan(portfolio, epsilon=epsilon, delta=DELTA, utility=utility, accounting=how)
        with grids_of_accuracy(1e-6):
            for option in found.options:
                if not option.feasible or option.rule not in ("selection", "combination"):
                    continue
                rule = build(option.rule, option.weights, how, noise=option.noise)
                if option.noise > 0:  # the noise was found for ε at δ
                    assert rule.guarantee(delta=DELTA).epsilon <= epsilon
                else:
                    assert rule.guarantee(epsilon=epsilon).delta <= DELTA * (1 + 1e-9)


# --- the simplex ------------------------------------------------------------------------------------------------------


def test_heatmap_is_the_rules() -> None:
    portfolio = sampled()
    for assumed, step, count in ((None, 1 / 3, 10), (0.0, 0.5, 6)):
        document = heatmap(
            portfolio, delta=DELTA, accounting=replace(EVERY_STEP, assume_smoothness=assumed), step=step, run=here
        ).as_dict()
        assert len(document["points"]) == count
        assert [(panel["rule"], panel["by"]) for panel in document["panels"]] == [
            ("selection", "rdp"),
            ("selection", "pld"),
            ("combination", "rdp"),
            ("combination", "pld"),
        ]
        for panel in document["panels"]:
            combined = panel["rule"] == "combination"
            if assumed is not None and not combined:
                continue  # selection assumes nothing of smoothness: as above
            assert panel["standing"] == ("conditional" if combined and assumed == 0 else "proved")
            for point, epsilon in zip(document["points"], panel["epsilons"], strict=True):
                weights = portfolio.weights(dict(zip(portfolio.names, point, strict=True)))
                rule = Combination(weights, assumed, only_release=False) if combined else Selection(weights)
                assert epsilon == pytest.approx(rule.guarantee(delta=DELTA, by=panel["by"]).epsilon, rel=1e-3)


def test_heatmap_needs_three_models() -> None:
    two = builders.portfolio(builders.gaussian("a", noise_std=1.0), builders.gaussian("b", noise_std=2.0))
    with pytest.raises(TargetError, match="three models"):
        heatmap(two, delta=DELTA, run=here)


# --- merged and measured ----------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A portfolio on disk: three noisy ridge regressions of the digits, with records."""
    train, _ = digits.load()
    one_hot = np.eye(digits.CLASSES)[train.labels]
    features = np.hstack([train.images, np.ones((len(train.labels), 1))])
    solved = np.linalg.solve(features.T @ features + 0.1 * np.eye(65), features.T @ one_hot)
    rng = np.random.default_rng(0)
    for name, sigma, noise in (("a", 0.8, 0.01), ("b", 1.5, 0.1), ("c", 4.0, 0.4)):
        noisy = (solved + noise * rng.standard_normal(solved.shape)).astype(np.float32)
        folder = tmp_path / "portfolio" / name
        folder.mkdir(parents=True)
        save_file({"weight": noisy[:-1].T.copy(), "bias": noisy[-1].copy()}, folder / "model.safetensors")
        model = builders.dp_sgd(name, sigma=20 * sigma, steps=20)
        (folder / "record.json").write_text(model.record.model_dump_json(by_alias=True))
    return tmp_path / "portfolio"


def own_accuracy(portfolio: Path, weights: dict[str, float]) -> float:
    from safetensors.numpy import load_file

    models = {name: load_file(portfolio / name / "model.safetensors") for name in weights}
    weight, bias = (
        sum(np.float64(w) * models[name][key].astype(np.float64) for name, w in weights.items()).astype(np.float32)  # type: ignore[union-attr]
        for key in ("weight", "bias")
    )
    _, test = digits.load()
    return float(np.mean((test.images @ weight.T.astype(float) + bias).argmax(axis=1) == test.labels))


def test_noise_is_drawn_several_times_and_the_spread_shown(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":  # convex: noise pays
        path = trained / name / "record.json"
        record = json.loads(path.read_text())
        record["mechanism"] |= {"smoothness": 0.5, "convex": "glm", "sampling": {"scheme": "full-batch"}}
        path.write_text(json.dumps(record))
    monkeypatch.setattr("dpmerge.planning.noised.DRAWS", 3)
    portfolio = Portfolio(trained)
    scorer = NoisyScore.of({name: trained / name for name in portfolio.names}, "digits")
    asked: list[Any] = []

    def run(function: Any, items: Any, *, keys: Any) -> list[Any]:
        asked.extend(items)
        return here(function, items, keys=keys)

    found = frontier(portfolio, delta=DELTA, epsilons=[0.05, 1.0], scorer=scorer, run=run)
    line = found.curves[0]
    draws = [item for item in asked if len(item) == 3 and isinstance(item[0], tuple)]
    noised = [point for point in line.points if point.noise > 0]
    assert noised and len([item for item in draws if item[1] > 0]) == 3 * len(noised)
    for point in line.points:
        assert point.utility_kind == "measured"
        assert point.low is not None and point.high is not None and point.utility is not None
        assert point.low <= point.utility <= point.high
    assert any(point.low < point.high for point in noised)  # type: ignore[operator]
    drawn = describe(found).panels[0].lines[0]
    assert drawn.low is not None and drawn.high is not None
    assert "several draws" in describe(found).caption
    assert pickle.loads(pickle.dumps(scorer)) == scorer
    assert scorer.noised((1.0, 0.0, 0.0), 1e3) < 0.5 < scorer((1.0, 0.0, 0.0))


def test_measured_points_are_really_merged(trained: Path) -> None:
    portfolio = Portfolio(trained)
    scorer = MergedScore.of({name: trained / name for name in portfolio.names}, "digits")
    document = frontier(portfolio, delta=DELTA, epsilons=[1.0, 4.0], scorer=scorer, edge_points=4, run=here).as_dict()
    assert document["provenance"] == "after-looking"
    assert document["warning"] is not None
    points = next(
        c["points"] for c in document["curves"] if (c["rule"], c["by"], c["standing"]) == ("combination", "pld", "proved")
    )
    for point in points:
        assert point["utility_kind"] == "measured"
        assert point["utility"] == own_accuracy(trained, point["weights"])
    assert len({point["utility"] for point in points}) > 4
    models = {model["name"]: model["utility"] for model in document["models"]}
    assert models == {name: own_accuracy(trained, {name: 1.0}) for name in portfolio.names}
    public = frontier(
        portfolio, delta=DELTA, epsilons=[4.0], scorer=scorer, scored="stand-ins", edge_points=1, run=here
    ).as_dict()
    assert (public["provenance"], public["warning"]) == ("a-priori", None)


def test_scores_belong_to_their_models_and_function(trained: Path) -> None:
    folders = {name: trained / name for name in "abc"}
    before = MergedScore.of(folders, "digits").fingerprint
    assert MergedScore.of(folders, "digits").fingerprint == before
    assert MergedScore.of(folders, "dpmerge_lab.tasks.digits:accuracy").fingerprint != before
    data = bytearray((trained / "a" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (trained / "a" / "model.safetensors").write_bytes(data)
    assert MergedScore.of(folders, "digits").fingerprint != before


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("unknown", "no evaluator is named"),
        ("no.such.module:f", "cannot be loaded"),
        ("math:nothing", "cannot be loaded"),
        ("math:pi", "not a function"),
    ],
)
def test_evaluators_that_are_none(name: str, complaint: str) -> None:
    with pytest.raises(EvaluationError, match=complaint):
        find_evaluator(name)


@pytest.mark.parametrize(
    "body, complaint",
    [
        ("return float('nan')", "finite"),
        ("return 'good'", "must give a number"),
        ("return True", "must give a number"),
        ("raise OSError('disk')", "failed on a=0.5, b=0.5.*disk"),
    ],
)
def test_evaluators_that_misbehave(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, complaint: str
) -> None:
    module = f"evaluator_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(f"def score(folder):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    scorer = MergedScore.of({name: trained / name for name in "ab"}, f"{module}:score")
    with pytest.raises(EvaluationError, match=complaint):
        scorer((0.5, 0.5))


def test_digits_refuse_other_models(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="cannot be read"):
        digits.accuracy(tmp_path)
    save_file({"weight": np.zeros((2, 2), dtype=np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(EvaluationError, match="10 × 64"):
        digits.accuracy(tmp_path)


# --- the commands -----------------------------------------------------------------------------------------------------


def test_frontier_command_writes_everything_and_continues(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def score(folder):\n"
        "    with open(Path(__file__).parent / 'calls', 'a') as calls:\n"
        "        calls.write('x')\n"
        "    return float((Path(folder) / 'model.safetensors').read_bytes()[-1])\n"
    )
    command = [sys.executable, "-m", "dpmerge", "frontier", str(trained), "--delta", "1e-5", "--epsilons", "0.5:6:3"]
    command += ["--evaluate", "mine:score", "--points", "2", "--out", "out", "--json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    first = CliRunner().invoke(app, [*command[3:], "--jobs", "1"], catch_exceptions=False)
    document = json.loads(first.stdout)
    assert document == json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert document["provenance"] == "after-looking"
    for suffix in ("png", "html"):
        assert (tmp_path / "out" / f"frontier.{suffix}").stat().st_size > 1000
    calls = len((tmp_path / "calls").read_text())
    assert calls == 3 + 2 * 2
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert again.stdout == first.stdout
    assert len((tmp_path / "calls").read_text()) == calls  # nothing is measured twice


def test_a_cluster_draws_the_same_frontier(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    command = ["frontier", str(trained), "--delta", "1e-5", "--epsilons", "0.5:6:3", "--evaluate", "digits", "--points", "2"]
    with started_cluster(tmp_path, workers=1) as address:
        there = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "there"), "--cluster", address, "--json"])
    assert there.exit_code == 0, there.output
    here_too = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "here"), "--jobs", "1", "--json"])
    assert json.loads(there.stdout) == json.loads(here_too.stdout)


def test_frontier_command_refuses(trained: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    base = ["frontier", str(trained), "--delta", "1e-5", "--out", str(tmp_path / "out")]
    for extra, complaint in (
        (["--stand-ins"], "--evaluate"),
        (["--epsilons", "8:1"], "targets"),
        (["--utility", "a=1,b=2"], "no utility for model 'c'"),
        (["--evaluate", "nothing"], "no evaluator is named"),
        (["--cluster", "nowhere"], ""),
    ):
        result = runner.invoke(app, base + extra)
        assert result.exit_code != 0
        assert complaint in str(result.exception)
        assert not (tmp_path / "out" / "frontier.json").exists()


@pytest.mark.parametrize(
    "asked",
    [
        ["frontier", "--delta", "1e-5", "--points", "-1"],
        ["frontier", "--delta", "1e-5", "--grid", "0.3"],
        ["frontier", "--delta", "1e-5", "--evaluate", "digits", "--utility", "a=1,b=2,c=3"],
        ["frontier", "--simplex", "--delta", "1e-5", "--grid", "0"],
        ["frontier", "--simplex", "--delta", "0"],
    ],
)
def test_nothing_is_left_of_a_picture_that_is_refused(asked: list[str], trained: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [asked[0], str(trained), *asked[1:], "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, TargetError | UtilityError)
    assert not (tmp_path / "out").exists()


def test_pictures_say_what_they_assume(trained: Path, tmp_path: Path) -> None:
    portfolio = Portfolio(trained)
    even = portfolio.weights(dict.fromkeys(portfolio.names, 1 / 3))
    common = set(Selection(even).guarantee(delta=DELTA).assumptions) & set(Joint(even).guarantee(delta=DELTA).assumptions)
    formula = "linear combination (papers' formula)"
    for command in (["--epsilons", "1,2", "--points", "1"], ["--simplex", "--grid", "1"]):
        name = "simplex" if "--simplex" in command else "frontier"
        out = tmp_path / name
        asked = ["frontier", str(trained), *command, "--delta", str(DELTA), "--jobs", "1", "--out", str(out)]
        printed = CliRunner().invoke(app, asked)
        assert printed.exit_code == 0, printed.output
        stated = json.loads((out / f"{name}.json").read_text())["assumptions"]
        assert common and common <= stated.keys()
        assert "assuming:" in printed.stdout and all(f"  - {text}" in printed.stdout for text in stated)
        assert any(titles == [formula] for titles in stated.values()) == (name == "frontier")


def test_simplex_command(trained: Path, tmp_path: Path) -> None:
    command = ["frontier", str(trained), "--simplex", "--delta", "1e-5", "--grid", "0.5", "--out", str(tmp_path / "map")]
    result = CliRunner().invoke(app, [*command, "--json", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert len(document["points"]) == 6
    for suffix in ("json", "png", "html"):
        assert (tmp_path / "map" / f"simplex.{suffix}").stat().st_size > 100


def test_the_example_portfolio_has_a_frontier_in_the_right_order() -> None:
    """Random selection by PLD is never below that by RDP, and the papers' formula never below what is proved."""
    portfolio = Portfolio(dpmerge.example_portfolio())
    utility = Utilities.stated(portfolio, {"mnist-c1-s0.5": 0.906, "mnist-c1-s2": 0.85, "mnist-c2-s0.5": 0.903})
    asked: dict[str, Any] = {"epsilons": [0.3, 2.0, 6.0], "utility": utility, "edge_points": 2, "run": here}
    document = frontier(portfolio, delta=DELTA, accounting=EVERY_STEP, **asked).as_dict()
    curves = {(curve["rule"], curve["by"], curve["standing"]): curve["points"] for curve in document["curves"]}
    for pld, rdp in zip(curves["selection", "pld", "proved"], curves["selection", "rdp", "proved"], strict=True):
        assert pld["utility"] >= (rdp["utility"] or 0.0) - 1e-9
    proved = {tuple(point["weights"].values()): point["epsilon"] for point in curves["combination", "pld", "proved"]}
    for point in curves["combination", "pld", "conditional"]:
        assert point["epsilon"] <= proved[tuple(point["weights"].values())] * (1 + 3e-4)


# --- the edge between two models ----------------------------------------------------------------------------------------------


def test_an_edge_has_the_guarantees_of_its_points() -> None:
    portfolio = Portfolio((builders.dp_sgd("a", sigma=4.0, smoothness=0.2), builders.dp_sgd("b", sigma=40.0, smoothness=0.2)))
    found = edge(portfolio, delta=DELTA, step=0.25)
    assert {(panel.rule, panel.by) for panel in found.panels} == {
        (rule, by) for rule in ("selection", "combination") for by in ("pld", "rdp")
    }
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [point[1] for point in found.points] == shares
    makers: dict[str, Any] = {"selection": dpmerge.selection, "combination": dpmerge.combination}
    for panel in found.panels:
        for share, epsilon in zip(shares, panel.epsilons, strict=True):
            own = makers[panel.rule](portfolio, {"a": 1 - share, "b": share}).guarantee(delta=DELTA, by=panel.by)
            assert epsilon == pytest.approx(own.epsilon, rel=1e-3)
    document = describe(replace(found, targets=(0.0, 2.0))).as_dict()
    assert document["kind"] == "lines" and document["x_label"] == "weight of b, the rest on a"
    assert [line["label"] for line in document["lines"][4:]] == ["target ε = 0", "target ε = 2"]
    assert describe(document).panels == describe(replace(found, targets=(0.0, 2.0))).panels
    with pytest.raises(TargetError, match="needs two models; this portfolio has 1"):
        edge(Portfolio(portfolio.models[:1]), delta=DELTA)
