"""User-level DP-FTRL on users made of images: who has which, the table's numbers, and what docs/results.md shows of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError
from dpmerge.figures import render
from dpmerge.jobs import Finished
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
from dpmerge_lab.experiments.aggregation import AFTERWARDS, ON_TOP, TRAINED  # noqa: E402
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, gain  # noqa: E402
from dpmerge_lab.experiments.aggregation_tuning import ALONE, WAYS, Point  # noqa: E402
from dpmerge_lab.experiments.ftrl_users import BANDED, CASES, DELTA, RATE, ftrl_users  # noqa: E402
from dpmerge_lab.experiments.ftrl_users_pictures import COLUMNS, ERRORS, OWN_RATE, PAPER  # noqa: E402
from dpmerge_lab.experiments.ftrl_users_runs import QUICK, Case, Design, Work  # noqa: E402
from dpmerge_lab.experiments.results import Options, Result  # noqa: E402
from dpmerge_lab.training import ftrl  # noqa: E402
from dpmerge_lab.training.averaging import MovingAverage, TrainingOn  # noqa: E402
from dpmerge_lab.training.shift import first_share  # noqa: E402


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
        assert trials == (2 if case.banded else 6)
        assert price["epsilon of all trials together"] == pytest.approx(
            gaussian_epsilon(math.sqrt(trials) * moved / noise, DELTA), rel=1e-3
        )


def test_what_is_printed_is_the_guarantee_of_the_runs_that_were_made(result: Result, folder: Path) -> None:
    """Every run that was kept has a record of its own with that ε, under zero-out."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    choices = [search["best"] for case in (*CASES, *BANDED) for search in result.numbers[case.name]["tuning"].values()]
    points = [{tuple(best[way][key] for key in ("parameter", "start", "rate")) for way in WAYS} for best in choices]
    assert len(lines) == 6 * (2 + 2 + 2) + 2 * 2 + 2 * sum(map(len, points)), "trials, and two runs for each choice"
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
    for case in (*CASES, *BANDED):
        found = result.numbers[case.name]
        shown = [column for column in COLUMNS if not (case.banded and " tr" in column)]
        others = [] if case.banded else [f"{top}, tuned {ALONE}" for top in ON_TOP]
        assert list(found["test accuracy"]) == shown + others == ["No Agg", *found["gain over no aggregation"]]
        means = {method: one["mean"] for method, one in found["test accuracy"].items()}
        for method, gained in found["gain over no aggregation"].items():
            assert gained["mean"] == pytest.approx(means[method] - means["No Agg"]) and gained["standard error"] >= 0
        for method, gained in found["gain over the best inference aggregation of plain runs at their own rate"].items():
            assert method in ON_TOP and gained["mean"] == pytest.approx(means[method] - means[OWN_RATE])
        rates = [row["parameter"] for row in found["tuning"][RATE]["grid"]]
        assert rates == list(QUICK.server_learning_rates)
    assert result.numbers["epsinf"]["test accuracy"]["No Agg"]["mean"] > 0.3  # by chance 0.1; fresh coins every time
    errors = result.numbers[ERRORS]
    assert errors["7 bands"] < errors["tree, variance reduced"] < errors["tree"]
    assert {name: bool(render(document, ".png")) for name, document in result.pictures.items()} == dict.fromkeys(
        ("table", "rounds", "rounds-shifting", "errors"), True
    )


