"""Noise at release, and the ladder: what is certified, checked again, counted once, and the same after a kill."""

from __future__ import annotations

import json
import math
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file
from scipy.special import ndtr

import dpmerge as library
from dpmerge import Ledger, Portfolio
from dpmerge.errors import BudgetExceeded, CertificateError, CheckpointError, LedgerError, TargetError
from dpmerge.profiles import ShiftLaw
from dpmerge.profiles.formulas import gaussian_delta
from dpmerge.release import choose, enter_floor, preview
from dpmerge.release.entries import standing
from dpmerge.release.forms import RuleForm
from dpmerge.rules import Rounding
from dpmerge.tensors import merge_models
from tests import builders
from tests.ladder_kills import killed
from tests.ledger_workers import race
from tests.release_builders import DELTA, certificate, dpmerge, on_disk

STEPS, EFFECT = 10, 0.1 / 20  # of `convex`: learning rate × clip / batch
A = {"a": 1.0}


def convex(name: str, sigma: float = 4.0, **changes: Any) -> Any:
    """A full-batch run: hidden behind noise τ it is M-GDP with M = Ts/√(Tν² + τ²) (docs/theory.md §9.3)."""
    known = {"steps": STEPS, "batch": 20.0, "smoothness": 0.2, "convex": "glm", **changes}
    return builders.dp_sgd(name, sigma=sigma, **known)


@pytest.fixture
def portfolio(tmp_path: Path) -> Portfolio:
    return on_disk(tmp_path / "runs", convex("a"), convex("b", 40.0))


def merge(portfolio: Portfolio, out: Path, weights: dict[str, float] | None = None, **options: Any) -> library.Released:
    return library.merge(portfolio, weights or A, out=out, rule="combination", delta=DELTA, **options)


def ledger_of(folder: Path, epsilon: float = 3.0, **options: Any) -> Ledger:
    fields = {"dataset": builders.DATASET, "adjacency": "add-remove", "delta": DELTA, **options}
    return Ledger.create(folder / "ledger.db", epsilon=epsilon, **fields)


def total(ledger: Ledger) -> float:
    found = ledger.cumulative()
    return 0.0 if found is None else found.epsilon


def whole(portfolio: Portfolio, *names: str) -> float:
    weights = {name: 1 / len(names) for name in names}
    return library.joint(portfolio, weights, provenance="a-priori").guarantee(delta=DELTA).epsilon


def tensors(folder: Path) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in load_file(folder / "model.safetensors").items()}


# --- one release --------------------------------------------------------------------------------------------------------------


