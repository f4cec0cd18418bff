"""Releases: every rule by command and library, what is drawn, what is written, what is refused, and what is not said."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from dpmerge.errors import (
    CertificateError,
    CheckpointError,
    DpmergeError,
    PortfolioError,
    SignatureError,
    TargetError,
    UtilityError,
    WeightsError,
)
from dpmerge.planning import Utilities
from dpmerge.records import DpSgd, Portfolio
from dpmerge.release import (
    Certificate,
    Chosen,
    GuaranteeForm,
    Ledger,
    Merge,
    Signer,
    choose,
    model_card,
    new_keys,
    preview,
    release,
    release_together,
    trusted_key,
    verify,
)
from dpmerge.release.commitment import Opening, Openings, commit
from dpmerge.release.release import draw
from dpmerge.release.signing import signed_by
from dpmerge.rules import Accounting, RuleName, round_up, significant
from dpmerge.tensors import read_tensors
from dpmerge.tensors.safetensors_file import SafetensorsFile
from tests import builders
from tests.checkpoint_builders import adapter, bits, sharded, single
from tests.release_builders import (
    DELTA,
    KAPPA,
    RULES,
    WEIGHTS,
    certificate,
    chosen,
    dpmerge,
    left_behind,
    on_disk,
    runs,
    scores,
    tensors,
)

TEXT = ",".join(f"{name}={weight}" for name, weight in WEIGHTS.items())


def read(out: Path) -> Certificate:
    return Certificate.parse((out / "certificate.json").read_bytes(), "certificate.json")


def complaint(*arguments: object) -> str:
    """The one line of a command that must fail on purpose."""
    result = dpmerge(*arguments)
    assert isinstance(result.exception, DpmergeError), result.output
    return str(result.exception)


def merge_command(tmp_path: Path, rule: str, *options: object) -> list[object]:
    extra = ["--kappa", KAPPA, "--utility", "a=0.9,b=0.5,c=0.1"] if rule == "tempered" else []
    return ["merge", tmp_path / "runs", "--rule", rule, "--delta", DELTA, "--out", tmp_path / "out", *extra, *options]


# --- every rule ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_command_and_library_release_the_same(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    result = dpmerge(*merge_command(tmp_path, rule, "--weights", TEXT))
    assert result.exit_code == 0, result.output
    by_library = release(portfolio, chosen(portfolio, rule), tmp_path / "library").certificate
    by_command = read(tmp_path / "out")
    for field in ("rule", "guarantee", "numerics", "records", "dataset", "adjacency", "provenance", "software"):
        assert getattr(by_command, field) == getattr(by_library, field), field
    for out in (tmp_path / "out", tmp_path / "library"):
        own = {"README.md", "certificate.json"} | ({"record.json"} if rule != "combination" else set())  # which is conditional
        assert {path.name for path in out.iterdir()} == {"model.safetensors", "config.json", *own}
        verdict = verify(out, portfolio=portfolio)
        assert verdict.code == 0, verdict


@pytest.mark.parametrize("rule", ["selection", "tempered", "combination"])
def test_a_target_finds_weights_and_is_met(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    result = dpmerge(*merge_command(tmp_path, rule, "--epsilon", 2, "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["certificate"]
    assert found["guarantee"]["epsilon"] <= 2 and found["guarantee"]["delta"] <= DELTA
    searched = len(found["rule"]["weights"]) > 1 or "noise" in found["rule"]
    assert searched, "a target that one model meets alone says nothing"
    assert verify(tmp_path / "out", portfolio=portfolio).code == 0


@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_targets_on_the_edge_are_met_or_refused_and_verify(rule: RuleName, tmp_path: Path) -> None:
    """ε asked for is what was found, or a hair less: then δ at ε may still be below δ, and the question is the other one."""
    portfolio = on_disk(
        tmp_path / "runs",
        builders.dp_sgd("a", sigma=0.8, steps=40, sampling=0.05, batch=50),
        builders.dp_sgd("b", sigma=2.0, steps=40, sampling=0.05, batch=50),
    )
    epsilon = chosen(portfolio, rule).guarantee.epsilon
    solved = set()
    for number, shrink in enumerate((0.0, 1e-9, 1e-7, 1e-6, 1e-2)):
        try:
            choice = chosen(portfolio, rule, epsilon=epsilon * (1 - shrink))
        except TargetError:
            solved.add("refused")
            continue
        solved.add(choice.numerics.solved_for)
        assert choice.guarantee.epsilon <= epsilon * (1 - shrink) and choice.guarantee.delta <= DELTA
        verdict = verify(release(portfolio, choice, tmp_path / f"out-{number}").folder, portfolio=portfolio)
        assert verdict.code == 0, verdict
    assert solved == {"epsilon", "delta", "refused"}


def test_weights_are_certified_and_used_exactly(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    result = dpmerge(*merge_command(tmp_path, "combination", "--weights", "a=1/3,b=0.1,c=0.5666666666666667"))
    assert result.exit_code == 0, result.output
    exact = {"a": float(Fraction(1, 3)), "b": 0.1, "c": 0.5666666666666667}
    stated = certificate(tmp_path / "out")["rule"]["weights"]
    assert {name: float.fromhex(text) for name, text in stated.items()} == exact
    assert all(float.fromhex(text).hex() == text for text in stated.values())
    merged, models = read_tensors(tmp_path / "out"), [tensors(seed) for seed in range(3)]
    for name in ("weight", "bias"):
        total = exact["a"] * models[0][name].astype(np.float64)
        for weight, model in zip((exact["b"], exact["c"]), models[1:], strict=True):
            total = total + weight * model[name].astype(np.float64)
        assert bits(merged[name]) == bits(total.astype(models[0][name].dtype))
    assert verify(tmp_path / "out", portfolio=portfolio).code == 0


def test_floats_in_certificates_are_exact() -> None:
    """Through pydantic's parser and back: the shortest digits stand for one float and no other."""
    generator = np.random.default_rng(0)
    values = [float(x) for x in generator.random(500) * 10.0 ** generator.integers(-300, 299, 500)]
    template: dict[str, Any] = {"theorem": "t", "standing": "proved", "assumptions": [], "by": "pld", "conversion": None}
    for value in [*values, 5e-324, 2.2250738585072014e-308, 1e300, 0.1, 1 / 3]:
        form = GuaranteeForm.model_validate_json(
            json.dumps({**template, "epsilon": value, "delta": 0.5, "details": {"x": value}})
        )
        assert form.epsilon == value and form.details["x"] == value
        assert json.loads(form.model_dump_json())["epsilon"] == value


