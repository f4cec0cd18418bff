"""DP-FTRL: the noise of the tree against its definition, who takes part, the record's guarantee, and training itself."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import rdp
from hypothesis import given, settings, strategies as st

from dpmerge.errors import CheckpointError, RecordError, TrainingError
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Portfolio, latest_checkpoints
from dpmerge_lab.training.ftrl_recipe import STACKOVERFLOW, FtrlRecipe, nodes_above
from dpmerge_lab.training.tree_noise import TreeNoise

Floats = npt.NDArray[np.float64]

RECIPE = FtrlRecipe(
    rounds=6, users_per_round=2, clip=0.1, noise_multiplier=0.0, server_learning_rate=0.7, client_learning_rate=0.5, batch=2
)


# --- the tree ----------------------------------------------------------------------------------------------------------------


def blocks(steps: int) -> list[tuple[int, int]]:
    """All dyadic blocks within so many steps, first and end: the nodes whose noisy sums the theorem releases."""
    return [
        (first, first + size)
        for size in (2**height for height in range(steps.bit_length()))
        for first in range(0, steps - size + 1, size)
    ]


def noises(steps: int, variance_reduced: bool) -> Floats:
    """What the noise of every prefix is made of: in row t the weight of each draw, so that products are covariances."""
    drawn: list[int] = []

    def draw() -> Floats:
        drawn.append(1)
        return np.asarray(np.eye(2 * steps)[len(drawn) - 1])

    tree = TreeNoise(draw, variance_reduced)
    return np.array([tree.prefix() for _ in range(steps)])


def parts(steps: int) -> list[tuple[int, int]]:
    """The blocks of one prefix: its length in binary, the largest first."""
    found, first = [], 0
    for height in reversed(range(steps.bit_length())):
        if steps >> height & 1:
            found.append((first, first + 2**height))
            first += 2**height
    return found


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 21])
def test_covariances_of_the_plain_tree_are_shared_nodes(steps: int) -> None:
    found = noises(steps, variance_reduced=False)
    expected = [[len(set(parts(s)) & set(parts(t))) for t in range(1, steps + 1)] for s in range(1, steps + 1)]
    assert np.array_equal(found @ found.T, expected)
    assert [row @ row for row in found] == [t.bit_count() for t in range(1, steps + 1)]


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 21])
def test_reduced_noise_is_that_of_the_best_estimate_from_the_nodes_below(steps: int) -> None:
    """Least squares over all blocks within a block, by brute force, is what each prefix adds up."""
    found = noises(steps, variance_reduced=True)
    for t in range(1, steps + 1):
        variance = 0.0
        for first, end in parts(t):
            within = [(a, b) for a, b in blocks(steps) if first <= a and b <= end]
            sums = np.array([[a <= leaf < b for leaf in range(first, end)] for a, b in within], dtype=float)
            variance += float(np.ones(end - first) @ np.linalg.inv(sums.T @ sums) @ np.ones(end - first))
        assert found[t - 1] @ found[t - 1] == pytest.approx(variance, rel=1e-12)
        assert variance == pytest.approx(sum(1 / (2 - 1 / (end - first)) for first, end in parts(t)))
        assert variance < t.bit_count() or t % 2 == 1  # a leaf alone cannot be improved


@pytest.mark.parametrize("variance_reduced", [False, True])
def test_released_sums_are_functions_of_the_noisy_nodes_and_one_user_moves_few_of_them(variance_reduced: bool) -> None:
    """One linear map gives noisy prefix sums from noisy node sums; a zeroed contribution is in ⌈log₂(n+1)⌉ nodes at most."""
    for steps in (1, 5, 8, 13):
        nodes = np.array([[first <= leaf < end for leaf in range(steps)] for first, end in blocks(steps)], dtype=float)
        weights = noises(steps, variance_reduced)
        used = weights[:, : int(np.flatnonzero(weights.any(axis=0)).max()) + 1]
        # The weights of the draws, taken for weights of the nodes they belong to, give the true prefix sums.
        order = [node for step in range(1, steps + 1) for node in _completed(step, variance_reduced)]
        picked = np.array([nodes[blocks(steps).index(node)] for node in order])
        assert np.allclose(used @ picked[: used.shape[1]], np.tril(np.ones((steps, steps))))
        moved = nodes.sum(axis=0)
        assert moved.max() == nodes_above(steps) == math.ceil(math.log2(steps + 1))


def _completed(step: int, variance_reduced: bool) -> list[tuple[int, int]]:
    """The nodes whose noise is drawn at a step: all blocks that end there, or the largest alone."""
    ending = [(step - 2**height, step) for height in range((step & -step).bit_length())]
    return ending if variance_reduced else ending[-1:]


@given(st.integers(1, 300), st.booleans())
@settings(max_examples=30, deadline=None)
def test_memory_is_logarithmic_and_a_restart_forgets(steps: int, variance_reduced: bool) -> None:
    count = 0

    def draw() -> float:
        nonlocal count
        count += 1
        return float(count)

    tree, again = TreeNoise(draw, variance_reduced), TreeNoise(draw, variance_reduced)
    for t in range(1, steps + 1):
        tree.prefix()
        assert len(tree._nodes) == t.bit_count() <= nodes_above(t)
    tree.restart()
    count = 0
    after = [tree.prefix() for _ in range(5)]
    count = 0
    assert after == [again.prefix() for _ in range(5)]


@pytest.mark.parametrize("variance_reduced", [False, True])
def test_increments_add_up_to_the_prefixes_and_the_last_noise_stays_after_a_restart(variance_reduced: bool) -> None:
    one, other = (iter(np.random.default_rng(0).normal(size=50)) for _ in range(2))
    tree, plain = TreeNoise(lambda: next(one), variance_reduced), TreeNoise(lambda: next(other), variance_reduced)
    total, before = 0.0, 0.0
    for step in range(12):
        if step == 5:
            tree.restart()
            plain.restart()
            before = total
        total += tree.increment()
        assert total == pytest.approx(before + plain.prefix())


# --- who takes part, and what the record says ---------------------------------------------------------------------------------


def model(recipe: FtrlRecipe, rounds: int) -> Model:
    return Model(f"at {rounds}", recipe.record(rounds, "users", "one", "noise", "order"))


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_nobody_takes_part_twice_in_a_tree(trees: int, tree_rounds: int, per_round: int, spare: int) -> None:
    recipe = replace(RECIPE, rounds=trees * tree_rounds, restarts=trees - 1, users_per_round=per_round)
    users = tree_rounds * per_round + spare
    order = recipe.draw_users(np.random.default_rng(trees), users)
    assert [len(members) for members in order] == [per_round] * recipe.rounds
    for tree in range(trees):
        together = np.concatenate(order[tree * tree_rounds : (tree + 1) * tree_rounds])
        assert len(set(together.tolist())) == together.size and 0 <= together.min() <= together.max() < users
    assert [members.tolist() for members in recipe.check_users(order, users)] == [members.tolist() for members in order]
    with pytest.raises(TrainingError, match="would take part twice in one tree"):
        recipe.draw_users(np.random.default_rng(0), tree_rounds * per_round - 1)


def test_orders_that_the_guarantee_does_not_cover_are_refused() -> None:
    recipe = replace(RECIPE, rounds=4, restarts=1)
    fine = [[0, 1], [2, 3], [3, 0], [1]]  # fewer users than planned are no harm
    assert len(recipe.check_users(fine, 4)) == 4
    for order, text in (
        ([[0, 1], [1, 2], [3, 0], [1, 2]], "user 1 takes part in rounds 1 and 2 of one tree"),
        ([[0, 1], [2, 3], [3, 3], [1, 2]], "user 3 takes part in rounds 3 and 3 of one tree"),
        ([[0, 1], [2, 4], [3, 0], [1, 2]], "round 2 names user 4; they are numbered from 0 to 3"),
        ([[0, 1, 2], [3], [3, 0], [1, 2]], "round 1 has 3 users; the recipe has 2"),
        (fine[:3], "has 3 rounds; the recipe has 4"),
    ):
        with pytest.raises(TrainingError, match=re.escape(text)):
            recipe.check_users(order, 4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rounds": 0}, "rounds must"),
        ({"users_per_round": 0}, "users_per_round"),
        ({"clip": 0.0}, "clip"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"server_learning_rate": math.inf}, "server_learning_rate"),
        ({"client_learning_rate": 0.0}, "client_learning_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"restarts": 6}, "restarts"),
        ({"batch": 0}, "batch"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"rounds": 10, "restarts": 6}, "every 2 rounds there would be 4"),
    ],
)
def test_recipes_that_cannot_be_run_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(TrainingError, match=text):
        replace(RECIPE, **change)


@pytest.mark.parametrize(("rounds", "restarts"), [(1, 0), (100, 0), (127, 0), (128, 0), (10, 3), (400, 3), (508, 3), (60, 59)])
def test_the_record_is_accounted_as_dp_accounting_does(rounds: int, restarts: int) -> None:
    recipe = replace(RECIPE, rounds=rounds, restarts=restarts, noise_multiplier=7.0)
    made = model(recipe, rounds)
    assert (made.record.adjacency, made.mechanism.kind, made.record.source) == ("zero-out", "dp-ftrl", "recorded")
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for leaves in recipe.trees(rounds):
        accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(7.0, leaves))
    profile = run_profile(made).profile
    assert profile.renyi(np.array([2.0, 8.0])) == pytest.approx(
        [accountant._rdp[list(accountant._orders).index(order)] for order in (2.0, 8.0)]
    )
    assert profile.epsilon_by_renyi(1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert profile.epsilon(1e-6) < accountant.get_epsilon(1e-6)


@given(st.integers(1, 40), st.integers(1, 6), st.data())
@settings(max_examples=200, deadline=None)
def test_every_kept_checkpoint_states_what_its_trees_cost(tree_rounds: int, trees: int, data: st.DataObject) -> None:
    recipe = replace(RECIPE, rounds=tree_rounds * trees, restarts=trees - 1, noise_multiplier=5.0)
    rounds = data.draw(st.integers(1, recipe.rounds))
    paid = run_profile(model(recipe, rounds)).profile.mu
    assert paid is not None
    assert paid == pytest.approx(math.sqrt(sum(map(nodes_above, recipe.trees(rounds)))) / 5)
    assert rounds in recipe.kept([rounds])


def test_checkpoints_after_the_last_round_are_refused() -> None:
    with pytest.raises(TrainingError, match="between 1 and 32 rounds"):
        replace(RECIPE, rounds=32, restarts=3).kept([33])


def test_records_of_checkpoints_are_one_run() -> None:
    recipe = replace(RECIPE, rounds=28, restarts=3, noise_multiplier=5.0)
    models = tuple(model(recipe, rounds) for rounds in (3, 7, 8, 14, 20, 28))
    portfolio = Portfolio(models)
    assert [m.mechanism.restarts for m in models if m.mechanism.kind == "dp-ftrl"] == [0, 0, 1, 1, 2, 3]
    assert latest_checkpoints(portfolio.models) == (models[-1],)
    epsilons = [run_profile(m).profile.epsilon(1e-6) for m in models]
    assert epsilons == sorted(epsilons)


def test_the_papers_stackoverflow_setting() -> None:
    """ε = 8.2 and 18.9 at δ = 1e-6 are ρ = 1/(2σ²) by the tight Rényi conversion at whole orders; the tree pays the same."""
    for name, stated_rho in (("8.2", 1.08), ("18.9", 4.31)):
        recipe = STACKOVERFLOW[name]
        assert recipe.rounds * recipe.users_per_round < 342_477
        profile = run_profile(model(recipe, 2000)).profile
        orders = np.arange(2.0, 100.0)
        rho = float(profile.renyi(np.array([2.0]))[0]) / 2
        assert rho == pytest.approx(stated_rho, rel=6e-3)
        tight = orders * rho + np.log1p(-1 / orders) - (math.log(1e-6) + np.log(orders)) / (orders - 1)
        assert f"{tight.min():.1f}" == name
        assert profile.epsilon(1e-6) < profile.epsilon_by_renyi(1e-6) < tight.min()  # 7.60 < 8.10, 17.65 < 18.69
    assert not run_profile(model(STACKOVERFLOW["inf"], 2000)).profile.is_private


# --- training -----------------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from dpmerge.checkpoints import Run  # noqa: E402
from dpmerge_lab.training import ftrl  # noqa: E402
from dpmerge_lab.training.averaging import TailMean, TrainingOn  # noqa: E402
from dpmerge_lab.training.lstm import NextWord, next_word_accuracy, next_word_loss  # noqa: E402


class Arrays:
    """Users whose examples are in memory."""

    def __init__(self, examples: list[ftrl.Examples]) -> None:
        self.held, self.asked = examples, [0] * len(examples)

    def __len__(self) -> int:
        return len(self.held)

    def examples(self, user: int, step: int) -> ftrl.Examples:
        self.asked[user] += 1
        return self.held[user]


def regression(users: int = 12) -> Arrays:
    generator = np.random.default_rng(0)
    truth = np.array([[1.0], [-2.0], [0.5]], dtype=np.float32)
    inputs = generator.normal(size=(users, 5, 3)).astype(np.float32)
    return Arrays([(x, x @ truth) for x in inputs])


def squared(network: Any, inputs: Any, targets: Any) -> Any:
    return ((network(inputs) - targets) ** 2).mean()


def line() -> Any:
    network = torch.nn.Linear(3, 1)
    with torch.no_grad():
        network.weight.fill_(0.25)
        network.bias.fill_(-0.5)
    return network


def vector(network: Any) -> Any:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def by_hand(recipe: FtrlRecipe, clients: Arrays, order: list[list[int]]) -> list[Any]:
    """Momentum SGD by torch's own optimizer on the means of clipped updates, each user trained by torch's own SGD."""
    network = line()
    server = torch.optim.SGD(network.parameters(), lr=recipe.server_learning_rate, momentum=recipe.momentum)
    found = []
    for members in order:
        total = torch.zeros(4)
        for user in members:
            local = line()
            local.load_state_dict(network.state_dict())
            client = torch.optim.SGD(local.parameters(), lr=recipe.client_learning_rate)
            for _ in range(recipe.local_epochs):
                for first in range(0, 5, recipe.batch):
                    x, y = (torch.from_numpy(part[first : first + recipe.batch]) for part in clients.held[user])
                    client.zero_grad()
                    squared(local, x, y).backward()
                    client.step()
            update = vector(network) - vector(local)
            norm = float(update.double().norm())
            total += update * min(1.0, recipe.clip * (1 - 1e-5) / norm)
        mean = total / recipe.users_per_round
        network.weight.grad, network.bias.grad = mean[:3].reshape(1, 3).clone(), mean[3:].clone()
        server.step()
        found.append(vector(network))
    return found


ORDER = [[0, 1], [2, 3], [4, 5], [0, 2], [3, 6], [7, 8]]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip", [0.1, 100.0])
@pytest.mark.parametrize("local_epochs", [1, 2])
def test_without_noise_it_is_momentum_sgd_on_clipped_updates(momentum: float, clip: float, local_epochs: int) -> None:
    recipe = replace(RECIPE, restarts=1, momentum=momentum, clip=clip, local_epochs=local_epochs)
    clients = regression()
    made = ftrl.checkpoints(line(), clients, recipe, squared, dataset="d", run="r", keep=[1, 2, 3, 4, 5], order=ORDER)
    for trained, expected in zip(made, by_hand(recipe, clients, ORDER), strict=True):
        assert torch.equal(torch.cat([part.flatten() for part in trained.state.values()]), expected)


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_users_side_by_side_are_the_same(clip: float) -> None:
    """Also where they have different numbers of examples, or none."""
    recipe, clients = replace(RECIPE, restarts=1, momentum=0.5, clip=clip, local_epochs=2), regression()
    for user, left in ((0, 0), (2, 3), (4, 1)):
        clients.held[user] = clients.held[user][0][:left], clients.held[user][1][:left]
    one, other = (
        [
            torch.cat([part.flatten() for part in trained.state.values()])
            for trained in ftrl.checkpoints(
                line(), clients, recipe, squared, dataset="d", run="r", keep=[1, 3], order=ORDER, together=together
            )
        ]
        for together in (False, True)
    )
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(one, other, strict=True))
    assert not torch.allclose(one[0], one[-1])


def test_updates_are_clipped_to_the_norm_and_infinite_ones_are_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    long = torch.randn(3_000_000, generator=generator)
    norm = ftrl.clipped(long, 0.3).double().norm()
    assert 0.3 * (1 - 2e-5) < norm <= 0.3
    short = long * 1e-5
    assert torch.equal(ftrl.clipped(short, 0.3), short)
    assert not ftrl.clipped(torch.zeros(4), 1.0).any()
    for wrong in (math.inf, math.nan):
        assert not ftrl.clipped(torch.tensor([1.0, wrong]), 1.0).any()
    assert ftrl.clipped(torch.full((4,), 1e38), 1.0).norm() == pytest.approx(1.0, abs=2e-5)


def test_one_user_moves_what_the_server_learns_of_a_round_by_the_clip_at_most() -> None:
    """Zeroing a user, or giving it absurd examples, changes its round's sum by no more than C."""
    recipe = replace(RECIPE, rounds=1, clip=0.05, server_learning_rate=2.0)  # θ moves by the sum itself
    with_all, without = regression(), regression()
    without.held[1] = without.held[1][0][:0], without.held[1][1][:0]
    absurd = regression()
    absurd.held[1] = np.full((5, 3), 1e30, dtype=np.float32), np.full((5, 1), -1e30, dtype=np.float32)
    results = [
        next(ftrl.checkpoints(line(), clients, recipe, squared, dataset="d", run="r", order=[[0, 1]])).state
        for clients in (with_all, without, absurd)
    ]
    vectors = [torch.cat([part.flatten() for part in state.values()]).double() for state in results]
    assert 0.04 < (vectors[0] - vectors[1]).norm() <= 0.05
    assert torch.equal(vectors[1], vectors[2])