def test_noise_is_added_certified_and_checked_bit_for_bit(portfolio: Portfolio, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["merge", tmp_path / "runs", "--rule", "combination", "--weights", "a=1", "--delta", DELTA, "--noise", 0.25]
    result = dpmerge(*asked, "--out", out, "--recipient", "the *clinic*")
    assert result.exit_code == 0, result.output
    assert "noise at release: 0.25" in result.stdout
    held = certificate(out)
    assert held["rule"]["noise"] == (0.25).hex()
    assert held["recipient"] == "the *clinic*"
    assert held["guarantee"]["theorem"] == "hidden-run" and held["guarantee"]["standing"] == "proved"
    assert not any("rounding of the stored average" in text for text in held["guarantee"]["assumptions"])
    shift = STEPS * EFFECT / math.sqrt(STEPS * (4 * EFFECT) ** 2 + 0.25**2)
    assert gaussian_delta(shift, held["guarantee"]["epsilon"]) == pytest.approx(DELTA, rel=1e-4)
    added = load_file(out / "model.safetensors")["weight"] - load_file(tmp_path / "runs/a/model.safetensors")["weight"]
    assert 0.1 < float(np.std(added)) < 0.5
    verdict = library.verify(out, portfolio=portfolio)
    assert verdict.code == 0, verdict
    assert "the tensors are the stated combination with the noise of its ladder, bit for bit" in verdict.holds
    card = (out / "README.md").read_text()
    assert "Noise of standard deviation 0.25 was added to every parameter; it is what makes the guarantee hold." in card
    assert "It was released to `the *clinic*`." in card
    alone = library.verify(out)
    assert alone.code == 0
    assert any("was not checked: only the private portfolio has its secret" in text for text in alone.warnings)


def test_a_target_finds_the_least_noise_and_a_ladder_rounds_it_up(portfolio: Portfolio, tmp_path: Path) -> None:
    first = merge(portfolio, tmp_path / "one", epsilon=1.0)
    assert 0.99 < first.guarantee.epsilon <= 1.0
    second = merge(portfolio, tmp_path / "two", epsilon=0.5)
    ratio = second.certificate.rule.deviation / first.certificate.rule.deviation
    assert 32 * math.log2(ratio) == pytest.approx(round(32 * math.log2(ratio)), abs=1e-6)
    assert second.certificate.rule.ladder == first.certificate.rule.ladder
    assert 0.47 < second.guarantee.epsilon <= 0.5
    again = library.combination(portfolio, A, noise=second.certificate.rule.deviation).guarantee(delta=DELTA)
    assert second.guarantee.epsilon == pytest.approx(again.epsilon)
    assert library.verify(tmp_path / "two", portfolio=portfolio).code == 0
    enough = merge(portfolio, tmp_path / "enough", epsilon=10.0)
    assert enough.certificate.rule.noise is None
    assert merge(portfolio, tmp_path / "none", noise=0.0).certificate.rule.noise is None
    with pytest.raises(TargetError, match=r"these weights give ε = .* above 1"):
        merge(portfolio, tmp_path / "refused", epsilon=1.0, noise=0.0)
    with pytest.raises(TargetError, match=r"these weights give ε = .* above 1"):
        merge(portfolio, tmp_path / "refused", epsilon=1.0, noise=0.01)


def test_a_certificate_tells_nothing_of_the_secret(portfolio: Portfolio, tmp_path: Path) -> None:
    merge(portfolio, tmp_path / "out", noise=0.25)
    (file,) = (tmp_path / "runs/.dpmerge/ladders").glob("*")
    secret = json.loads(file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    told = (tmp_path / "out/certificate.json").read_text() + (tmp_path / "out/README.md").read_text()
    assert secret["id"] in told
    for hidden in (secret["key"], secret["models"]["a"]["content"], file.stem):
        assert hidden not in told
    assert Portfolio(tmp_path / "runs").names == ("a", "b")  # no portfolio takes the folder for a model


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"rule": "joint"}, "noise at release has no meaning for joint"),
        ({"rule": "selection"}, "noise at release has no meaning for selection"),
        ({"noise": -1.0}, "must be finite and not negative"),
        ({"noise": math.inf}, "must be finite and not negative"),
    ],
)
def test_noise_without_a_meaning_is_refused(portfolio: Portfolio, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    asked = {"rule": "combination", "noise": 1.0, "delta": DELTA, **changes}
    with pytest.raises(TargetError, match=words):
        library.merge(portfolio, A, out=tmp_path / "out", **asked)
    assert not (tmp_path / "runs/.dpmerge").exists()


def test_where_noise_buys_nothing_it_is_said_or_refused(tmp_path: Path) -> None:
    network = on_disk(tmp_path / "runs", convex("a", smoothness=None, convex=None))
    with pytest.raises(TargetError, match=r"these weights give .*; no noise at release gives ε = 0.5 here.*convex models"):
        merge(network, tmp_path / "out", epsilon=0.5)
    made = merge(network, tmp_path / "out", noise=0.25)
    assert made.guarantee.theorem == "single-run"
    assert any("the noise at release buys nothing here: it pays for convex models" in note for note in made.notes)
    assert "the guarantee does not rest on it" in (tmp_path / "out/README.md").read_text()
    assert library.verify(tmp_path / "out", portfolio=network).code == 0


def test_noise_that_does_not_cover_the_stored_numbers_counts_as_joint_release(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", convex("a"))
    save_file({"weight": np.full(8, 4096.0, dtype=np.float32)}, tmp_path / "runs/a/model.safetensors")
    made = merge(portfolio, tmp_path / "out", noise=0.25)  # the numbers lie 2^-11 apart
    assert made.guarantee.theorem == "single-run"
    assert any("0.25, is less than 1024 spacings of the stored numbers" in note for note in made.notes)
    with pytest.raises(TargetError, match="is less than 1024 spacings"):
        merge(portfolio, tmp_path / "two", epsilon=1.0)
    assert merge(portfolio, tmp_path / "three", noise=0.75).guarantee.theorem == "hidden-run"
    verdict = library.verify(tmp_path / "three", portfolio=portfolio)
    assert verdict.code == 0, verdict
    assert "the noise at release covers the arithmetic of the stored numbers" in verdict.holds


@pytest.mark.parametrize("stored", ["integers", "copies"])
def test_what_noise_would_not_hide_is_refused_before_anything_is_charged(tmp_path: Path, stored: str) -> None:
    portfolio, ledger = on_disk(tmp_path / "runs", convex("a")), ledger_of(tmp_path)
    values = np.random.default_rng(0).normal(size=(8, 8)) / 64
    second = (values * 64).astype(np.int8) if stored == "integers" else values.copy()
    save_file({"one": values, "two": second}, tmp_path / "runs/a/model.safetensors")
    words = {"integers": "tensor 'two' holds I8, to which no noise can be added", "copies": "'one' and 'two' hold the same"}
    for make in (
        lambda: merge(portfolio, tmp_path / "out", noise=0.25, ledger=tmp_path / "ledger.db"),
        lambda: enter_floor(ledger, portfolio, portfolio.weights(A), epsilon=1.0),
    ):
        with pytest.raises((CheckpointError, CertificateError), match=words[stored]):
            make()
    assert not ledger.history() and not (tmp_path / "runs/.dpmerge").exists()
    assert merge(portfolio, tmp_path / "out", noise=0.0).certificate.rule.noise is None


def test_an_average_with_a_model_without_noise_is_hidden_by_noise_at_release(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", convex("a", 0.0), convex("b"))
    made = merge(portfolio, tmp_path / "out", {"a": 0.5, "b": 0.5}, noise=0.25)
    assert made.guarantee.theorem == "hidden-run"
    assert any("After any other release each run counts whole: which bounds nothing" in note for note in made.notes)
    assert library.verify(tmp_path / "out", portfolio=portfolio).code == 0


# --- what is checked ----------------------------------------------------------------------------------------------------------


def test_verify_finds_another_noise_another_ladder_and_none(portfolio: Portfolio, tmp_path: Path) -> None:
    out, runs = tmp_path / "out", tmp_path / "runs"
    merge(portfolio, out, noise=0.25)
    merge(portfolio, tmp_path / "other", noise=0.5)
    held, other = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "other"))
    save_file({**held, "bias": other["bias"]}, out / "model.safetensors", metadata={"format": "pt"})
    assert any("tensor 'bias'" in fault for fault in library.verify(out, portfolio=portfolio).broken)
    save_file(held, out / "model.safetensors", metadata={"format": "pt"})
    assert library.verify(out, portfolio=portfolio).code == 0
    (file,) = (runs / ".dpmerge/ladders").glob("*.json")
    kept = file.read_bytes()
    file.unlink()
    missing = library.verify(out, portfolio=portfolio)
    assert missing.code == 2 and "the ladder of the noise is not in this portfolio" in missing.unchecked[0]
    content = json.loads(kept)
    models = {"a": {**content["models"]["a"], "content": "0" * 64}}
    for edited in ({"key": "0" * 64}, {"root": (1.0).hex()}, {"id": "0" * 32}, {"models": models}):
        file.write_text(json.dumps({**content, **edited}))
        assert any("was edited or renamed" in fault for fault in library.verify(out, portfolio=portfolio).broken)
    file.unlink()
    merge(portfolio, tmp_path / "anew", noise=0.25)  # the portfolio lost the file, and made another
    assert any("is not the one certified" in fault for fault in library.verify(out, portfolio=portfolio).broken)
    file.write_bytes(kept)
    file.with_name("other.json").write_text("{")  # what is wrong with other ladders is no matter
    assert library.verify(out, portfolio=portfolio).code == 0


def test_forms_without_noise_are_written_as_before() -> None:
    form = RuleForm.model_validate({"rule": "combination", "weights": {"a": (1.0).hex()}})
    assert not {"noise", "ladder"} & set(form.model_dump(mode="json"))
    for wrong in ({"noise": (0.0).hex()}, {"ladder": "x"}):
        with pytest.raises(ValidationError):
            RuleForm.model_validate({"rule": "combination", "weights": {"a": (1.0).hex()}, **wrong})
    noised = {"rule": "joint", "weights": {"a": (1.0).hex()}, "noise": (1.0).hex()}
    assert RuleForm.model_validate(noised).contradictions["noise under a rule that does not average"]
    rootless = {"rule": "combination", "weights": {"a": (1.0).hex()}, "ladder": "0" * 32}
    assert RuleForm.model_validate(rootless).contradictions["a ladder without noise"]


# --- one path ----------------------------------------------------------------------------------------------------------------


def test_the_same_noise_whoever_asks_and_another_for_another_average(portfolio: Portfolio, tmp_path: Path) -> None:
    merge(portfolio, tmp_path / "one", noise=0.25)
    merge(portfolio, tmp_path / "far", noise=1.0)
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    merge(Portfolio(tmp_path / "copy"), tmp_path / "two", noise=0.25)
    assert tensors(tmp_path / "one") == tensors(tmp_path / "two")
    (tmp_path / "copy/a").rename(tmp_path / "copy/renamed")
    merge(Portfolio(tmp_path / "copy"), tmp_path / "three", {"renamed": 1.0}, noise=0.25)
    assert tensors(tmp_path / "one") == tensors(tmp_path / "three")
    other = merge(portfolio, tmp_path / "other", {"a": 0.5, "b": 0.5}, noise=0.25)
    assert other.certificate.rule.ladder != certificate(tmp_path / "one")["rule"]["ladder"]
    shutil.copytree(tmp_path / "runs/b", tmp_path / "held")
    save_file({**load_file(tmp_path / "held/model.safetensors"), "bias": np.zeros(5)}, tmp_path / "runs/a/model.safetensors")
    changed = merge(portfolio, tmp_path / "changed", noise=0.25)
    assert changed.certificate.rule.ladder != certificate(tmp_path / "one")["rule"]["ladder"]
    assert len([*(tmp_path / "runs/.dpmerge/ladders").glob("*")]) == 3


def test_a_ladder_that_cannot_be_kept_is_no_ladder(portfolio: Portfolio, tmp_path: Path) -> None:
    (tmp_path / "runs/.dpmerge").mkdir()
    (tmp_path / "runs/.dpmerge/ladders").write_text("in the way")
    with pytest.raises(CertificateError, match="the secret of the noise cannot be kept"):
        merge(portfolio, tmp_path / "out", noise=0.25)
    assert not (tmp_path / "out").exists()


def test_of_ladders_made_at_once_one_is_used_by_all(portfolio: Portfolio, tmp_path: Path) -> None:
    def attempt(number: int) -> str:
        made = merge(portfolio, tmp_path / f"out-{number}", noise=0.25 * 2 ** (number / 7))
        return f"{made.certificate.rule.ladder}"

    found = race(4, attempt)
    assert len(set(found)) == 1 and len(found[0]) == 32, found
    for number in range(4):
        verdict = library.verify(tmp_path / f"out-{number}", portfolio=portfolio)
        assert verdict.code == 0, verdict


def test_a_model_that_changes_while_it_is_released_is_not_released(
    portfolio: Portfolio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the noise of one ladder would be added to two averages, whose difference it no longer hides."""
    making, file = sys.modules["dpmerge.release.making"], tmp_path / "runs/a/model.safetensors"
    kept = load_file(file)

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        save_file({name: value + 1 for name, value in kept.items()}, file)
        return merge_models(*arguments, **options)

    ledger = ledger_of(tmp_path)
    monkeypatch.setattr(making, "merge_models", meanwhile)
    with pytest.raises(CertificateError, match=r"was written to while it was released.*nothing was spent"):
        merge(portfolio, tmp_path / "out", noise=0.25, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "out").exists()
    assert total(ledger) == 0.0


# --- the ledger ---------------------------------------------------------------------------------------------------------------


def test_a_ladder_counts_as_its_least_noisy_release(portfolio: Portfolio, tmp_path: Path) -> None:
    ledger, where = ledger_of(tmp_path), tmp_path / "ledger.db"
    first = merge(portfolio, tmp_path / "one", epsilon=1.0, ledger=where, recipient="ann")
    assert total(ledger) == pytest.approx(first.guarantee.epsilon)
    assert not any("adds nothing" in note for note in first.notes)
    second = merge(portfolio, tmp_path / "two", epsilon=0.5, ledger=where, recipient="bob")
    assert total(ledger) == pytest.approx(first.guarantee.epsilon)
    assert any("this release adds nothing to the total" in note for note in second.notes)
    dependent = merge(portfolio, tmp_path / "three", epsilon=0.7, ledger=where, dependent=True)
    assert dependent.certificate.ledger is not None
    assert dependent.certificate.ledger.epsilon == pytest.approx(first.guarantee.epsilon)
    shown = dpmerge("ledger", "remaining", where).stdout
    assert "any ε up to 0.99" in shown and "from this ladder is free now" in shown
    assert f"the total stays {first.guarantee.epsilon:.3f}"[:20] in shown
    planned = ["plan", tmp_path / "runs", "--rule", "single", "--epsilon", 3, "--delta", DELTA, "--ledger", where]
    assert "from this ladder is free now" in dpmerge(*planned).stdout
    state = json.loads(dpmerge("ledger", "show", where, "--json").stdout)
    assert json.loads(dpmerge(*planned, "--json").stdout)["free"] == state["free"]
    assert state["free"][0]["noise"] == first.certificate.rule.deviation
    history = " ".join(dpmerge("ledger", "history", where).stdout.split())
    assert "to ann" in history and "noise" in history
    seen = preview(
        portfolio,
        choose(portfolio, "combination", weights=portfolio.weights(A), delta=DELTA, epsilon=0.3),
        tmp_path / "never",
        ledger=ledger,
    )
    assert seen.adds == 0.0 and seen.fits
    seen = preview(
        portfolio,
        choose(portfolio, "combination", weights=portfolio.weights(A), delta=DELTA, epsilon=2.0),
        tmp_path / "never",
        ledger=ledger,
    )
    assert seen.adds == pytest.approx(2.0 - first.guarantee.epsilon, rel=0.05)
    with pytest.raises(LedgerError, match=r"its ladder is charged down to .* A floor that is entered beforehand"):
        merge(portfolio, tmp_path / "below", epsilon=2.0, ledger=where, dependent=True)
    lower = merge(portfolio, tmp_path / "lower", epsilon=2.0, ledger=where)
    assert total(ledger) == pytest.approx(lower.guarantee.epsilon)
    for name in ("one", "two", "three", "lower"):
        verdict = library.verify(tmp_path / name, portfolio=portfolio, ledger=where)
        assert verdict.code == 0, verdict
    with pytest.raises(BudgetExceeded):
        merge(portfolio, tmp_path / "beyond", noise=0.01, ledger=where)


@pytest.mark.parametrize("other", ["selection", "other weights", "another ladder"])
def test_with_any_other_release_of_its_runs_a_ladder_counts_whole(portfolio: Portfolio, tmp_path: Path, other: str) -> None:
    ledger, where = ledger_of(tmp_path, epsilon=30.0), tmp_path / "ledger.db"
    merge(portfolio, tmp_path / "one", epsilon=1.0, ledger=where)
    if other == "selection":
        library.merge(portfolio, A, out=tmp_path / "two", rule="selection", delta=DELTA, ledger=where)
    elif other == "other weights":
        merge(portfolio, tmp_path / "two", {"a": 0.5, "b": 0.5}, noise=1.0, ledger=where)
    else:  # a copy of the portfolio that has lost its ladder draws other noise
        shutil.rmtree(tmp_path / "runs/.dpmerge")
        merge(portfolio, tmp_path / "two", epsilon=1.0, ledger=where)
    counted = whole(portfolio, "a", "b") if other == "other weights" else whole(portfolio, "a")
    assert total(ledger) == pytest.approx(counted, rel=1e-4)
    assert ledger.free_now() == []
    with pytest.raises(LedgerError, match="each run counts whole, whatever noise is added"):
        enter_floor(ledger, portfolio, portfolio.weights(A), epsilon=2.0)


def test_ladders_of_different_runs_each_keep_their_own_guarantee(portfolio: Portfolio, tmp_path: Path) -> None:
    """Both are Gaussian: together they are √(M_a² + M_b²)-GDP. A draw of one of them makes that one count whole."""
    ledger, where = ledger_of(tmp_path, epsilon=30.0), tmp_path / "ledger.db"
    noises = {"a": 0.25, "b": 0.5}
    for name, noise in noises.items():
        weights = portfolio.weights({name: 1.0})
        seen = preview(
            portfolio,
            choose(portfolio, "combination", weights=weights, delta=DELTA, noise=noise),
            tmp_path / "x",
            ledger=ledger,
        )
        merge(portfolio, tmp_path / name, {name: 1.0}, noise=noise, ledger=where)
        assert seen.total is not None and seen.total.epsilon == total(ledger)
    sigmas = {"a": 4.0, "b": 40.0}
    shifts = [STEPS * EFFECT / math.sqrt(STEPS * (sigmas[name] * EFFECT) ** 2 + noise**2) for name, noise in noises.items()]
    assert gaussian_delta(math.hypot(*shifts), total(ledger)) == pytest.approx(DELTA, rel=1e-3)
    found = ledger.cumulative()
    assert found is not None and found.theorem == "several-releases"
    assert any("nothing of these runs but this release" in text for text in found.assumptions)
    assert len(found.assumptions) == len(set(found.assumptions))
    free = {tuple(one["weights"]): one for one in ledger.free_now()}
    assert set(free) == {("a",), ("b",)}
    assert gaussian_delta(shifts[0], free["a",]["epsilon"]) == pytest.approx(DELTA, rel=1e-3)
    before = total(ledger)
    merge(portfolio, tmp_path / "more", {"a": 1.0}, noise=0.3, ledger=where, dependent=True)
    assert total(ledger) == before
    library.merge(portfolio, {"b": 1.0}, out=tmp_path / "drawn", rule="selection", delta=DELTA, ledger=where)
    whole_b = math.sqrt(STEPS) / 40.0
    assert gaussian_delta(math.hypot(shifts[0], whole_b), total(ledger)) == pytest.approx(DELTA, rel=1e-3)
    assert [tuple(one["weights"]) for one in ledger.free_now()] == [("a",)]
    library.merge(portfolio, {"a": 1.0}, out=tmp_path / "too", rule="selection", delta=DELTA, ledger=where)
    assert total(ledger) == pytest.approx(whole(portfolio, "a", "b"), rel=1e-3)


def test_a_floor_beside_other_releases_takes_what_the_budget_leaves(portfolio: Portfolio, tmp_path: Path) -> None:
    ledger, where = ledger_of(tmp_path, epsilon=1.0), tmp_path / "ledger.db"
    merge(portfolio, tmp_path / "b", {"b": 1.0}, noise=0.05, ledger=where)
    found = enter_floor(ledger, portfolio, portfolio.weights(A))
    assert 0.95 < total(ledger) <= 1.0
    with pytest.raises(BudgetExceeded, match="would bring the total to"):
        merge(portfolio, tmp_path / "below", noise=0.9 * found.noise, ledger=where)
    merge(portfolio, tmp_path / "above", noise=found.noise, ledger=where, dependent=True)


def test_under_a_floor_everything_is_free(portfolio: Portfolio, tmp_path: Path) -> None:
    ledger, where = ledger_of(tmp_path, epsilon=2.0), tmp_path / "ledger.db"
    said = dpmerge("ledger", "floor", where, tmp_path / "runs", "--weights", "a=1")
    assert said.exit_code == 0, said.output
    assert "floor entered: noise" in said.stdout
    floor = ledger.history()[0]
    assert floor.kind == "floor"
    assert 1.9 < total(ledger) <= 2.0
    assert "any ε up to 1.9" in dpmerge("ledger", "remaining", where).stdout
    for number, target in enumerate((0.5, 1.9, 1.0)):
        made = merge(portfolio, tmp_path / f"out-{number}", epsilon=target, ledger=where, dependent=True)
        assert made.certificate.ledger is not None and made.certificate.ledger.epsilon == total(ledger)
    deepest = merge(portfolio, tmp_path / "deepest", epsilon=total(ledger), ledger=where, dependent=True)
    assert deepest.certificate.rule.noise == floor.content["forms"][0]["noise"]
    assert "floor of a ladder of a, noise" in " ".join(dpmerge("ledger", "history", where).stdout.split())
    with pytest.raises(BudgetExceeded, match="the floor has ε = 3"):
        enter_floor(ledger, portfolio, portfolio.weights(A), epsilon=3.0)


def test_a_floor_that_needs_no_noise_is_refused(portfolio: Portfolio, tmp_path: Path) -> None:
    """As little noise as stored numbers allow would tell how large they are."""
    ledger = ledger_of(tmp_path, epsilon=20.0)
    with pytest.raises(LedgerError, match=r"without any noise, which is within 20: .* give the floor a smaller ε"):
        enter_floor(ledger, portfolio, portfolio.weights(A))
    assert not ledger.history()


def test_a_dependent_release_does_not_rely_on_what_may_still_be_voided(
    portfolio: Portfolio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, where = ledger_of(tmp_path), tmp_path / "ledger.db"
    merge(portfolio, tmp_path / "one", epsilon=0.5, ledger=where)
    with monkeypatch.context() as patched:  # a less noisy one is out, and was interrupted before its entry was completed
        patched.setattr(Ledger, "complete", lambda *_: (_ for _ in ()).throw(LedgerError("gone")))
        with pytest.raises(LedgerError, match="gone"):
            merge(portfolio, tmp_path / "lost", epsilon=2.0, ledger=where)
    charged = total(ledger)
    assert charged > 1.9
    with pytest.raises(LedgerError, match="its ladder is charged down to"):
        merge(portfolio, tmp_path / "relies", epsilon=1.0, ledger=where, dependent=True)
    merge(portfolio, tmp_path / "above", epsilon=0.4, ledger=where, dependent=True)
    free = merge(portfolio, tmp_path / "beforehand", epsilon=1.0, ledger=where)
    assert any("adds nothing" in note for note in free.notes)
    assert total(ledger) == charged
    shutil.rmtree(tmp_path / "lost")
    lost = next(entry for entry in standing(ledger.history()) if entry.content["out"].endswith("lost"))
    ledger.void_unseen(lost, "it was never seen")
    assert total(ledger) == pytest.approx(1.0, rel=0.02)


def test_a_ledger_without_anything_charged_refuses_a_dependent_release(portfolio: Portfolio, tmp_path: Path) -> None:
    ledger_of(tmp_path)
    with pytest.raises(LedgerError, match="nothing of its ladder is charged for good"):
        merge(portfolio, tmp_path / "out", epsilon=1.0, ledger=tmp_path / "ledger.db", dependent=True)


def test_releases_of_one_ladder_at_once_are_counted_once(portfolio: Portfolio, tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, epsilon=1.0)
    targets = (1.0, 0.6, 0.8, 0.3)

    def attempt(number: int) -> str:
        merge(portfolio, tmp_path / f"out-{number}", epsilon=targets[number], ledger=tmp_path / "ledger.db")
        return "released"

    assert race(4, attempt) == ["released"] * 4
    least = min(certificate(tmp_path / f"out-{number}")["rule"]["noise"] for number in range(4))
    assert total(ledger) <= 1.0 and least
    for number in range(4):
        verdict = library.verify(tmp_path / f"out-{number}", portfolio=portfolio, ledger=tmp_path / "ledger.db")
        assert verdict.code == 0, verdict


def test_kills_at_random_moments_lose_nothing_and_never_change_the_noise(tmp_path: Path) -> None:
    """Two hundred: `python -m tests.ladder_kills 200`."""
    seen = killed(tmp_path, 12, seed=7)
    assert seen["kills"] == 12 and seen["out"] >= 1


# --- more noise on a release that someone holds ------------------------------------------------------------------------------


def test_a_release_may_be_given_more_noise_without_the_models(portfolio: Portfolio, tmp_path: Path) -> None:
    parent = merge(portfolio, tmp_path / "one", epsilon=2.0)
    result = dpmerge("merge", "--from", tmp_path / "one", "--epsilon", 1, "--delta", DELTA, "--out", tmp_path / "two")
    assert result.exit_code == 0, result.output
    held = certificate(tmp_path / "two")
    assert held["parent"] == parent.certificate.sha256
    assert held["guarantee"]["standing"] == "proved" and 0.98 < held["guarantee"]["epsilon"] <= 1.0
    both = float.fromhex(held["rule"]["noise"])
    plain = library.combination(portfolio, A, noise=both).guarantee(delta=DELTA).epsilon
    assert plain < held["guarantee"]["epsilon"] < plain * 1.001  # what rounding in between costs
    added = float.fromhex(held["rule"]["renoised"]["added"])
    assert both == pytest.approx(math.hypot(added, parent.certificate.rule.deviation))
    verdict = library.verify(tmp_path / "two")
    assert verdict.code == 0, verdict
    assert "the rounding before the last noise is as certified" in verdict.holds
    assert any("its key was thrown away" in text for text in verdict.warnings)
    assert any(
        "the tensors were not checked" in text for text in library.verify(tmp_path / "two", portfolio=portfolio).unchecked
    )
    assert parent.certificate.sha256 in (tmp_path / "two/README.md").read_text()
    again = library.renoise(tmp_path / "one", out=tmp_path / "three", noise=both, delta=DELTA)
    assert again.guarantee.epsilon == held["guarantee"]["epsilon"]
    assert tensors(tmp_path / "three") != tensors(tmp_path / "two")  # fresh each time


def test_numbers_beyond_the_bound_are_cut(portfolio: Portfolio, tmp_path: Path) -> None:
    merge(portfolio, tmp_path / "one", noise=0.25)
    made = library.renoise(tmp_path / "one", out=tmp_path / "two", noise=0.2500003, delta=DELTA, bound=0.05)
    assert made.certificate.rule.renoised is not None
    assert float.fromhex(made.certificate.rule.renoised.bound) == 0.0625
    values = load_file(tmp_path / "two/model.safetensors")
    assert all(float(np.abs(value).max()) < 0.07 for value in values.values())
    assert library.verify(tmp_path / "two").code == 0


def test_what_may_not_be_given_more_noise_is_refused(portfolio: Portfolio, tmp_path: Path) -> None:
    merge(portfolio, tmp_path / "one", noise=0.25)
    merge(portfolio, tmp_path / "bare")
    library.renoise(tmp_path / "one", out=tmp_path / "two", noise=0.5, delta=DELTA)

    def refused(folder: str, words: str, **asked: Any) -> None:
        with pytest.raises((CertificateError, TargetError), match=words):
            library.renoise(tmp_path / folder, out=tmp_path / "out", **{"delta": DELTA, "noise": 1.0, **asked})

    refused("bare", "has no noise")
    refused("two", "was made of another release")
    refused("runs", "there is no certificate")
    refused("one", "must be finite and above that of the release", noise=0.25)
    refused("one", "give a target ε .* not both", epsilon=1.0)
    refused("one", "the bound is -1", bound=-1.0)
    held = load_file(tmp_path / "one/model.safetensors")
    save_file({**held, "bias": held["bias"] + 1}, tmp_path / "one/model.safetensors", metadata={"format": "pt"})
    refused("one", "model.safetensors was changed")
    network = on_disk(tmp_path / "networks", convex("n", smoothness=None, convex=None))
    merge(network, tmp_path / "network", {"n": 1.0}, noise=0.25)
    refused("network", "to which noise adds nothing")
    ledger_of(tmp_path)
    for flags in (["--weights", "a=1"], ["--ledger", tmp_path / "ledger.db"]):
        given = ["merge", "--from", tmp_path / "one", "--epsilon", 1, "--delta", DELTA, "--out", tmp_path / "out", *flags]
        assert "has no meaning with --from" in str(dpmerge(*given).exception)
    plain = ["merge", tmp_path / "runs", "--delta", DELTA, "--out", tmp_path / "out"]
    assert "give the folder of the models, and --rule" in str(dpmerge(*plain).exception)
    bounded = [*plain, "--rule", "combination", "--weights", "a=1", "--bound", 1]
    assert "--bound has no meaning without --from" in str(dpmerge(*bounded).exception)


def test_a_certificate_that_claims_more_than_was_added_is_refused(portfolio: Portfolio, tmp_path: Path) -> None:
    merge(portfolio, tmp_path / "one", noise=0.25)
    form = library.renoise(tmp_path / "one", out=tmp_path / "two", noise=0.5, delta=DELTA).certificate.rule
    assert not any(form.contradictions.values())
    assert form.model_copy(update={"noise": (0.51).hex()}).contradictions["more noise than was added"]
    assert form.model_copy(update={"ladder": "0" * 32}).contradictions["noise of a file, and a ladder or none"]
    parent = certificate(tmp_path / "one")["rule"]
    assert "renoised" not in parent


@pytest.mark.parametrize("grid", [0.1, 0.4, 1.0])
def test_rounding_between_two_noises_costs_no_more_than_is_said(grid: float) -> None:
    """One number, exact densities: y ~ N(±F/2 + offset, v), rounded to the grid, then noise w; and the naive claim fails."""
    naive = []
    for shift in (0.05, 0.4, 1.0):
        for v, w in ((0.04, 0.25), (1.0, 0.3), (0.01, 0.02)):
            law = ShiftLaw(np.array([shift / math.sqrt(v + w)]), np.ones(1))
            bound = float(Rounding(grid / 2, math.sqrt(w)).applied(law, math.sqrt(v + w)).values[0])
            for offset in (0.0, 0.25 * grid, 0.5 * grid):
                for epsilon in (0.0, 0.7):
                    true = _rounded_delta(offset - shift / 2, offset + shift / 2, v, w, grid, epsilon)
                    assert true <= float(gaussian_delta(bound, epsilon)) + 1e-6
                    naive.append(true > float(gaussian_delta(shift / math.sqrt(v + w), epsilon)) + 1e-6)
    assert any(naive) or grid < 1


def _rounded_delta(one: float, other: float, v: float, w: float, grid: float, epsilon: float) -> float:
    """The larger of both directions, by sums over cells of the grid and a fine grid of numbers."""
    reach = max(abs(one), abs(other)) + 8 * math.sqrt(v)
    cells = np.arange(-math.ceil(reach / grid) - 1, math.ceil(reach / grid) + 2) * grid
    x = np.linspace(cells[0] - 8 * math.sqrt(w), cells[-1] + 8 * math.sqrt(w), 2_001)
    kernel = np.exp(-((x[:, None] - cells[None, :]) ** 2) / (2 * w)) / math.sqrt(2 * math.pi * w)
    p, q = (
        kernel @ np.diff(ndtr((np.append(cells, cells[-1] + grid) - grid / 2 - mean) / math.sqrt(v))) for mean in (one, other)
    )
    step = float(x[1] - x[0])
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) * step for a, b in ((p, q), (q, p)))