def test_an_unsorted_portfolio_gives_the_same_release(tmp_path: Path) -> None:
    """Names decide the order of sums, assumptions and tables: a portfolio from disk verifies what one from Python released."""
    loaded = runs(tmp_path, noise_fingerprint=None)
    turned = Portfolio(tuple(reversed(loaded.models)))
    for rule in RULES:
        released = release(turned, chosen(turned, rule), tmp_path / rule)
        verdict = verify(released.folder, portfolio=loaded)
        assert verdict.code == 0, verdict


@pytest.mark.parametrize("layout", ["sharded", "lora"])
@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_other_layouts(layout: str, rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for seed, name in enumerate(portfolio.names):
        folder = tmp_path / "runs" / name
        (folder / "model.safetensors").unlink()
        if layout == "sharded":
            sharded(folder, {"one": tensors(seed)["weight"]}, {"two": tensors(seed)["bias"]})
        else:
            pairs = {
                "m.q.lora_A.weight": tensors(seed)["weight"][:2],
                "m.q.lora_B.weight": tensors(seed)["weight"][:, :2].copy(),
            }
            adapter(folder, pairs, target_modules=["q"])
    released = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    verdict = verify(released.folder, portfolio=portfolio)
    assert verdict.code == 0, verdict
    extra = "model.safetensors.index.json" if layout == "sharded" else "adapter_config.json"
    assert extra in released.certificate.outputs


# --- draws --------------------------------------------------------------------------------------------------------------------


def drawn_often(choice: Chosen, times: int = 20_000) -> Counter[str]:
    return Counter(draw(choice) for _ in range(times))


def fits(seen: Counter[str], expected: dict[str, float]) -> bool:
    """Chi-square; a right draw fails once in 10⁹ times."""
    assert set(seen) <= {name for name, share in expected.items() if share > 0}
    names = [name for name, share in expected.items() if share > 0]
    total = sum(expected[name] for name in names)
    observed = [seen[name] for name in names]
    return bool(chisquare(observed, [sum(observed) * expected[name] / total for name in names]).pvalue > 1e-9)


def test_selection_draws_by_its_weights(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    weights = {"a": 0.05, "b": 0.95 - 0.3, "c": 0.3}
    seen = drawn_often(chosen(portfolio, "selection", weights=portfolio.weights(weights)))
    assert fits(seen, weights)
    assert not fits(seen, {"a": 0.08, "b": 0.62, "c": 0.3}), "the test could not fail"


def test_tempered_draws_by_weights_and_scores(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    utility = Utilities.stated(portfolio, {"a": 0.9, "b": 0.1, "c": 0.5})
    weights = {"a": 0.2, "b": 0.5, "c": 0.3}
    seen = drawn_often(chosen(portfolio, "tempered", weights=portfolio.weights(weights), utility=utility, kappa=2.0))
    tilted = {name: weights[name] * math.exp(2 * u) for name, u in zip("abc", utility.values, strict=True)}
    assert fits(seen, tilted)
    assert not fits(seen, weights)


def test_a_model_without_weight_does_not_decide_what_is_drawn(tmp_path: Path) -> None:
    """Its score set the cut-off for the others, which were then drawn alike."""
    portfolio = runs(tmp_path)
    utility = Utilities.stated(portfolio, {"a": 0.1, "b": 0.0, "c": 1.0})
    choice = chosen(portfolio, "tempered", weights=portfolio.weights({"a": 0.5, "b": 0.5}), utility=utility, kappa=800.0)
    assert {draw(choice) for _ in range(40)} == {"a"}


def test_tempered_draws_do_not_underflow(tmp_path: Path) -> None:
    """κ = 1e6 with subnormal products: odds stay positive and their sum is drawn from exactly."""
    portfolio = runs(tmp_path)
    utility = Utilities.stated(portfolio, {"a": 0.0, "b": 1.0, "c": 0.0})
    choice = chosen(portfolio, "tempered", weights=portfolio.weights({"a": 1 - 1e-12, "b": 1e-12}), utility=utility, kappa=1e6)
    assert set(drawn_often(choice, 50)) == {"b"}


def test_release_draws_from_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio = runs(tmp_path)
    choice = chosen(portfolio, "selection")
    for value, name in ((0, "a"), (-1, "b")):
        monkeypatch.setattr(secrets, "randbelow", lambda bound, value=value: value % bound)
        assert release(portfolio, choice, tmp_path / f"out-{name}").certificate.drawn == name


def test_coupled_draws(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    command = ["merge", tmp_path / "runs", "--rule", "selection", "--couple", "3,4,6", "--delta", DELTA]
    result = dpmerge(*command, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert [Path(one["folder"]).name for one in json.loads(result.stdout)] == ["epsilon-3", "epsilon-4", "epsilon-6"]
    for folder in (tmp_path / "out").iterdir():
        assert verify(folder, portfolio=portfolio).code == 0
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA)
    dpmerge(*command, "--out", tmp_path / "entered", "--ledger", tmp_path / "l.db")
    for folder in (tmp_path / "entered").iterdir():
        assert verify(folder, portfolio=portfolio, ledger=ledger).code == 0
    assert "--method has no meaning with --couple" in complaint(*command, "--out", tmp_path / "o", "--method", "ties")
    assert "--epsilon has no meaning with --couple" in complaint(*command, "--out", tmp_path / "o", "--epsilon", 1)
    with pytest.raises(CertificateError, match="not the name of a folder"):
        release_together(portfolio, {"../elsewhere": chosen(portfolio, "selection")}, tmp_path / "o")
    with pytest.raises(CertificateError, match="only random selections"):
        release_together(portfolio, {"one": chosen(portfolio, "joint")}, tmp_path / "o")
    assert left_behind(tmp_path) == {"out", "entered", "l.db"}


def test_a_model_that_cannot_be_released_is_refused_whoever_is_drawn(tmp_path: Path) -> None:
    """An error after the draw would tell who was drawn, and trying again would change the odds."""
    portfolio = runs(tmp_path)
    config = tmp_path / "runs" / "a" / "config.json"
    config.unlink()
    config.symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere.json").write_text("{}")
    choice = chosen(portfolio, "selection", weights=portfolio.weights({"a": 1e-9, "b": 1 - 1e-9}))
    for _ in range(5):
        with pytest.raises(CheckpointError, match="link out of the model's folder"):
            release(portfolio, choice, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- what is refused ----------------------------------------------------------------------------------------------------------


def measured(tmp_path: Path, **changes: Any) -> Path:
    content = {"schema": 1, "measured_on": "tests", "models": "private", "utilities": {"a": 0.832, "b": 0.424, "c": 0.172}}
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({**content, **changes}))
    return path


VALIDATION = {"validation": {"records": 500, "disjoint": True}}


@pytest.mark.parametrize("rule", ["selection", "combination"])
@pytest.mark.parametrize("file", [{}, VALIDATION], ids=["public", "private-validation"])
def test_weights_chosen_by_looking_need_another_rule(rule: RuleName, file: dict[str, Any], tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    utility = Utilities.load(portfolio, measured(tmp_path, **file))
    for options in ({}, {"validation_epsilon": 0.5}) if file else ({},):
        with pytest.raises(UtilityError, match="not covered by"):
            chosen(portfolio, rule, utility=utility, **options)
        if file:
            with pytest.raises(UtilityError, match=r"not covered by joint: .* only a draw by them is paid for"):
                chosen(portfolio, "joint", utility=utility, **options)
    with pytest.raises(UtilityError, match="not a-priori"):
        chosen(portfolio, rule, utility=utility, provenance="a-priori")
    if not file:
        with pytest.raises(UtilityError, match="not covered by"):
            chosen(portfolio, rule, provenance="after-looking")


def test_joint_release_covers_every_model_looked_at(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    looked, stated = chosen(portfolio, "joint"), chosen(portfolio, "joint", provenance="a-priori")
    assert looked.provenance == "after-looking" and looked.form.looked_at == ["a", "b", "c"]
    assert stated.provenance == "a-priori" and stated.form.looked_at == []
    everyone = {"a": 0.5, "b": 0.25, "c": 0.25}
    assert looked.guarantee.epsilon == chosen(portfolio, "joint", weights=portfolio.weights(everyone)).guarantee.epsilon
    assert looked.guarantee.epsilon > stated.guarantee.epsilon
    assert set(release(portfolio, looked, tmp_path / "looked").certificate.records) == {"a", "b", "c"}
    assert set(release(portfolio, stated, tmp_path / "stated").certificate.records) == {"a", "b"}
    for out in ("looked", "stated"):
        assert verify(tmp_path / out, portfolio=portfolio).code == 0
    assert "covers every model looked at" in (tmp_path / "looked" / "README.md").read_text()


def test_private_validation_pays(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for validation, cost in (({"records": 500}, 2 / 500), ({"divisor": 500}, 1 / 500)):
        utility = Utilities.load(portfolio, measured(tmp_path, validation={**validation, "disjoint": False}))
        tempered = chosen(portfolio, "tempered", utility=utility)
        assert tempered.guarantee.details["validation_epsilon"] == pytest.approx(KAPPA * cost)
        noisy = chosen(portfolio, "tempered", utility=utility, kappa=None, validation_epsilon=0.5)
        assert float.fromhex(noisy.form.kappa or "") == pytest.approx(0.5 / cost)
        both = chosen(portfolio, "joint", provenance="a-priori").guarantee.epsilon
        assert noisy.guarantee.epsilon == pytest.approx(both + 0.5)  # so strong a draw costs all models with weight, no more
        for name, choice in (("noisy", noisy), ("tempered", tempered)):
            released = release(portfolio, choice, tmp_path / f"{name}-{cost}")
            verdict = verify(released.folder, portfolio=portfolio)
            assert verdict.code == 0, verdict
            paid = released.certificate.rule.validation
            assert paid is not None and paid.model_dump().keys() == {*validation, "disjoint", "epsilon"}


def test_a_noisy_choice_is_drawn_by_the_scores(tmp_path: Path) -> None:
    """ε_V = 1 at 500 records: a model with 204 more right answers than another is drawn, not the one named first or last."""
    portfolio = runs(tmp_path)
    for best in "ab":
        scores_of = dict.fromkeys("abc", 0.424) | {best: 0.832}
        path = measured(tmp_path, utilities=scores_of, validation={"divisor": 500, "disjoint": True})
        choice = chosen(portfolio, "tempered", utility=Utilities.load(portfolio, path), kappa=None, validation_epsilon=1.0)
        assert {draw(choice) for _ in range(20)} == {best}
        assert sum(choice.scores or ()) == Fraction(204 + 3 * 212, 500)


@pytest.mark.parametrize(
    "rule,options,error",
    [
        ("tempered", {"kappa": None}, "needs it"),
        ("selection", {"kappa": 1.0}, "belongs to tempered"),
        ("tempered", {"kappa": math.inf}, "finite and not negative"),
        ("tempered", {"kappa": -1.0}, "finite and not negative"),
        ("tempered", {"utility": None}, "give their scores"),
        ("selection", {"accounting": Accounting(assume_smoothness=0.0)}, "only linear combination uses it"),
        ("joint", {"validation_epsilon": 1.0}, "only has a meaning for scores measured on a private validation set"),
        ("tempered", {"validation_epsilon": 1.0}, "only has a meaning for scores measured on a private validation set"),
        ("joint", {"provenance": "private-validation"}, "describe their set"),
        ("joint", {"weights": None, "epsilon": 9.0}, "say which one"),
        ("selection", {"weights": None}, "give the weights"),
        ("selection", {"weights": None, "epsilon": 0.01}, "infeasible"),
        ("selection", {"epsilon": 1.0}, "above 1"),
        ("selection", {"delta": 0.0}, "between 0 and 1"),
        ("selection", {"epsilon": math.inf}, "must be finite"),
    ],
)
def test_choices_without_meaning_are_refused(rule: RuleName, options: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises((TargetError, UtilityError, WeightsError), match=error):
        chosen(runs(tmp_path), rule, **options)


def test_an_assumption_without_meaning_is_refused() -> None:
    with pytest.raises(TargetError, match="finite and not negative"):
        Accounting(assume_smoothness=-1.0)


def test_scores_outside_the_unit_interval_are_not_drawn_by(tmp_path: Path) -> None:
    """The bound of tempered selection is for scores in [0, 1]; a score of 5 would be drawn e^{5κ} times as often."""
    portfolio = runs(tmp_path)
    for score in (5.0, -0.1):
        utility = Utilities.stated(portfolio, {"a": score, "b": 0.2, "c": 0.3})
        with pytest.raises(UtilityError, match=r"scores in \[0, 1\]"):
            chosen(portfolio, "tempered", utility=utility)


def test_nothing_is_certified_without_a_finite_epsilon(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", builders.model("a", {"kind": "non-private"}), builders.gaussian("b", noise_std=2))
    with pytest.raises(TargetError, match="no finite ε"):
        chosen(portfolio, "selection")
    rare = portfolio.weights({"a": 1e-6, "b": 1 - 1e-6})
    verdict = verify(
        release(portfolio, chosen(portfolio, "selection", weights=rare), tmp_path / "out").folder, portfolio=portfolio
    )
    assert verdict.code == 0, verdict


def test_a_draw_on_the_very_edge_with_a_model_without_privacy(tmp_path: Path) -> None:
    """The best weights give that model almost all of δ; what is left for the others is far below a grid's rounding."""
    portfolio = on_disk(tmp_path / "runs", builders.model("a", {"kind": "non-private"}), builders.gaussian("b", noise_std=100))
    choice = choose(portfolio, "selection", epsilon=0.1, delta=3.6e-3, utility=Utilities.stated(portfolio, {"a": 1, "b": 0}))
    assert 3.6e-3 - choice.weights.as_dict()["a"] < 1e-9
    verdict = verify(release(portfolio, choice, tmp_path / "out").folder, portfolio=portfolio)
    assert verdict.code == 0, verdict


@pytest.mark.parametrize("rule", ["selection", "tempered", "combination"])
@pytest.mark.parametrize(
    "option,value", [("--method", "ties"), ("--lora", "exact"), ("--take-from", "a"), ("--base", "runs/a")]
)
def test_what_only_joint_release_covers(rule: str, option: str, value: str, tmp_path: Path) -> None:
    runs(tmp_path)
    where = tmp_path / value if option == "--base" else value
    assert "joint release" in complaint(*merge_command(tmp_path, rule, "--weights", TEXT, option, where))
    assert left_behind(tmp_path) == set()


def own_method(name: str, values: list[Any], weights: list[float]) -> Any:
    return values[0] * 0.5


def test_methods_bases_and_integers_under_joint_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio = runs(tmp_path)
    base = single(tmp_path / "base", tensors(9))
    other = single(tmp_path / "other", tensors(8))
    for number, name in enumerate(portfolio.names):
        single(tmp_path / "runs" / name, {**tensors(number), "steps": np.array([number])})
    for folder in (base, other):
        single(folder, {**read_tensors(folder), "steps": np.array([0])})
    choice = chosen(portfolio, "joint")
    with pytest.raises(CheckpointError, match="take_from"):
        release(portfolio, choice, tmp_path / "differ")
    merge = Merge(method="ties", base=base, take_from="b")
    released = release(portfolio, choice, tmp_path / "ties", merge=merge)
    assert released.certificate.merge.take_from == "b"
    assert verify(released.folder, portfolio=portfolio, base=base).code == 0
    assert verify(released.folder, portfolio=portfolio).unchecked == ["the merge has a base model: give its folder"]
    assert "the base model is not the one certified" in verify(released.folder, portfolio=portfolio, base=other).broken
    mine = f"{__name__}:own_method"
    released = release(portfolio, choice, tmp_path / "own", merge=Merge(method=mine, take_from="b"))
    verdict = verify(released.folder, portfolio=portfolio)
    assert verdict.code == 2 and "name it as the method" in verdict.unchecked[0]
    assert verify(released.folder, portfolio=portfolio, method=mine).code == 0
    assert verify(released.folder, portfolio=portfolio, method="other:function").code == 2
    result = dpmerge("verify", released.folder, "--portfolio", tmp_path / "runs", "--method", mine)
    assert result.exit_code == 0, result.output


def test_choices_for_another_portfolio_are_refused(tmp_path: Path) -> None:
    portfolio, other = runs(tmp_path), runs(tmp_path / "other", clip=2.0)
    with pytest.raises(CertificateError, match="another portfolio"):
        release(portfolio, chosen(other, "selection"), tmp_path / "out")


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    runs(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "keep").write_text("me")
    assert "exists already" in complaint(*merge_command(tmp_path, "joint", "--weights", TEXT))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["keep"]


def break_with_nan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tensors(0)
    values["weight"][7, 4] = np.nan
    single(folder, values)


def break_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def break_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers can be read; then the disk fails."""
    read_block = SafetensorsFile.read

    def failing(self: SafetensorsFile, offset: int, into: memoryview) -> None:
        if offset > 0 and self.path.parent == folder:
            raise CheckpointError("cannot be read: Input/output error")
        read_block(self, offset, into)

    monkeypatch.setattr(SafetensorsFile, "read", failing)


@pytest.mark.parametrize("trouble", [break_with_nan, break_file, break_disk])
@pytest.mark.parametrize("rule", ["combination", "joint"])
def test_failures_leave_nothing_behind(
    trouble: Callable[[Path, pytest.MonkeyPatch], None], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(tmp_path)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    trouble(tmp_path / "runs" / "a", monkeypatch)
    assert re.search("element 39 is nan|the file at|Input/output", complaint(*merge_command(tmp_path, rule, "--weights", TEXT)))
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


# --- what is said -------------------------------------------------------------------------------------------------------------


def test_without_a_ledger_it_says_so(tmp_path: Path) -> None:
    runs(tmp_path)
    said = "no ledger: releases from this data are not being added up"
    assert said in dpmerge(*merge_command(tmp_path, "joint", "--weights", TEXT)).stdout
    assert "was not entered in a ledger" in (tmp_path / "out" / "README.md").read_text()
    command = merge_command(tmp_path / "other", "joint", "--weights", TEXT, "--json")
    runs(tmp_path / "other")
    assert json.loads(dpmerge(*command).stdout)["notes"] == [said]


def test_with_a_ledger_the_total_is_certified(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA)
    command = merge_command(tmp_path, "selection", "--weights", TEXT, "--ledger", tmp_path / "l.db")
    result = dpmerge(*command)
    assert "no ledger" not in result.stdout and "entry 1 of the ledger; all releases together" in result.stdout
    stated = read(tmp_path / "out").ledger
    assert stated is not None and stated.entry == ledger.history()[0].hash
    assert ledger.history()[1].content["certificates"] == [read(tmp_path / "out").sha256]
    verdict = verify(tmp_path / "out", portfolio=portfolio, ledger=ledger)
    assert verdict.code == 0, verdict


def test_weights_that_depend_on_releases_have_no_guarantee_of_their_own(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    with pytest.raises(CertificateError, match="give that ledger"):
        release(portfolio, chosen(portfolio, "selection"), tmp_path / "out", dependent=True)
    about: dict[str, Any] = {"dataset": builders.DATASET, "adjacency": "add-remove", "epsilon": 50, "delta": DELTA}
    ledger = Ledger.create(tmp_path / "l.db", declared=[portfolio], **about)
    release(portfolio, chosen(portfolio, "selection"), tmp_path / "first", ledger=ledger)
    released = release(portfolio, chosen(portfolio, "selection"), tmp_path / "second", ledger=ledger, dependent=True)
    found = released.certificate
    assert found.dependent and found.ledger is not None
    card = (tmp_path / "second" / "README.md").read_text()
    assert "it has no guarantee of its own" in card and "The weights were fixed" not in card
    assert f"({round_up(found.ledger.epsilon)}, {significant(found.ledger.delta)})-differentially private** together" in card
    assert any("only the ledger's total covers it" in note for note in released.notes)
    verdict = verify(tmp_path / "second", portfolio=portfolio, ledger=ledger)
    assert verdict.code == 0, verdict


@pytest.mark.parametrize("rule", RULES)
def test_the_card_says_what_is_certified(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    found = release(portfolio, chosen(portfolio, rule), tmp_path / "out").certificate
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"({round_up(found.guarantee.epsilon)}, {significant(found.guarantee.delta)})-differentially private" in card
    assert float(round_up(found.guarantee.epsilon)) >= found.guarantee.epsilon
    for text in found.guarantee.assumptions:
        assert text.replace("[", "\\[").replace("]", "\\]").replace("_", "\\_") in card
    for name, weight in WEIGHTS.items():
        assert f"| `{name}` | {weight} |" in card
    assert (f"The model drawn was `{found.drawn}`" in card) == (found.drawn is not None)
    assert f"`{builders.DATASET}`" in card and "one record added or removed" in card


def test_hostile_names_do_not_become_markup(tmp_path: Path) -> None:
    hostile = "](www.evil.example) <img src=x> ![x][y] | `ls` **a** \u202e"
    portfolio = on_disk(
        tmp_path / "runs",
        builders.dp_sgd(hostile, sigma=4.0, noise_fingerprint=None),
        builders.model("b", builders.dp_sgd("b", sigma=9.0).record.mechanism.model_dump(mode="json")),
    )
    choice = chosen(portfolio, "joint", weights=portfolio.weights({hostile: 0.5, "b": 0.5}))
    certified = release(portfolio, choice, tmp_path / "out").certificate
    card = model_card(certified)
    assert verify(tmp_path / "out", portfolio=portfolio).code == 0
    assert "on the user's word" in card and hostile not in card
    outside = re.sub(r"`[^`\n]*`", "", re.sub(r"\\.", "", card))  # without escaped characters and code
    assert not re.search(r"[<>!\[\]`\u202e]|www\.", outside), outside
    for line in card.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 3, line


def test_names_that_are_no_text_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    strange = Portfolio(tuple(replace(model, name=f"{model.name}\udcff") for model in portfolio.models))
    with pytest.raises(PortfolioError, match="not valid text"):
        release(strange, chosen(strange, "joint", weights=strange.weights({"a\udcff": 1.0})), tmp_path / "out")
    assert left_behind(tmp_path) == set()


@pytest.mark.parametrize("rule", ["selection", "joint"])
def test_clips_that_were_adapted_to_the_data_are_not_published(rule: RuleName, tmp_path: Path) -> None:
    """They are an output of their run, and of the draw's models one alone is paid for."""
    trajectory = {"a": [0.31415, 0.27182, 0.16180], "b": [0.57721, 0.69314, 0.91596]}
    phases = {
        name: [{"steps": 1, "learning_rate": 0.1, "clip": clip} for clip in clips] + [{"steps": 2, "learning_rate": 0.05}]
        for name, clips in trajectory.items()
    }
    models = [
        builders.dp_sgd(name, sigma=4.0, clip=0.11235, phases=rows, clipping="adaptive", run=f"run-{name}")
        for name, rows in phases.items()
    ]
    portfolio = on_disk(tmp_path / "runs", *models)
    out = release(portfolio, chosen(portfolio, rule, weights=portfolio.weights({"a": 0.5, "b": 0.5})), tmp_path / "out").folder
    for path in out.iterdir():
        content = path.read_bytes()
        assert not any(f"{clip}".encode() in content for clips in (*trajectory.values(), [0.11235]) for clip in clips), path
    held = read(out).records["b"].record.mechanism
    assert isinstance(held, DpSgd) and [phase.steps for phase in held.phases] == [3, 2] and held.clip == 1.0
    assert read(out).guarantee.standing == "conditional"
    assert verify(out, portfolio=portfolio).code == 0


def test_fingerprints_are_numbered_not_published(tmp_path: Path) -> None:
    """Whoever finds the seed that has a fingerprint takes the noise off the model; which runs share one is all that counts."""
    portfolio = on_disk(
        tmp_path / "runs",
        builders.dp_sgd("a", sigma=4.0, steps=5, run="one", noise_fingerprint="noise-1", sampler_fingerprint="coins-1"),
        builders.dp_sgd("b", sigma=4.0, steps=9, run="one", noise_fingerprint="noise-1", sampler_fingerprint="coins-1"),
        builders.dp_sgd("c", sigma=9.0, run="two", noise_fingerprint="noise-2", sampler_fingerprint=None),
    )
    weights = portfolio.weights({"a": 0.25, "b": 0.25, "c": 0.5})
    for rule in ("joint", "selection", "combination"):
        out = release(portfolio, chosen(portfolio, rule, weights=weights), tmp_path / rule).folder
        assert mentions(out, "noise-1", "noise-2", "coins-1") == []
        stated = {name: form.record.mechanism.noise_fingerprint for name, form in read(out).records.items()}
        assert stated["a"] == stated["b"] != stated["c"]
        assert read(out).records["c"].record.mechanism.sampler_fingerprint is None
        assert verify(out, portfolio=portfolio).code == 0
    record = tmp_path / "runs" / "c" / "record.json"
    record.write_text(record.read_text().replace("noise-2", "noise-1"))
    assert (
        "the record of model 'c' is not the one certified"
        in verify(tmp_path / "selection", portfolio=Portfolio(tmp_path / "runs")).broken
    )


def test_model_named_like_the_base(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", builders.dp_sgd("base", sigma=4.0), builders.dp_sgd("b", sigma=9.0))
    choice = chosen(portfolio, "joint", weights=portfolio.weights({"base": 0.5, "b": 0.5}))
    released = release(portfolio, choice, tmp_path / "out")
    assert set(released.certificate.inputs) == {"base", "b"}
    assert verify(released.folder, portfolio=portfolio).code == 0


# --- what is not said ---------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def mentions(out: Path, *texts: str) -> list[str]:
    """Which of the texts occur anywhere in the released folder: file names, contents."""
    everything = b"\n".join(path.name.encode() + b"\n" + path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file())
    return [text for text in texts if text.encode() in everything]


@pytest.mark.parametrize("rule", RULES)
def test_no_digest_of_a_model_that_the_guarantee_does_not_cover(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    released = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    digests = {name: digest(tmp_path / "runs" / name / "model.safetensors") for name in portfolio.names}
    covered = {"joint": {"a", "b"}, "combination": set()}.get(rule, {released.certificate.drawn})
    assert set(mentions(released.folder, *digests.values())) == {digests[name] for name in covered if name is not None}
    for name, hidden in digests.items():
        raw = bytes.fromhex(hidden)
        assert name in covered or not any(raw in path.read_bytes() for path in released.folder.iterdir())


def test_an_average_that_is_covered_by_joint_release_names_its_inputs(tmp_path: Path) -> None:
    """With Adam the theorem is joint release, which covers the inputs themselves."""
    portfolio = runs(tmp_path, optimizer="adam")
    choice = chosen(portfolio, "combination")
    assert choice.guarantee.theorem == "joint-release"
    found = release(portfolio, choice, tmp_path / "out").certificate
    assert found.inputs["a"]["model.safetensors"] == digest(tmp_path / "runs" / "a" / "model.safetensors")
    assert not (tmp_path / "runs" / ".dpmerge").exists()


@pytest.mark.parametrize("file", [{}, VALIDATION], ids=["public", "private-validation"])
def test_no_scores_are_published(file: dict[str, Any], tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    path = measured(tmp_path, **file)
    command = [
        "merge",
        tmp_path / "runs",
        "--rule",
        "tempered",
        "--kappa",
        "1",
        "--utility",
        path,
        "--delta",
        DELTA,
        "--weights",
        TEXT,
    ]
    result = dpmerge(*command, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(path.read_text())["utilities"].values()
    spelt = [text for value in values for text in (str(value), str(value)[2:], value.hex(), str(round(500 * value)))]
    assert mentions(tmp_path / "out", *(text for text in spelt if len(text) > 3)) == []
    assert not any(str(value) in result.stdout for value in values)
    assert not any(str(value) in repr(read(tmp_path / "out")) for value in values)
    assert verify(tmp_path / "out", portfolio=portfolio).code == 0


def test_the_card_says_what_stands_beside_the_parameters_is_taken_for_public(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    card = (release(portfolio, chosen(portfolio, "selection"), tmp_path / "out").folder / "README.md").read_text()
    assert "does not depend on the data: the names of models and tensors, and the configuration and tokenizer files." in card


def test_openings_stay_private_and_open(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    released = release(portfolio, chosen(portfolio, "combination"), tmp_path / "out")
    path = Openings.path(tmp_path / "runs", released.certificate.sha256)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = Openings.load(path).openings
    assert set(kept) == {"a", "b"}
    for name, files in kept.items():
        for file, opening in files.items():
            public = released.certificate.inputs[name][file]
            assert not isinstance(public, str)
            assert opening.sha256 == digest(tmp_path / "runs" / name / file)
            assert public.opens(opening)
            assert mentions(released.folder, opening.secret) == []
    assert Portfolio(tmp_path / "runs") == portfolio


def test_openings_that_cannot_be_kept_are_said(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    (tmp_path / "runs" / ".dpmerge").write_text("in the way")
    released = release(portfolio, chosen(portfolio, "combination"), tmp_path / "out")
    assert any("could not be kept" in note for note in released.notes)
    verdict = verify(released.folder, portfolio=portfolio)
    assert verdict.code == 2 and verdict.unchecked == ["2 commitments to input files: what opens them is not in the portfolio"]


def test_commitments_hide_and_bind() -> None:
    first, second = hashlib.sha256(b"one").hexdigest(), hashlib.sha256(b"two").hexdigest()
    made = [commit(first) for _ in range(64)]
    for field in ("hash", "matrix", "masked"):
        assert len({getattr(public, field) for public, _ in made}) == len(made)
    assert len({opening.secret for _, opening in made}) == len(made)
    # Every bit of what is published of the digest is a fair coin: of 64, between 6 and 58 are ones, but once in 10⁸ times.
    for bit in range(0, 256, 7):
        assert 6 <= sum(int(public.masked, 16) >> bit & 1 for public, _ in made) <= 58
    (public, opening), (_, other) = made[:2]
    assert public.opens(opening)
    assert not public.opens(Opening(sha256=second, secret=opening.secret))
    assert not public.opens(other)
    flipped = f"{int(opening.secret, 16) ^ 1:0256x}"
    assert not public.opens(Opening(sha256=first, secret=flipped))
    # Whoever does not care for SHA-256(x) could open to anything.
    loose = public.model_copy(update={"masked": f"{int(public.masked, 16) ^ int(first, 16) ^ int(second, 16):064x}"})
    assert loose.opens(Opening(sha256=second, secret=opening.secret)) and not loose.opens(opening)
    assert not public.model_copy(update={"hash": "0" * 64}).opens(opening)


def test_masks_are_the_toeplitz_matrix_times_the_secret() -> None:
    """Against the definition: row i of h is bits i … i + 1023 of the matrix."""
    public, opening = commit("0" * 64)
    bits_of = np.array([int(public.matrix, 16) >> i & 1 for i in range(1279)])
    secret = np.array([int(opening.secret, 16) >> j & 1 for j in range(1024)])
    rows = np.array([bits_of[i : i + 1024] for i in range(256)])
    assert sum(int(bit) << i for i, bit in enumerate(rows @ secret % 2)) == int(public.masked, 16)


# --- keys ---------------------------------------------------------------------------------------------------------------------


def test_keys_sign_and_are_private(tmp_path: Path) -> None:
    result = dpmerge("tools", "keys", tmp_path / "key", "--json")
    assert json.loads(result.stdout) == {"private": str(tmp_path / "key"), "public": str(tmp_path / "key.pub")}
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key.pub").stat().st_mode) & 0o133 == 0
    signer = Signer(tmp_path / "key")
    assert signer.public == trusted_key(tmp_path / "key.pub")
    assert signed_by(signer.public, signer.sign(b"this"), b"this")
    assert not signed_by(signer.public, signer.sign(b"this"), b"that")
    assert not signed_by("0" * 64, signer.sign(b"this"), b"this")
    assert "never overwritten" in complaint("tools", "keys", tmp_path / "key")
    (tmp_path / "key").unlink()
    assert "key.pub: exists already" in complaint("tools", "keys", tmp_path / "key")
    with pytest.raises(SignatureError, match="cannot be written"):
        new_keys(tmp_path / "nowhere" / "key")


def test_signed_and_unsigned(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    new_keys(tmp_path / "key")
    result = dpmerge(*merge_command(tmp_path, "joint", "--weights", TEXT, "--sign", tmp_path / "key"))
    assert result.exit_code == 0, result.output
    signature = read(tmp_path / "out").signature
    assert signature is not None and signature.key == trusted_key(tmp_path / "key.pub")
    assert "give a key to trust" in " ".join(verify(tmp_path / "out").holds)
    assert dpmerge("verify", tmp_path / "out", "--trust", tmp_path / "key.pub").exit_code == 0
    unsigned = release(portfolio, chosen(portfolio, "joint"), tmp_path / "unsigned")
    assert unsigned.certificate.signature is None
    assert dpmerge("verify", tmp_path / "unsigned", "--trust", tmp_path / "key.pub").exit_code == 1


def other_keys(tmp_path: Path) -> dict[str, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = serialization.BestAvailableEncryption(b"password")
    made = {
        "ec": ec.generate_private_key(ec.SECP256R1()).private_bytes(*plain, serialization.NoEncryption()),
        "rsa": rsa.generate_private_key(65537, 2048).private_bytes(*plain, serialization.NoEncryption()),
        "x25519": x25519.X25519PrivateKey.generate().private_bytes(*plain, serialization.NoEncryption()),
        "locked": ed25519.Ed25519PrivateKey.generate().private_bytes(*plain, locked),
        "junk": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        "empty": b"",
    }
    public = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    made["ec.pub"] = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(*public)
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in made} | {"missing": tmp_path / "missing"}


def test_wrong_keys_are_one_line(tmp_path: Path) -> None:
    new_keys(tmp_path / "key")
    found = other_keys(tmp_path)
    for name in ("ec", "rsa", "x25519", "locked", "junk", "empty", "missing", "ec.pub"):
        with pytest.raises(SignatureError, match=r"Ed25519|no private key"):
            Signer(found[name])
    for path in (*found.values(), tmp_path / "key"):
        with pytest.raises(SignatureError, match=r"Ed25519|no public key"):
            trusted_key(path)
    with pytest.raises(SignatureError, match="no private key"):
        Signer(tmp_path / "key.pub")
    runs(tmp_path)
    assert "rsa" in complaint(*merge_command(tmp_path, "joint", "--weights", TEXT, "--sign", found["rsa"]))
    assert not (tmp_path / "out").exists()


# --- other programs load it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["selection", "combination"])
def test_torch_loads_it(rule: RuleName, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import load_file

    portfolio = runs(tmp_path)
    released = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    loaded = load_file(released.folder / "model.safetensors")
    assert {name: bits(tensor.numpy()) for name, tensor in loaded.items()} == {
        name: bits(tensor) for name, tensor in read_tensors(released.folder).items()
    }


@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    portfolio = runs(tmp_path)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    states = {}
    for seed, name in enumerate(portfolio.names):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
        (tmp_path / "runs" / name / "model.safetensors").unlink()
        model.save_pretrained(tmp_path / "runs" / name)
        states[name] = {key: value.double() for key, value in model.state_dict().items()}
    for rule in ("selection", "combination"):
        released = release(portfolio, chosen(portfolio, rule), tmp_path / rule)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(released.folder).state_dict()
        shares = WEIGHTS if rule == "combination" else {str(released.certificate.drawn): 1.0}
        for key, value in loaded.items():
            expected = sum(weight * states[name][key] for name, weight in shares.items())
            assert torch.equal(value, expected.to(value.dtype)), key
        verdict = verify(released.folder, portfolio=portfolio)
        assert verdict.code == 0, verdict


def test_a_pytorch_model_that_is_drawn(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    portfolio = runs(tmp_path)
    for seed, name in enumerate(portfolio.names):
        folder = tmp_path / "runs" / name
        (folder / "model.safetensors").unlink()
        values = {key: torch.from_numpy(value) for key, value in tensors(seed).items()}
        values["weight"][0, 0] = float("nan")
        torch.save(values, folder / "model.pt")
    released = release(portfolio, chosen(portfolio, "selection"), tmp_path / "out")
    verdict = verify(released.folder, portfolio=portfolio)
    assert verdict.code == 0, verdict
    # The file may hold more than the model, so its digest is not published even though the model is.
    assert mentions(released.folder, digest(tmp_path / "runs" / str(released.certificate.drawn) / "model.pt")) == []
    (tmp_path / "runs" / str(released.certificate.drawn) / "model.pt").write_bytes(
        (tmp_path / "runs" / str(released.certificate.drawn) / "model.pt").read_bytes() + b"more"
    )
    assert any("is not the file that was released from" in text for text in verify(released.folder, portfolio=portfolio).broken)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layout", ["single", "sharded", "adapter", "pytorch"])
def test_a_preview_names_exactly_what_is_written(rule: RuleName, layout: str, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for seed, name in enumerate(portfolio.names):
        folder, values = tmp_path / "runs" / name, tensors(seed)
        (folder / "model.safetensors").unlink()
        if layout == "pytorch":
            torch = pytest.importorskip("torch", reason="torch is not installed")
            torch.save({key: torch.from_numpy(value) for key, value in values.items()}, folder / "model.pt")
        elif layout == "adapter":
            adapter(folder, {"q.lora_A.weight": values["weight"][:2], "q.lora_B.weight": values["weight"][:, :2]})
        elif layout == "sharded":
            sharded(folder, {"weight": values["weight"]}, {"bias": values["bias"]})
        else:
            single(folder, values)
    choice = chosen(portfolio, rule)
    seen = preview(portfolio, choice, tmp_path / "out")
    assert (seen.total, seen.fits) == (None, None)
    assert left_behind(tmp_path) == set()
    released = release(portfolio, choice, tmp_path / "out")
    drawn = seen.files.if_drawn.get(str(released.certificate.drawn), ())
    assert set(seen.files.if_drawn) == (set(choice.form.values) if choice.form.draws else set())
    assert sorted((*seen.files.always, *drawn)) == sorted(path.name for path in released.folder.iterdir())
    assert seen.files.openings == (tmp_path / "runs" / ".dpmerge" / "openings").exists()


def test_a_preview_refuses_what_the_release_would(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    choice = chosen(portfolio, "combination")
    with pytest.raises(CertificateError, match="give that ledger"):
        preview(portfolio, choice, tmp_path / "out", dependent=True)
    (tmp_path / "runs" / "b" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="'b'"):
        preview(portfolio, choice, tmp_path / "out")


def test_a_preview_tells_what_the_ledger_will_hold(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=8.0, delta=DELTA)
    choice = chosen(portfolio, "selection")
    seen = preview(portfolio, choice, tmp_path / "one", ledger=ledger)
    assert ledger.history() == []
    release(portfolio, choice, tmp_path / "one", ledger=ledger)
    assert seen.total is not None
    assert ledger.history()[0].content["total"]["epsilon"] == seen.total.epsilon
    assert seen.fits is True
    tiny = Ledger.create(tmp_path / "tiny.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=0.01, delta=DELTA)
    assert preview(portfolio, choice, tmp_path / "two", ledger=tiny).fits is False


def test_a_drawn_model_is_copied_as_it_is(tmp_path: Path) -> None:
    """A NaN in it is its own; an average with it is refused (test_failures_leave_nothing_behind)."""
    portfolio = runs(tmp_path)
    for seed, name in enumerate(portfolio.names):
        values = tensors(seed)
        values["weight"][0, 0] = np.nan
        single(tmp_path / "runs" / name, values)
    released = release(portfolio, chosen(portfolio, "selection"), tmp_path / "out")
    source = tmp_path / "runs" / str(released.certificate.drawn) / "model.safetensors"
    assert (released.folder / "model.safetensors").read_bytes() == source.read_bytes()
    verdict = verify(released.folder, portfolio=portfolio)
    assert verdict.code == 0, verdict


def test_stated_scores_are_in_the_portfolios_order(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    turned = Portfolio(tuple(reversed(portfolio.models)))
    assert chosen(turned, "tempered", utility=scores(turned)).scores == scores(turned).values
