"""Noise of a banded matrix: against jax_privacy's numbers, its price by brute force, and what DP-FTRL adds with it."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import TrainingError
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Portfolio, latest_checkpoints
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.ftrl_recipe import STACKOVERFLOW, FtrlRecipe

# Mean squared errors of prefix sums by jax_privacy (google-deepmind/jax_privacy at 8967688, matrix_factorization/banded.py, jax
# 0.10.2 in 64 bits): `per_query_error` of `ColumnNormalizedBanded.default(n, b)`, and of what
# `optimize(n, bands=b, max_optimizer_steps=400)` finds.
JAX_PRIVACY = [
    (4, 2, 1.9059295338867428, 1.8866021188930613),
    (8, 4, 2.4359403249485605, 2.3907882881839884),
    (16, 4, 3.721860159685243, 3.6210114732151175),
    (32, 8, 4.545239059081972, 4.378647203008559),
    (64, 16, 5.492742371720436, 5.2560965974757865),
    (508, 127, 8.980472941687761, 8.526865965923355),
]
# The matrix that `optimize(8, bands=4)` finds there, column 3 from the diagonal down.
JAX_COLUMN = [0.87172, 0.384138, 0.255027, 0.165843]

RECIPE = FtrlRecipe(
    rounds=7,
    users_per_round=2,
    clip=0.1,
    noise_multiplier=4.0,
    server_learning_rate=0.7,
    client_learning_rate=0.5,
    banded=BandedNoise.best(7, 2, separation=3),
)


@pytest.mark.parametrize(("rounds", "bands", "default", "optimised"), JAX_PRIVACY)
def test_errors_are_those_of_jax_privacy(rounds: int, bands: int, default: float, optimised: float) -> None:
    assert BandedNoise.square_root(rounds, bands).squared_errors().mean() == pytest.approx(default, rel=1e-12)
    assert BandedNoise.best(rounds, bands).squared_errors().mean() == pytest.approx(optimised, rel=1e-7)


def test_the_matrix_is_that_of_jax_privacy() -> None:
    best = BandedNoise.best(8, 4)
    assert best.columns[3] == pytest.approx(JAX_COLUMN, abs=1e-4)
    assert np.array_equal(best.matrix()[3:7, 3], best.columns[3]) and not np.triu(best.matrix(), 1).any()
    assert np.linalg.norm(best.matrix(), axis=0) == pytest.approx(np.ones(8), abs=1e-15)


def test_the_search_stays_among_matrices_that_can_be_inverted() -> None:
    """With so many rounds a first step once led beyond them, and the search ended at an error larger than that of its start."""
    start, best = BandedNoise.square_root(508, 16), BandedNoise.best(508, 16)
    assert best.squared_errors().mean() < 0.82 * start.squared_errors().mean()


def patterns(rounds: int, separation: int) -> list[tuple[int, ...]]:
    """In which rounds a user may take part."""
    return [
        chosen
        for size in range(rounds + 1)
        for chosen in itertools.combinations(range(rounds), size)
        if all(later - earlier >= separation for earlier, later in itertools.pairwise(chosen))
    ]


@pytest.mark.parametrize(("rounds", "bands", "separation"), [(7, 3, 3), (8, 2, 3), (6, 1, 1), (9, 4, 4), (5, 5, 5)])
def test_the_price_is_the_largest_over_all_ways_to_take_part(rounds: int, bands: int, separation: int) -> None:
    """Every pattern and sign of contributions of norm 1: none moves C x further than is paid for, and one moves it so far."""
    banded = BandedNoise.best(rounds, bands, separation)
    recipe = replace(RECIPE, rounds=rounds, banded=banded, noise_multiplier=1.0)
    matrix = banded.matrix()
    moved: dict[int, float] = {}
    for chosen in patterns(rounds, separation):
        for signs in itertools.product((-1, 1), repeat=len(chosen)):
            contributed = np.zeros(rounds)
            contributed[list(chosen)] = signs
            for seen in range(1, rounds + 1):  # what a checkpoint after so many rounds shows
                moved[seen] = max(moved.get(seen, 0.0), float(np.linalg.norm((matrix @ contributed)[:seen])))
    paid = {seen: run_profile(Model("m", recipe.record(seen, "d", "r", "n", "s"))).profile.mu for seen in moved}
    assert all(moved[seen] <= (paid[seen] or 0.0) * (1 + 1e-12) for seen in moved)
    assert paid[rounds] == pytest.approx(moved[rounds], rel=1e-12)
    # With one band more than the separation, contributions of one user meet in a row.
    if bands == separation < rounds:
        wider = BandedNoise.square_root(rounds, bands + 1).matrix()
        assert (
            max(np.linalg.norm(wider[:, list(chosen)].sum(axis=1)) for chosen in patterns(rounds, separation)) > moved[rounds]
        )
        with pytest.raises(TrainingError, match="would meet in a row"):
            BandedNoise.square_root(rounds, bands + 1, separation)


def test_steps_add_what_the_matrix_says() -> None:
    banded, drawn = BandedNoise.best(11, 4), iter(np.eye(11))
    added = np.array(list(banded.increments(lambda: next(drawn))))
    assert banded.matrix() @ added == pytest.approx(np.eye(11), abs=1e-12)
    assert (added.cumsum(axis=0) ** 2).sum(axis=1) == pytest.approx(banded.squared_errors())
    alone = BandedNoise.best(5, 1)
    assert alone.squared_errors() == pytest.approx(np.arange(1, 6))  # one band: independent noise, which adds up


def test_no_direction_is_better_than_the_best() -> None:
    best, generator = BandedNoise.best(12, 5), np.random.default_rng(0)
    for _ in range(50):
        columns = best.columns * (1 + 1e-2 * generator.normal(size=best.columns.shape))
        other = BandedNoise(columns / np.linalg.norm(columns, axis=1, keepdims=True), 5)
        assert other.squared_errors().mean() > best.squared_errors().mean()


def error(recipe: FtrlRecipe) -> float:
    """The root of the mean squared error of the prefix sums, noise being such that the whole run is 1-GDP and the clip 1."""
    drawn = iter(np.eye(2 * recipe.rounds))
    added = np.array(list(recipe.increments(lambda: next(drawn))))
    mu = run_profile(Model("m", recipe.record(recipe.rounds, "d", "r", "n", "s"))).profile.mu
    assert mu is not None
    return float(mu * recipe.noise_multiplier * np.sqrt((added.cumsum(axis=0) ** 2).sum(axis=1).mean()))


def test_at_the_same_price_more_bands_err_less_and_a_tree_more() -> None:
    rounds = 60
    errors = [error(replace(RECIPE, rounds=rounds, banded=BandedNoise.best(rounds, bands, 15))) for bands in (1, 2, 4, 8, 15)]
    assert errors == sorted(errors, reverse=True)
    plain, reduced = (
        error(replace(RECIPE, rounds=rounds, banded=None, restarts=3, variance_reduced=variance_reduced))
        for variance_reduced in (False, True)
    )
    assert errors[-1] < reduced < plain


def test_the_papers_rounds_cost_less_noise_with_a_matrix() -> None:
    """What docs/ftrl.md says of 2,000 rounds in which nobody takes part twice."""
    tree = STACKOVERFLOW["8.2"]
    assert error(replace(tree, variance_reduced=False)) == pytest.approx(7.73, abs=0.005)
    assert error(tree) == pytest.approx(5.86, abs=0.005)
    once = BandedNoise.square_root(2000, 2000)  # μ = 1/σ
    assert math.sqrt(once.squared_errors().mean()) == pytest.approx(3.20, abs=0.005)


@pytest.mark.parametrize(
    ("columns", "separation", "text"),
    [
        (np.ones((4, 2)) / math.sqrt(2), 2, "below the matrix"),
        (np.array([[1.0, 1e-5], [1.0, 0.0]]), 2, "norm at most 1"),
        (np.array([[-1.0], [1.0]]), 1, "positive diagonal"),
        (np.array([[0.5, 0.5], [1.0, 0.0]]), 1, "2 bands over 2 rounds for users who take part once in 1"),
    ],
)
def test_matrices_that_the_theorem_does_not_cover_are_refused(columns: Any, separation: int, text: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(text)):
        BandedNoise(columns, separation)


def test_users_come_again_after_the_separation_and_other_orders_are_refused() -> None:
    order = RECIPE.draw_users(np.random.default_rng(0), 6)
    assert all(np.array_equal(order[step], order[step + 3]) for step in range(4))
    assert sorted(np.concatenate(order[:3]).tolist()) == list(range(6))
    assert len(RECIPE.check_users(order, 6)) == 7
    long = replace(RECIPE, banded=BandedNoise.best(7, 2, separation=20))
    assert sorted(np.concatenate(long.draw_users(np.random.default_rng(0), 14)).tolist()) == list(range(14))
    with pytest.raises(TrainingError, match=r"3 rounds with 2 users each need 6 users, and there are 5"):
        RECIPE.draw_users(np.random.default_rng(0), 5)
    early = [[0], [1], [2], [3], [2], [4], [5]]
    with pytest.raises(TrainingError, match=r"user 2 takes part in rounds 3 and 5 and the guarantee covers one in any 3"):
        RECIPE.check_users(early, 6)
    changes: list[tuple[dict[str, Any], str]] = [({"rounds": 8}, "a column for every round"), ({"restarts": 6}, "no restarts")]
    for change, text in changes:
        with pytest.raises(TrainingError, match=text):
            replace(RECIPE, **change)


def test_records_of_checkpoints_are_one_run() -> None:
    models = tuple(Model(f"at {rounds}", RECIPE.record(rounds, "users", "one", "noise", "order")) for rounds in (2, 3, 4, 7))
    assert latest_checkpoints(Portfolio(models).models) == (models[-1],)
    assert [run_profile(model).profile.mu for model in models] == pytest.approx([math.sqrt(k) / 4 for k in (1, 1, 2, 3)])


def test_noise_in_the_parameters_is_the_matrix() -> None:
    """Users without examples leave noise alone: σC/B times that of a prefix sum."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.training import ftrl

    class Nobody:
        def __len__(self) -> int:
            return 6

        def examples(self, user: int, step: int) -> ftrl.Examples:
            return np.zeros((0, 200), dtype=np.float32), np.zeros((0, 1), dtype=np.float32)

    network = torch.nn.Linear(200, 100, bias=False)
    start = network.weight.detach().clone()
    made = ftrl.checkpoints(network, Nobody(), RECIPE, lambda *_: torch.zeros(()), dataset="d", run="r", keep=range(1, 7))
    unit = 0.7 * 4.0 * 0.1 / 2
    found = [float(((trained.state["weight"] - start) / unit).var()) for trained in made]
    assert RECIPE.banded is not None
    assert found == pytest.approx(RECIPE.banded.squared_errors().tolist(), rel=0.06)  # six deviations of such a variance
