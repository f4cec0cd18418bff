"""User-level DP-FTRL on users made of images: who has which, the table's numbers, and what docs/results.md shows of them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError
from dpmerge.figures import render
from dpmerge.profiles import gaussian_epsilon, run_profile
from dpmerge.records import Model, Record
from dpmerge_lab.tasks.images import digits_as_images
from dpmerge_lab.tasks.user_images import UserImages

ROOT = Path(__file__).parent.parent.parent


# --- users --------------------------------------------------------------------------------------------------------------------


def test_every_image_belongs_to_one_user_at_most_and_users_know_few_classes() -> None:
    images = digits_as_images()
    users = UserImages.share_out(images.train, images.train_labels, 84, 16)
    owned = np.concatenate([users.even.ravel(), users.odd.ravel()])
    assert len(users) == 84 and users.even.shape == users.odd.shape == (84, 8) and len(set(owned.tolist())) == owned.size
    assert not (images.train_labels[users.even] % 2).any() and (images.train_labels[users.odd] % 2).all()
    known = [len(set(users.examples(user, 0)[1].tolist())) for user in range(84)]
    assert np.mean(known) < 4.5  # of ten: two blocks of either half, of which some lie across a border
    inputs, labels = users.examples(5, 3)
    assert inputs.shape == (16, 64) and np.array_equal(inputs, images.train[np.concatenate([users.even[5], users.odd[5]])])
    assert np.array_equal(users.only("odd").examples(5, 0)[1], labels[8:])
    assert np.array_equal(UserImages.share_out(images.train, images.train_labels, 84, 16).even, users.even)


@pytest.mark.parametrize(
    ("users", "each", "text"),
    [(90, 16, "90 users need 720 images of even classes"), (4, 6, "four blocks"), (4, 0, "four blocks"), (0, 4, "four blocks")],
)
def test_images_that_do_not_suffice_are_refused(users: int, each: int, text: str) -> None:
    images = digits_as_images()
    with pytest.raises(DataError, match=text):
        UserImages.share_out(images.train, images.train_labels, users, each)
    with pytest.raises(DataError, match="'both' is neither"):
        UserImages.share_out(images.train, images.train_labels, 4, 4).only("both")


# --- the experiment -----------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from dpmerge_lab.experiments import ftrl_users as experiment, ftrl_users_runs as runs  # noqa: E402
from dpmerge_lab.experiments.aggregation_scores import gain  # noqa: E402
from dpmerge_lab.experiments.ftrl_users import BANDED, CASES, DELTA, METHODS, ftrl_users  # noqa: E402
from dpmerge_lab.experiments.ftrl_users_pictures import ERRORS, PAPER  # noqa: E402
from dpmerge_lab.experiments.ftrl_users_runs import QUICK, Case, Work  # noqa: E402
from dpmerge_lab.experiments.results import Options, Result  # noqa: E402
from dpmerge_lab.training import ftrl  # noqa: E402
from dpmerge_lab.training.averaging import MovingAverage, TrainingOn  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ftrl")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return ftrl_users(Options(quick=True, seeds=2, jobs=1, folder=folder))


def test_noise_is_the_least_for_the_target(result: Result) -> None:
    """μ in closed form: √(2 trees of 3 nodes), and √2 for two turns with a banded matrix."""
    for case in (*CASES, *BANDED):
        found = result.numbers[case.name]
        if math.isinf(case.epsilon):
            assert (found["epsilon"], found["noise multiplier"], found["price of tuning"]) == (math.inf, 0.0, None)
            continue
        moved = math.sqrt(2 if case.banded else 6)
        noise = found["noise multiplier"]
        assert found["epsilon"] == pytest.approx(gaussian_epsilon(moved / noise, DELTA), rel=1e-6)
        assert found["epsilon"] <= case.epsilon < gaussian_epsilon(moved / (noise - 0.001), DELTA)
        price = found["price of tuning"]
        trials = price["trials"]
        assert trials == (2 if case.banded else 4)
        assert price["epsilon of all trials together"] == pytest.approx(
            gaussian_epsilon(math.sqrt(trials) * moved / noise, DELTA), rel=1e-3
        )


def test_what_is_printed_is_the_guarantee_of_the_runs_that_were_made(result: Result, folder: Path) -> None:
    """Every run that was kept has a record of its own with that ε, under zero-out."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == 6 * (2 + 2 + 1 + 2 + 1 + 2) + 2 * (2 + 2)
    seen = set()
    for line in lines:
        name = line["key"].split(": ")[1]
        record = Record.parse(json.dumps(line["result"]["record"]))
        found = run_profile(Model(name, record)).profile
        assert record.adjacency == "zero-out"
        assert found.epsilon(DELTA) == result.numbers[name]["epsilon"]
        seen.add(line["result"]["record"]["mechanism"]["run"])
    assert len(seen) == len(lines)


