"""`PrivateLinearClassifier`: calibrated to its target, certified, and a scikit-learn classifier as far as privacy allows."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpmerge import Ledger, Portfolio, verify
from dpmerge.errors import DpmergeError, LedgerError, TargetError, TrainingError
from dpmerge.records import DpSgd
from dpmerge.training import LinearHead, LinearSetting, Recipe, calibrated

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpmerge.training import PrivacyWarning, PrivateLinearClassifier

# Two fits are never the same: noise that can be drawn again protects nobody.
TWO_FITS = {
    "check_classifier_data_not_an_array": "compares the predictions of two fits",
    "check_supervised_y_2d": "compares the predictions of two fits",
    "check_fit_idempotent": "fits twice and expects the same model",
}


def blobs(count: int = 600, classes: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    y = np.arange(count) % classes
    return rng.standard_normal((classes, 5))[y] * 1.5 + 0.4 * rng.standard_normal((count, 5)), y


@pytest.mark.filterwarnings("ignore")
def test_it_passes_scikit_learns_checks() -> None:
    found = check_estimator(
        PrivateLinearClassifier(steps=5, norm_bound=20.0), expected_failed_checks=TWO_FITS, on_skip=None, on_fail=None
    )
    failed = [one["check_name"] for one in found if one["status"] == "failed"]
    assert failed == [] and sum(one["status"] == "passed" for one in found) > 45


@pytest.mark.parametrize("loss", [None, "one-vs-rest"])
def test_a_fit_meets_its_target_and_says_so(tmp_path: Path, loss: Any) -> None:
    Ledger.create(tmp_path / "ledger.db", dataset="private", adjacency="add-remove", epsilon=10.0, delta=1e-5)
    x, y = blobs()
    names = np.array(["a", "b", "c"])
    made = PrivateLinearClassifier(
        8.0, 1e-5, norm_bound=5.0, classes=names, loss=loss, folder=tmp_path / "kept", ledger=tmp_path / "ledger.db"
    )
    fitted = clone(made).fit(x, names[y])
    assert fitted.score(x, names[y]) > 0.9 and set(fitted.predict(x)) <= set(names)
    assert fitted.guarantee_.theorem == "hidden-run" and 7.8 < fitted.guarantee_.epsilon <= 8.0
    assert np.allclose(fitted.predict_proba(x).sum(axis=1), 1)
    head = LinearHead.load(tmp_path / "kept" / "release")
    assert np.array_equal(head.weight, fitted.coef_)
    private = LinearHead.load(tmp_path / "kept" / "private" / "model")
    assert np.abs(private.weight - fitted.coef_).max() > 1e-6  # noise was added
    portfolio = Portfolio(tmp_path / "kept" / "private")
    verdict = verify(tmp_path / "kept" / "release", portfolio=portfolio, ledger=tmp_path / "ledger.db")
    assert verdict.code == 0, verdict.broken
    total = Ledger(tmp_path / "ledger.db").cumulative()
    assert total is not None and total.epsilon == pytest.approx(fitted.guarantee_.epsilon, rel=1e-3)
    mechanism = fitted.record_.mechanism
    assert isinstance(mechanism, DpSgd) and mechanism.convex == ("unclipped" if loss is None else "glm")
    loaded = PrivateLinearClassifier.load(tmp_path / "kept" / "release", classes=names)
    assert np.array_equal(loaded.predict(x), fitted.predict(x)) and loaded.score(x, names[y]) == fitted.score(x, names[y])
    with pytest.raises(TrainingError, match=r"classes names 2 labels; the head in .* has 3"):
        PrivateLinearClassifier.load(tmp_path / "kept" / "release", classes=[0, 1])
    with pytest.raises(DpmergeError):  # a folder is never written over
        clone(made).fit(x, names[y])


def test_labels_taken_from_the_data_are_said_to_be_public(tmp_path: Path) -> None:
    x, y = blobs(classes=2)
    with pytest.warns(PrivacyWarning, match="classes was not given: which labels there are is public"):
        fitted = PrivateLinearClassifier(4.0, norm_bound=5.0, steps=5).fit(x, y)
    assert "which labels there are is public: they were taken from the data" in fitted.guarantee_.assumptions
    assert fitted.certificate_ is None  # it could not say so
    stated = PrivateLinearClassifier(4.0, norm_bound=5.0, steps=5, classes=[0, 1, 7]).fit(x, y)
    assert len(stated.guarantee_.assumptions) < len(fitted.guarantee_.assumptions) and len(stated.classes_) == 3
    assert stated.certificate_ is not None and "the number of examples is public" in stated.guarantee_.assumptions
    for changes, error, text in (
        ({"folder": tmp_path / "x"}, TrainingError, "needs them stated"),
        ({"classes": [0, 2]}, ValueError, "labels that are not among classes"),
        ({"classes": [0]}, ValueError, "greater than one"),
        ({"classes": [0, 1], "epsilon": -1.0}, TargetError, "epsilon is -1"),
        ({"classes": [0, 1], "delta": 2.0}, TargetError, "delta is 2"),
        ({"classes": [0, 1], "clip": 0.0}, TrainingError, "clip must be positive"),
        ({"classes": [0, 1], "learning_rate": 0.0}, TrainingError, "learning_rate must be positive"),
        ({"norm_bound": None}, TypeError, "norm_bound must be an instance of"),
        ({"norm_bound": -1.0}, ValueError, "norm_bound == -1.0, must be > 0"),
        ({"loss": "svm"}, ValueError, "loss is 'svm'; it must be one of softmax"),
        ({"steps": 2.5}, TypeError, "steps must be an instance of"),
        ({"epsilon": "2"}, TypeError, "epsilon must be an instance of"),
        ({"classes": [0, 1, 2], "loss": "logistic"}, TrainingError, "two classes"),
        ({"classes": [0, 1], "ledger": tmp_path / "none.db"}, LedgerError, "no such ledger"),
    ):
        arguments: dict[str, Any] = {"epsilon": 4.0, "norm_bound": 5.0, "steps": 5, **changes}
        with pytest.raises(error, match=text):
            PrivateLinearClassifier(**arguments).fit(x, y)


def test_full_batches_need_the_noise_of_the_closed_form() -> None:
    """M = Ts/√(Tν² + τ²) (docs/theory.md §9.3), against the μ at which a Gaussian has this ε and δ."""
    epsilon, delta = 1.0, 1e-5
    setting = LinearSetting(Recipe(steps=40, learning_rate=0.1, clip=3.0, noise_multiplier=1.0), "logistic", 500, 2.0)
    found = calibrated(setting, epsilon=epsilon, delta=delta)
    mu = 40 * 0.1 * 3.0 / 500 / math.sqrt(found.variance)
    exact = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert exact <= delta <= exact * 1.05
    training = 40 * (0.1 * 3.0 * found.setting.recipe.noise_multiplier / 500) ** 2
    assert training + found.release_noise**2 == pytest.approx(found.variance)


def test_poisson_batches_are_calibrated_below_composition() -> None:
    """The hidden run leaves less variance than the noise that composition would need."""
    setting = LinearSetting(Recipe(steps=30, learning_rate=0.1, clip=3.0, noise_multiplier=1.0, rate=0.1), "logistic", 500, 2.0)
    found = calibrated(setting, epsilon=1.0, delta=1e-5)
    from dpmerge.profiles import run_profile

    def composed(multiplier: float) -> float:
        moved = LinearSetting(Recipe(**{**vars(setting.recipe), "noise_multiplier": multiplier}), "logistic", 500, 2.0)
        return run_profile(moved.alike(1).models[0]).profile.epsilon(1e-5)

    low, high = 0.3, 10.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if composed(middle) <= 1.0 else (middle, high)
    assert found.variance < 30 * (0.1 * 3.0 * low / 50) ** 2


def test_there_is_no_seed() -> None:
    x, y = blobs(60, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        one, two = (PrivateLinearClassifier(norm_bound=5.0, steps=3).fit(x, y).coef_ for _ in range(2))
    assert not np.array_equal(one, two)
    assert "random_state" not in PrivateLinearClassifier().get_params()