@pytest.mark.parametrize(("variance_reduced", "variances"), [(False, [1, 1, 2]), (True, [1, 2 / 3, 5 / 3])])
def test_noise_in_the_parameters_is_the_trees(variance_reduced: bool, variances: list[float]) -> None:
    """Users without examples leave noise alone: σC/B times a prefix' noise, and after a restart the sum of both trees'."""
    recipe = FtrlRecipe(6, 4, 0.5, 3.0, 2.0, 1.0, restarts=1, variance_reduced=variance_reduced)
    nobody = Arrays([(np.zeros((0, 200), dtype=np.float32), np.zeros((0, 1), dtype=np.float32))] * 16)
    network = torch.nn.Linear(200, 100, bias=False)
    start = network.weight.detach().clone()
    made = ftrl.checkpoints(network, nobody, recipe, squared, dataset="d", run="r", keep=range(1, 6))
    unit = 2.0 * 3.0 * 0.5 / 4
    found = [float(((trained.state["weight"] - start) / unit).var()) for trained in made]
    expected = [*variances, *(variances[-1] + v for v in variances)]
    assert found == pytest.approx(expected, rel=0.06)  # 20,000 numbers: 0.06 is six deviations of a variance


def test_momentum_is_the_papers() -> None:
    """θ − η Σ γ^{t−s} S_s with the noisy prefix sums S: the noise of these is what is mixed, seen without any user."""
    recipe = FtrlRecipe(3, 1, 1.0, 1.0, 1.0, 1.0, momentum=0.5, variance_reduced=False)
    nobody = Arrays([(np.zeros((0, 200), dtype=np.float32), np.zeros((0, 1), dtype=np.float32))] * 3)
    network = torch.nn.Linear(200, 100, bias=False)
    start = network.weight.detach().clone()
    trained = list(ftrl.checkpoints(network, nobody, recipe, squared, dataset="d", run="r"))[-1]
    # Nodes: [0,1), [0,2), [2,3). S_1 = a, S_2 = b, S_3 = b + c, so Σ γ^{3−s} S_s = a/4 + b/2 + b + c.
    assert float((trained.state["weight"] - start).var()) == pytest.approx(1 / 16 + 9 / 4 + 1, rel=0.06)