def test_the_table_is_complete(result: Result) -> None:
    for case in CASES:
        found = result.numbers[case.name]
        assert tuple(found["test accuracy"]) == METHODS and set(found["gain over no aggregation"]) == {*METHODS} - {"No Agg"}
        means = {method: one["mean"] for method, one in found["test accuracy"].items()}
        for method, gained in found["gain over no aggregation"].items():
            assert gained["mean"] == pytest.approx(means[method] - means["No Agg"]) and gained["standard error"] >= 0
    assert result.numbers["epsinf"]["test accuracy"]["No Agg"]["mean"] > 0.3  # by chance 0.1; fresh coins every time
    errors = result.numbers[ERRORS]
    assert errors["7 bands"] < errors["tree, variance reduced"] < errors["tree"]
    assert {name: bool(render(document, ".png")) for name, document in result.pictures.items()} == dict.fromkeys(
        ("table", "rounds", "errors"), True
    )


def test_finished_runs_are_not_made_again(result: Result, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_run", lambda *_: pytest.fail("trained again"))
    assert ftrl_users(Options(quick=True, seeds=2, jobs=1, folder=folder)).numbers == result.numbers


def test_a_run_is_measured_by_its_own_iterates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known iterates; the last aggregate and an average by hand, on the test images with odd numbers."""
    generator = np.random.default_rng(0)
    iterates = list(generator.normal(size=(QUICK.rounds + 1, 650)).astype(np.float32))
    images, record = digits_as_images(), experiment._planned(QUICK.recipe(None))
    monkeypatch.setattr(runs, "_run", lambda *_: (iterates, record))

    def score(vector: Any) -> float:
        said = images.test[1::2] @ vector[:640].reshape(10, 64).T + vector[640:]
        return float((said.argmax(axis=1) == images.test_labels[1::2]).mean())

    work = Work(QUICK, None, Case(8.2, False), 1.0, None)
    plain = runs.plain_run(work, 0)
    assert plain["measured"]["No Agg"]["test"] == plain["history"]["No Agg"][-1] == score(iterates[-1])
    tail = int(plain["measured"]["UTA inf"]["parameter"])
    assert plain["history"]["UTA inf"][-1] == plain["measured"]["UTA inf"]["test"] == score(np.mean(iterates[-tail:], axis=0))
    trained = runs.aggregated_run(work, ("UTA tr", 3))
    assert trained["alone"]["test"] == score(np.mean(iterates[-3:], axis=0))
    assert trained["on top"]["validation"] >= max(
        one["validation"] for method, one in plain["measured"].items() if method != "No Agg"
    )


def test_standard_errors_of_pairs_and_of_two_samples() -> None:
    paired, apart = (gain([0.5, 0.7, 0.9], [0.4, 0.5, 0.9], paired=paired) for paired in (True, False))
    assert paired["mean"] == apart["mean"] == pytest.approx(0.1)
    assert paired["standard error"] == pytest.approx(0.1 / math.sqrt(3))
    assert apart["standard error"] == pytest.approx(math.sqrt((0.04 + 0.07) / 3))
    assert gain([0.5], [0.4])["standard error"] is None


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_on_a_moving_average_from_the_start_is_training_at_a_smaller_rate(momentum: float) -> None:
    """Eq. (3) with weight b of the new iterate: the aggregates are the iterates of a plain run at b times the learning rate."""
    users = runs.loaded(QUICK, None).users
    recipe = replace(QUICK.recipe(None, learning_rate=1.0), momentum=momentum)
    order = recipe.draw_users(np.random.default_rng(0), len(users))

    def run(rate: float, training_on: TrainingOn | None) -> list[Any]:
        network = torch.nn.Linear(64, 10)
        torch.nn.init.zeros_(network.weight)
        torch.nn.init.zeros_(network.bias)
        made = ftrl.checkpoints(
            network,
            users,
            replace(recipe, server_learning_rate=rate),
            runs._loss,
            dataset="d",
            run="r",
            keep=range(1, recipe.rounds),
            order=order,
            training_on=training_on,
            together=True,
        )
        return [torch.zeros(650), *(torch.cat([part.flatten() for part in one.state.values()]) for one in made)]

    average = MovingAverage(new_weight=0.5)
    aggregates = runs._aggregates(average, run(1.0, TrainingOn(average, 0)))
    for aggregate, iterate in zip(aggregates, run(0.5, None), strict=True):
        assert torch.allclose(aggregate, iterate, atol=1e-5)


# --- what is kept -------------------------------------------------------------------------------------------------------------


def test_the_table_in_the_docs_was_measured() -> None:
    numbers = json.loads((ROOT / "lab" / "results" / "ftrl" / "ftrl.json").read_text(encoding="utf-8"))["numbers"]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = re.search(r"## `ftrl`.*?(?=\n## )", text, re.DOTALL)
    assert section is not None
    for name in PAPER:
        shown = numbers[name]["test accuracy"]
        cells = " | ".join(
            f"{100 * shown[method]['mean']:.2f} ± {100 * shown[method]['std'] / 5**0.5:.2f}" for method in METHODS
        )
        assert cells in section[0], name
        assert name.endswith("inf") == (numbers[name]["epsilon"] is None)
        assert numbers[name]["epsilon"] is None or float(numbers[name]["epsilon"]) <= float(name.rsplit("eps", 1)[1])