def test_finished_runs_are_not_made_again(result: Result, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_run", lambda *_: pytest.fail("trained again"))
    assert ftrl_users(Options(quick=True, seeds=2, jobs=1, folder=folder)).numbers == result.numbers


def test_runs_at_another_learning_rate_are_not_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plain runs are made again, with fresh noise another rate may win: runs on aggregates are at its multiples."""

    def measured(score: float) -> dict[str, Any]:
        of = {method: {"validation": score, "test": score, "parameter": 1.0} for method in ("No Agg", *AFTERWARDS)}
        return {"measured": of, "record": {}, "on top of the iterates": of["No Agg"]}

    def plain(work: Work, followed: bool, point: Point) -> dict[str, Any]:
        return {**measured(1.0 if point.parameter == best else 0.0), "history": {}}

    def aggregated(work: Work, method: str, followed: bool, point: Point) -> dict[str, Any]:
        return {**measured(work.learning_rate), "history": [0.0, 0.0]}

    monkeypatch.setattr(runs, "plain_run", plain)
    monkeypatch.setattr(runs, "aggregated_run", aggregated)
    work, options = Work(QUICK, None, Case(math.inf, False), 0.0, None), Options(seeds=2, jobs=1)
    for number, best in enumerate(QUICK.server_learning_rates):
        file = tmp_path / f"{number}.jsonl"
        if number:
            lines = (tmp_path / "0.jsonl").read_text().splitlines(keepends=True)
            file.write_text("".join(line for line in lines if any(f": {method}" in line for method in TRAINED)))
            assert file.stat().st_size > 0
        with Finished(file) as finished:
            found = experiment._case(work, options, finished)["test accuracy"]
        assert [found[method]["mean"] for method in TRAINED] == [best, best]


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
    plain = runs.plain_run(work, True, Point(1.0))
    assert plain["measured"]["No Agg"]["test"] == plain["history"]["No Agg"][-1] == score(iterates[-1])
    tail = int(plain["measured"]["UTA inf"]["parameter"])
    assert plain["history"]["UTA inf"][-1] == plain["measured"]["UTA inf"]["test"] == score(np.mean(iterates[-tail:], axis=0))
    trained = runs.aggregated_run(work, "UTA tr", True, Point(3))
    aggregates = [np.mean(iterates[max(0, end - 3) : end], axis=0) for end in range(1, len(iterates) + 1)]
    assert trained["measured"]["No Agg"]["test"] == trained["history"][-1] == score(aggregates[-1])
    tail = int(trained["measured"]["UTA inf"]["parameter"])
    assert trained["measured"]["UTA inf"]["test"] == score(np.mean(aggregates[-tail:], axis=0)), "of the aggregates"
    best = max((plain["measured"][method] for method in AFTERWARDS), key=lambda one: one["validation"])
    assert trained["on top of the iterates"] == best


def test_a_run_on_aggregates_has_its_own_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times the factor that is tuned, and for UTA tr as much larger as the mean of k iterates is slower."""
    rates: list[float] = []
    record = experiment._planned(QUICK.recipe(None))

    def watched(work: Work, _: TrainingOn | None) -> Any:
        rates.append(work.learning_rate)
        return [np.zeros(650, dtype=np.float32)] * (QUICK.rounds + 1), record

    monkeypatch.setattr(runs, "_run", watched)
    work = Work(QUICK, None, Case(8.2, False), 1.0, None, learning_rate=0.5)
    runs.aggregated_run(work, "EMA tr", False, Point(0.8, rate=4.0))
    runs.aggregated_run(work, "UTA tr", False, Point(3, rate=4.0))
    runs.plain_run(work, False, Point(0.125))
    assert rates == [2.0, 4.0, 0.125]


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

NUMBERS = json.loads((ROOT / "lab" / "results" / "ftrl" / "ftrl.json").read_text(encoding="utf-8"))["numbers"]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTION = re.search(r"## `ftrl`.*?(?=\n## )", PAGE, re.DOTALL)
assert SECTION is not None
TEXT = " ".join(SECTION[0].split())


def _cell(of: Any) -> str:
    return f"{100 * of['mean']:.2f} ± {100 * of['std'] / of['runs'] ** 0.5:.2f}"


def test_the_table_in_the_docs_was_measured() -> None:
    for name in (*PAPER, *(case.name for case in BANDED)):
        shown = NUMBERS[name]["test accuracy"]
        cells = " | ".join(_cell(shown[column]) if column in shown else "–" for column in COLUMNS)
        assert f"| {cells} |" in TEXT, name
        assert name.endswith("inf") == (NUMBERS[name]["epsilon"] is None)
        stated = name.removesuffix("-banded").rsplit("eps", 1)[1]
        assert NUMBERS[name]["epsilon"] is None or float(NUMBERS[name]["epsilon"]) <= float(stated)


def _gains(name: str, columns: Sequence[str]) -> list[float]:
    return [100 * NUMBERS[name]["gain over no aggregation"][column]["mean"] for column in columns]


def _span(values: Sequence[float]) -> str:
    return f"{min(values):+.2f} to {max(values):+.2f}".replace("-", "−")


def _difference(first: Any, second: Any) -> str:
    """Of two means, with its standard error."""
    error = math.sqrt(first["std"] ** 2 / first["runs"] + second["std"] ** 2 / second["runs"])
    return f"{100 * (first['mean'] - second['mean']):.2f} ± {100 * error:.2f}"


def test_gains_in_the_docs_were_measured() -> None:
    shifting = ["shifting-eps18.9", "shifting-eps8.2"]
    ratios = {
        name: [NUMBERS[name]["gain over no aggregation"][one]["ratio"] for one in AFTERWARDS]
        for name in NUMBERS
        if "eps" in name
    }
    private = [gained for name in ("eps18.9", "eps8.2") for gained in _gains(name, AFTERWARDS)]
    under = [gained for name in shifting for gained in _gains(name, AFTERWARDS)]
    least = math.floor(10 * min(ratio for name in ("shifting-epsinf", *shifting) for ratio in ratios[name])) / 10
    assert f"Under shift {_span(_gains('shifting-epsinf', AFTERWARDS))} points at ε = ∞ and {_span(under)} with privacy" in TEXT
    assert f"{least:.1f} standard errors or more" in TEXT and f"{_span(under).replace('+', '')} points are left" in TEXT
    clear, votes = AFTERWARDS[:-1], AFTERWARDS[-1]
    for name, some, text in (
        ("epsinf", AFTERWARDS, "Without shift {} at ε = ∞ ({})"),
        ("eps8.2-banded", clear, "with a banded matrix {} ({}), and OMV"),
    ):
        ratios_of = [NUMBERS[name]["gain over no aggregation"][one]["ratio"] for one in some]
        assert text.format(_span(_gains(name, some)), f"{min(ratios_of):.1f} to {max(ratios_of):.1f}") in TEXT
    unclear = NUMBERS["eps8.2-banded"]["gain over no aggregation"][votes]
    assert f"OMV +{100 * unclear['mean']:.2f} ± {100 * unclear['standard error']:.2f}" in TEXT and unclear["ratio"] < 2
    assert f"do with a banded matrix, by {_span(_gains('eps8.2-banded', clear)).replace('+', '')} points" in PAGE
    assert f"**with privacy {_span(private)}**" in TEXT
    beside = {name: NUMBERS[name]["gain over the best inference aggregation of plain runs at their own rate"] for name in PAPER}
    uta = [of["UTA tr + inf"] for of in beside.values()]
    told_uta = [f"{100 * one['mean']:.2f} ± {100 * one['standard error']:.2f}".replace("-", "−") for one in uta]
    assert "gains {}, {} and {} points, under shift {}, {} and {}.".format(*told_uta) in TEXT
    assert not any(one["mean"] > 2 * one["standard error"] for one in uta), "not confirmed"
    ema = {name: of["EMA tr + inf"] for name, of in beside.items()}
    assert [name for name, one in ema.items() if one["mean"] > 2 * one["standard error"]] == ["epsinf"]
    first = ema["epsinf"]
    assert f"EMA_tr + inf gains {100 * first['mean']:.2f} ± {100 * first['standard error']:.2f} at ε = ∞" in TEXT
    ahead = [max(_gains(name, ["UTA tr + inf"])) - max(_gains(name, AFTERWARDS)) for name in shifting]
    assert f"it is {ahead[0]:.1f} and {ahead[1]:.1f} points ahead under shift with privacy" in TEXT
    behind = NUMBERS["shifting-epsinf"]["test accuracy"]
    behind_best = behind[CHOSEN]["mean"] - behind["UTA tr + inf"]["mean"]
    assert f"at ε = ∞ it is {100 * behind_best:.1f} behind" in TEXT
    scored = [NUMBERS[name]["test accuracy"] for name in (*PAPER, *(case.name for case in BANDED))]
    largest = [max(AFTERWARDS, key=lambda one: of[one]["mean"]) for of in scored]
    assert (largest.count("UTA inf"), len(largest)) == (1, 8) and "the largest mean in one of eight rows" in TEXT
    best = {name: max(_gains(name, COLUMNS[1:])) for name in PAPER}
    paper = {name: max(row.values()) - row["No Agg"] for name, row in PAPER.items()}
    for of, text in (
        (
            paper,
            "{3:.2f} points instead of {0:.2f} (ε = ∞), {4:.2f} instead of {1:.2f} (18.9) and {5:.2f} instead of {2:.2f} (8.2)",
        ),
        (best, "{3:.2f} instead of {0:.2f}, {4:.2f} instead of {1:.2f} and {5:.2f} instead of {2:.2f}"),
    ):
        assert text.format(*of.values()) in TEXT
    spread = [NUMBERS[name]["spread over the rounds"] for name in PAPER]
    last, tails = ([100 * of[method] for of in spread] for method in ("No Agg", "UTA inf"))
    assert f"falls from {last[3]:.1f} (ε = ∞), {last[4]:.1f} and {last[5]:.1f} points to" in TEXT
    assert f"to {tails[3]:.2f}, {tails[4]:.1f} and {tails[5]:.1f} with UTA_inf" in TEXT
    assert f"from {last[0]:.2f} to {tails[0]:.2f}, with privacy from {last[1]:.2f} to {tails[1]:.2f} and {tails[2]:.2f}" in TEXT
    assert f"{last[1]:.2f}" == f"{last[2]:.2f}"
    apart = max(abs(_gains(name, ["EMA inf"])[0] - _gains(name, ["EMA baseline"])[0]) for name in ratios)
    assert f"differ by {apart:.2f} points at most" in TEXT


def test_choices_in_the_docs_were_made() -> None:
    """With a star where the value is at an edge of the grid."""
    for name in (*PAPER, *(case.name for case in BANDED)):
        searches, cells = NUMBERS[name]["tuning"], []
        for what in (RATE, *TRAINED):
            for way in WAYS:
                best = searches[what]["best"][way] if what in searches else None
                values = ["parameter"] if what == RATE else ["parameter", "rate"]
                stars = best["at an edge of the grid"] if best else []
                told = [f"{best[value]:g}{'*' * (value in stars)}" for value in values] if best else ["–"]
                cells.append(", ".join(told))
        assert f"| {' | '.join(cells)} |" in TEXT, name
        assert searches[RATE]["best"][ALONE]["at an edge of the grid"] == [], "no server rate for the last iterate"
    price = [NUMBERS[name]["price of tuning"] for name in ("eps8.2", "eps18.9")]
    together = [one["epsilon of all trials together"] for one in price]
    assert {one["trials"] for one in price} == {80}
    assert f"the 80 trials of a row cost ε = {together[0]:.0f} together instead of 8.2, and {together[1]:.0f} instead" in TEXT


def test_other_numbers_in_the_docs_were_measured() -> None:
    accuracy = {name: NUMBERS[name]["test accuracy"] for name in (*PAPER, *(case.name for case in BANDED))}
    none = {name: of["No Agg"] for name, of in accuracy.items()}
    banded, shifting = "eps8.2-banded", "shifting-eps8.2-banded"
    assert f"gains {_difference(none[banded], none['eps8.2'])} points at ε = 8.2" in TEXT
    assert f"(by {_difference(none[banded], none['eps18.9'])})" in TEXT
    assert f"and {_difference(none[shifting], none['shifting-eps8.2'])} under shift" in TEXT
    own = [100 * accuracy[name][OWN_RATE]["mean"] for name in (banded, shifting, "eps8.2", "shifting-eps8.2")]
    assert "has {:.2f} and {:.2f}, the tree {:.2f} and {:.2f}".format(*own) in TEXT
    brought = NUMBERS[shifting]["gain over no aggregation"][OWN_RATE]
    at_its_rate = NUMBERS[shifting]["gain over no aggregation"][CHOSEN]
    told = [f"{100 * one['mean']:.2f} ± {100 * one['standard error']:.2f}" for one in (brought, at_its_rate)]
    assert f"at their own rate are {told[0]} points above the last iterate, and at its rate {told[1]}" in TEXT
    key = "test accuracy, inference aggregation of the iterates"
    changed = max(abs(NUMBERS[name][key][top]["mean"] - accuracy[name][top]["mean"]) for name in PAPER for top in ON_TOP)
    assert f"change by {100 * changed:.2f} points at most" in TEXT
    order = [100 * accuracy[name][f"UTA tr + inf, tuned {ALONE}"]["mean"] for name in PAPER]
    assert "UTA_tr + inf has {:.2f}, {:.2f} and {:.2f}, under shift {:.2f}, {:.2f} and {:.2f}".format(*order) in TEXT
    lost = accuracy["shifting-epsinf"][CHOSEN]["mean"] - accuracy["shifting-epsinf"][OWN_RATE]["mean"]
    assert f"fresh runs there are {100 * lost:.1f} points below those at 1.6" in TEXT
    assert f"Runs end with {100 * first_share(Design().rounds - 1, Design().period):.0f} % even" in TEXT
    low = []
    for method in ("No Agg", "UTA inf"):
        for name in list(PAPER)[3:]:
            looks = zip(NUMBERS[name]["rounds"], NUMBERS[name]["test accuracy over the rounds"][method]["mean"], strict=True)
            low.append(100 * min(mean for step, mean in looks if step > 508 - 50))
    assert (
        "goes down to {:.1f} % (ε = ∞), {:.1f} % and {:.1f} %, UTA_inf to {:.1f} %, {:.1f} % and {:.1f} %".format(*low) in TEXT
    )
    errors = NUMBERS[ERRORS]
    for bands in ("127 bands", "tree, variance reduced", "tree", "16 bands", "1 bands"):
        assert f"{errors[bands]:.2f}" in TEXT