def test_runs_have_their_own_randomness_and_users_their_turn(tmp_path: Path) -> None:
    clients = regression()
    recipe = replace(RECIPE, restarts=1, noise_multiplier=1.0, users_per_round=4)
    records = [
        list(ftrl.checkpoints(line(), clients, recipe, squared, dataset="d", run=run))[-1].record.mechanism for run in "ab"
    ]
    assert clients.asked == [4] * 12  # once in each of two trees, in two runs
    for fingerprint in ("noise_fingerprint", "sampler_fingerprint"):
        assert len({getattr(record, fingerprint) for record in records}) == 2
    stated = next(ftrl.checkpoints(line(), clients, RECIPE, squared, dataset="d", run="r", order=[[u] for u in range(6)]))
    assert stated.record.mechanism.sampler_fingerprint is None


def test_training_on_aggregates_starts_each_round_there() -> None:
    """From round 3 on; one of two users is missing, so with η = 2 a round ends where the other ends."""
    recipe = replace(RECIPE, clip=100.0, server_learning_rate=2.0, client_learning_rate=0.1)
    clients, order = regression(), [[user] for user in range(6)]
    made = ftrl.checkpoints(
        line(),
        clients,
        recipe,
        squared,
        dataset="d",
        run="r",
        keep=range(1, 7),
        order=order,
        training_on=TrainingOn(TailMean(2), 3),
    )
    iterates = [vector(line()), *(torch.cat([part.flatten() for part in trained.state.values()]) for trained in made)]
    for step in range(6):
        start = iterates[step] if step < 3 else (iterates[step - 1] + iterates[step]) / 2
        local = line()
        torch.nn.utils.vector_to_parameters(start.clone(), local.parameters())
        client = torch.optim.SGD(local.parameters(), lr=0.1)
        for first in range(0, 5, 2):
            client.zero_grad()
            squared(local, *(torch.from_numpy(part[first : first + 2]) for part in clients.held[step])).backward()
            client.step()
        assert torch.allclose(vector(local), iterates[step + 1], atol=1e-6)


def test_a_shift_shows_one_part_or_the_other() -> None:
    first, second = regression(6), regression(6)
    shifting = ftrl.ShiftingClients(first, second, period=4)
    for step, share in ((0, 1.0), (2, 0.0), (4, 1.0), (1, 0.5)):
        first.asked, second.asked = [0] * 6, [0] * 6
        for _ in range(400):
            shifting.examples(3, step)
        assert first.asked[3] + second.asked[3] == 400
        assert first.asked[3] == pytest.approx(400 * share, abs=0 if share != 0.5 else 60)
    with pytest.raises(TrainingError, match="same users"):
        ftrl.ShiftingClients(first, regression(5), period=4)
    with pytest.raises(TrainingError, match="no shift"):
        ftrl.ShiftingClients(first, second, period=1)


def test_what_cannot_be_trained_is_refused_before_anything_happens(tmp_path: Path) -> None:
    clients = regression()

    def refused(text: str, network: Any = None, recipe: FtrlRecipe = RECIPE, **more: Any) -> None:
        with pytest.raises((TrainingError, CheckpointError, RecordError), match=text):
            ftrl.train_ftrl(network or line(), clients, recipe, squared, **{"dataset": "d", "out": tmp_path / "out", **more})
        assert clients.asked == [0] * 12 and not (tmp_path / "out").exists()

    refused("beside its parameters", torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1)))
    refused("no parameters to train", torch.nn.Flatten())
    refused("float32", line().double())
    refused("take part twice", recipe=replace(RECIPE, users_per_round=3))
    refused("between 1 and 6", keep=[7])
    refused("the order of users has 1 rounds", order=[[0]])
    refused("dataset", dataset="")
    (tmp_path / "other" / "ftrl@6").mkdir(parents=True)
    refused("exists already", out=tmp_path / "other")
    (tmp_path / "file").touch()
    refused("no folder can be made there", out=tmp_path / "file" / "out")
    wild = replace(RECIPE, server_learning_rate=1e38, noise_multiplier=1e30)
    with pytest.raises(TrainingError, match="smaller learning rate"):
        ftrl.train_ftrl(line(), clients, wild, squared, dataset="d", out=tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


class Told:
    """A listener that counts."""

    def __init__(self) -> None:
        self.total, self.done, self.finished = 0, 0, False

    def start(self, total: int, label: str) -> None:
        self.total = total

    def advance(self) -> None:
        self.done += 1

    def finish(self) -> None:
        self.finished = True


def test_checkpoints_are_written_as_one_run(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    told, recipe = Told(), replace(RECIPE, noise_multiplier=4.0, restarts=1)
    folders = ftrl.train_ftrl(
        line(), regression(), recipe, squared, dataset="d", out=tmp_path / "run", name="so", keep=[2, 4], progress=told
    )
    assert [folder.name for folder in folders] == ["so@2", "so@4", "so@6"] and (told.total, told.done, told.finished) == (
        6,
        6,
        True,
    )
    run = Run.load(tmp_path / "run")
    assert [m.name for m in run.checkpoints] == ["so@2", "so@4", "so@6"]
    assert [m.mechanism.restarts for m in run.checkpoints if m.mechanism.kind == "dp-ftrl"] == [0, 1, 1]
    weights = [load_file(folder / "model.safetensors")["weight"] for folder in folders]
    assert weights[0].shape == (1, 3) and not np.array_equal(weights[1], weights[2])
    assert run.choose({"so@6": 1.0}, delta=1e-6).guarantee.epsilon == pytest.approx(
        run_profile(run.checkpoints[-1]).profile.epsilon(1e-6), rel=1e-6
    )


# --- the network --------------------------------------------------------------------------------------------------------------


def test_the_lstm_has_the_parameters_of_table_6() -> None:
    network = NextWord()
    counts = [sum(p.numel() for p in part.parameters()) for part in network.children()]
    assert counts == [960_384, 2_055_560, 64_416, 970_388]
    assert network(torch.zeros(2, 20, dtype=torch.int64)).shape == (2, 20, 10_004)


def test_the_constant_input_is_a_bias() -> None:
    """An LSTM of torch's with that bias, and the other at zero, gives the same."""
    network, torchs = NextWord(words=11, embedding=4, hidden=6), torch.nn.LSTM(4, 6, batch_first=True)
    ours, theirs = dict(network.lstm.named_parameters()), dict(torchs.named_parameters())
    with torch.no_grad():
        ours["weight_ih_l0"].normal_()
        theirs["weight_ih_l0"].copy_(ours["weight_ih_l0"][:, :-1])
        theirs["bias_ih_l0"].copy_(ours["weight_ih_l0"][:, -1])
        theirs["weight_hh_l0"].copy_(ours["weight_hh_l0"])
        theirs["bias_hh_l0"].zero_()
    tokens = torch.tensor([[1, 2, 3], [4, 5, 0]])
    expected = network.output(network.projection(torchs(network.embedding(tokens))[0]))
    assert torch.allclose(network(tokens), expected, atol=1e-6)


def test_padding_counts_neither_in_the_loss_nor_in_the_accuracy() -> None:
    network = NextWord(words=11, embedding=4, hidden=6)
    inputs, targets = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])
    padded = [torch.nn.functional.pad(part, (0, 2)) for part in (inputs, targets)]
    assert torch.allclose(next_word_loss(network, *padded), next_word_loss(network, inputs, targets))
    guess = network(inputs).argmax(-1)
    assert next_word_accuracy(network, inputs, guess, ignored=()) == 1.0
    assert next_word_accuracy(network, *padded) == next_word_accuracy(network, inputs, targets)
    assert math.isnan(next_word_accuracy(network, inputs, torch.zeros_like(targets)))
