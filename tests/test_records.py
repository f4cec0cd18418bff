"""The record format: what is accepted, and one clear line naming file and field for everything else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from dpmerge import example_portfolio
from dpmerge.errors import DependentRuns, PortfolioError, RecordError, WeightsError
from dpmerge.records import DpSgd, Model, Portfolio, Record, Weights, require_independent
from dpmerge.release.certificate import record_digest
from tests import builders

RECORD: dict[str, Any] = {
    "schema": 1,
    "dataset": "mnist",
    "adjacency": "add-remove",
    "mechanism": {
        "kind": "dp-sgd",
        "run": "r1",
        "noise_fingerprint": None,
        "sampler_fingerprint": None,
        "optimizer": "sgd",
        "sampling": {"scheme": "poisson", "rate": 0.0043},
        "expected_batch": 256,
        "noise_multiplier": 0.5,
        "clip": 1.0,
        "clipping": "flat",
        "phases": [{"steps": 705, "learning_rate": 0.1}],
        "smoothness": None,
        "convex": None,
    },
}
OTHER_KINDS: list[dict[str, Any]] = [
    {"kind": "gaussian", "sensitivity": 1.0, "noise_std": 2.0, "dimension": 3},
    {"kind": "dp-ftrl", "noise_multiplier": 4.0, "steps": 100, "restarts": 3},
    {"kind": "dp-ftrl", "noise_multiplier": 4.0, "steps": 100, "restarts": 0, "separation": 30},
    {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6},
    {"kind": "rdp", "orders": [2.0, 4.0], "values": [0.1, 0.2]},
    {"kind": "non-private"},
]


def changed(path: str, value: Any) -> str:
    """The record with one field replaced (`...` removes it)."""
    record = copy.deepcopy(RECORD)
    *parents, last = path.split(".")
    target: Any = record
    for part in parents:
        target = target[int(part)] if part.isdigit() else target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return json.dumps(record)


def test_the_documented_example_is_valid() -> None:
    record = Record.parse(json.dumps(RECORD))
    assert isinstance(record.mechanism, DpSgd)
    assert record.mechanism.steps == 705


def test_records_without_newer_fields_are_written_as_before() -> None:
    record = Record.parse(json.dumps(RECORD))
    assert isinstance(record.mechanism, DpSgd)
    assert record.mechanism.settings()[0].weight_decay == 0.0 and record.mechanism.checkpoints_kept is None
    written = json.dumps(record.as_dict())
    assert "weight_decay" not in written and "checkpoints_kept" not in written


def test_the_schema_knows_the_newer_fields_and_asks_for_none() -> None:
    known = Record.model_json_schema()["$defs"]
    assert "weight_decay" in known["Phase"]["properties"] and "weight_decay" not in known["Phase"]["required"]
    assert "checkpoints_kept" in known["DpSgd"]["properties"] and "checkpoints_kept" not in known["DpSgd"]["required"]


def test_hashes_of_records_are_as_they_were_before_newer_fields() -> None:
    """Certificates and ledgers name records by these."""
    shipped = {model.name: record_digest(model.record)[:16] for model in Portfolio(example_portfolio())}
    assert shipped == {
        "mnist-c1-s0.5": "c189bbd165333fc1",
        "mnist-c1-s2": "6addcc2faa19fa81",
        "mnist-c2-s0.5": "62b22acab13e0b8d",
    }


@pytest.mark.parametrize("mechanism", OTHER_KINDS, ids=lambda m: str(m["kind"]))
def test_other_kinds_are_valid(mechanism: dict[str, Any]) -> None:
    assert Record.parse(json.dumps({**RECORD, "mechanism": mechanism})).mechanism.kind == mechanism["kind"]


@pytest.mark.parametrize(
    "path",
    [
        "schema",
        "dataset",
        "adjacency",
        "mechanism",
        *(f"mechanism.{name}" for name in RECORD["mechanism"]),
        "mechanism.phases.0.steps",
    ],
)
def test_every_missing_field_is_named(path: str) -> None:
    with pytest.raises(RecordError, match=rf"r\.json: field {path}: missing") as caught:
        Record.parse(changed(path, ...), source="r.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path,value,names",
    [
        ("schema", 2, "schema"),
        ("adjacency", "remove", "adjacency"),
        ("dataset", "", "dataset"),
        ("colour", "blue", "colour"),
        ("mechanism.momentum", 0.9, "mechanism.momentum"),
        ("mechanism.kind", "magic", "mechanism.kind"),
        ("mechanism.noise_multiplier", -0.5, "mechanism.noise_multiplier"),
        ("mechanism.noise_multiplier", "0.5", "mechanism.noise_multiplier"),
        ("mechanism.noise_multiplier", True, "mechanism.noise_multiplier"),
        ("mechanism.clip", 0, "mechanism.clip"),
        ("mechanism.clipping", "ghost", "mechanism.clipping"),
        ("mechanism.expected_batch", -1, "mechanism.expected_batch"),
        ("mechanism.sampling", {"scheme": "poisson", "rate": 0}, "mechanism.sampling.rate"),
        ("mechanism.sampling", {"scheme": "poisson", "rate": 1.5}, "mechanism.sampling.rate"),
        ("mechanism.sampling", {"scheme": "poisson"}, "mechanism.sampling"),
        ("mechanism.sampling", {"scheme": "fixed-size"}, "mechanism.sampling"),
        ("mechanism.sampling", {"scheme": "full-batch", "rate": 0.1}, "mechanism.sampling"),
        ("mechanism.sampling", {"scheme": "shuffle", "rate": 0.1}, "mechanism.sampling"),
        ("mechanism.sampling", {"scheme": "cyclic"}, "mechanism.sampling.scheme"),
        ("mechanism.phases", [], "mechanism.phases"),
        ("mechanism.phases", [{"steps": 0, "learning_rate": 0.1}], "mechanism.phases.0.steps"),
        ("mechanism.phases", [{"steps": 1.5, "learning_rate": 0.1}], "mechanism.phases.0.steps"),
        ("mechanism.phases", [{"steps": 1, "learning_rate": -0.1}], "mechanism.phases.0.learning_rate"),
        ("mechanism.phases", [{"steps": 1, "learning_rate": 0.1, "sigma": 2}], "mechanism.phases.0.sigma"),
        ("mechanism.phases", [{"steps": 1, "learning_rate": 0.1, "weight_decay": -1}], "mechanism.phases.0.weight_decay"),
        ("mechanism.checkpoints_kept", 0, "mechanism.checkpoints_kept"),
        ("mechanism.checkpoints_kept", 1.5, "mechanism.checkpoints_kept"),
        ("mechanism.smoothness", -1, "mechanism.smoothness"),
        ("mechanism.convex", "yes", "mechanism.convex"),
        ("mechanism", {"kind": "gaussian", "sensitivity": 1, "noise_std": 0}, "mechanism.noise_std"),
        ("mechanism", {"kind": "approx-dp", "epsilon": 1, "delta": 1}, "mechanism.delta"),
        ("mechanism", {"kind": "rdp", "orders": [2], "values": [1, 2]}, "mechanism"),
        ("mechanism", {"kind": "rdp", "orders": [3, 2], "values": [1, 2]}, "mechanism"),
        ("mechanism", {"kind": "rdp", "orders": [1], "values": [1]}, "mechanism.orders.0"),
        ("mechanism", {"kind": "dp-ftrl", "noise_multiplier": 1, "steps": 2, "restarts": 2}, "mechanism"),
        ("mechanism", {"kind": "non-private", "epsilon": 3}, "mechanism.epsilon"),
        ("mechanism", {}, "mechanism.kind"),
    ],
)
def test_every_bad_value_is_named(path: str, value: Any, names: str) -> None:
    with pytest.raises(RecordError) as caught:
        Record.parse(changed(path, value), source="runs/a/record.json")
    assert f"runs/a/record.json: field {names}:" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    broken = json.dumps(RECORD).replace('"clip": 1.0', f'"clip": {text}')
    with pytest.raises(RecordError, match="clip"):
        Record.parse(broken)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"record"', '{"schema": 1, "schema": 1}', "[" * 100_000])
def test_what_is_not_a_record_is_one_line(text: str) -> None:
    with pytest.raises(RecordError) as caught:
        Record.parse(text)
    assert "\n" not in str(caught.value)


def test_phases_override_and_inherit() -> None:
    record = copy.deepcopy(RECORD)
    record["mechanism"]["phases"] = [
        {"steps": 3, "learning_rate": 0.1},
        {
            "steps": 2,
            "learning_rate": 0.2,
            "noise_multiplier": 1.0,
            "clip": 2.0,
            "sampling": {"scheme": "full-batch"},
            "expected_batch": 9,
        },
    ]
    mechanism = Record.parse(json.dumps(record)).mechanism
    assert isinstance(mechanism, DpSgd)
    first, second = mechanism.settings()
    assert (first.noise_multiplier, first.clip, first.expected_batch) == (0.5, 1.0, 256)
    assert (second.noise_multiplier, second.clip, second.expected_batch) == (1.0, 2.0, 9)
    assert second.sampling.scheme == "full-batch"


def test_example_portfolio_loads() -> None:
    assert Portfolio(example_portfolio()).names == ("mnist-c1-s0.5", "mnist-c1-s2", "mnist-c2-s0.5")


def test_portfolio_folders(tmp_path: Path) -> None:
    with pytest.raises(PortfolioError, match="no such folder"):
        Portfolio(tmp_path / "absent")
    with pytest.raises(PortfolioError, match="no models here"):
        Portfolio(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(PortfolioError, match=r"no models here.*'a': neither a record\.json nor tensors"):
        Portfolio(tmp_path)
    (tmp_path / "a" / "record.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="cannot be read"):
        Portfolio(tmp_path)
    (tmp_path / "a" / "record.json").write_text(json.dumps(RECORD))
    (tmp_path / ".hidden").mkdir()
    assert Portfolio(tmp_path).names == ("a",)


def test_different_datasets_and_adjacencies_are_refused() -> None:
    first = builders.dp_sgd("a", sigma=1.0)
    with pytest.raises(PortfolioError, match="different datasets"):
        Portfolio((first, builders.model("b", {"kind": "non-private"}, dataset="other")))
    with pytest.raises(PortfolioError, match="different adjacencies"):
        Portfolio((first, builders.dp_sgd("b", sigma=1.0, adjacency="zero-out")))


@pytest.mark.parametrize(
    "steps, restarts, fits", [(100, 3, True), (100, 4, False), (80, 3, True), (50, 3, False), (50, 1, True), (50, 4, False)]
)
def test_checkpoints_of_one_tree_agree_on_their_restarts(steps: int, restarts: int, fits: bool) -> None:
    """A record with other restarts at the same step would let the cheaper of two stories count."""

    def ftrl(name: str, steps: int, restarts: int) -> Model:
        mechanism = {"kind": "dp-ftrl", "noise_multiplier": 4.0, "steps": steps, "restarts": restarts, "run": "one"}
        return builders.model(name, mechanism, "zero-out")

    both = (ftrl("early", steps, restarts), ftrl("late", 100, 3))
    if fits:
        assert Portfolio(both).names == ("early", "late")
    else:
        with pytest.raises(PortfolioError, match=r"not the beginning|no one length of trees"):
            Portfolio(both)


def test_trees_of_all_records_of_a_run_have_one_length() -> None:
    def ftrl(name: str, **stated: int) -> Model:
        return builders.model(name, {"kind": "dp-ftrl", "noise_multiplier": 4.0, "run": "one", **stated}, "zero-out")

    known, unknown = ftrl("a", steps=8, restarts=0, tree_steps=8), ftrl("b", steps=12, restarts=1)
    assert Portfolio((known, unknown)).names == ("a", "b")
    with pytest.raises(PortfolioError, match=r"'a', 'b', 'c'.*no one length of trees"):
        Portfolio((known, unknown, ftrl("c", steps=27, restarts=2)))
    for stated in ({"steps": 12, "restarts": 1, "tree_steps": 5}, {"steps": 12, "restarts": 0, "tree_steps": 11}):
        with pytest.raises(RecordError, match=r"do not have . restarts within 12 steps"):
            ftrl("d", **stated)


def test_a_record_without_tree_steps_is_written_as_before() -> None:
    mechanism = {"kind": "dp-ftrl", "noise_multiplier": 4.0, "steps": 12, "restarts": 1}
    assert "tree_steps" not in builders.model("a", mechanism, "zero-out").record.as_dict()["mechanism"]
    stated = builders.model("a", {**mechanism, "tree_steps": 8}, "zero-out").record
    assert Record.parse(json.dumps(stated.as_dict())) == stated


def test_a_banded_matrix_has_no_trees_and_one_separation() -> None:
    def ftrl(name: str, **stated: int) -> Model:
        return builders.model(name, {"kind": "dp-ftrl", "noise_multiplier": 4.0, "run": "one", **stated}, "zero-out")

    early, late = ftrl("a", steps=8, restarts=0, separation=5), ftrl("b", steps=12, restarts=0, separation=5)
    assert Portfolio((early, late)).names == ("a", "b")
    with pytest.raises(PortfolioError, match="not the beginning"):
        Portfolio((early, ftrl("b", steps=12, restarts=0, separation=6)))
    for trees in ({"restarts": 1}, {"restarts": 0, "tree_steps": 12}):
        with pytest.raises(RecordError, match="has no trees"):
            ftrl("c", steps=12, separation=5, **trees)


def test_checkpoints_of_one_run_must_continue_each_other() -> None:
    early = builders.dp_sgd("early", sigma=1.0, run="r", noise_fingerprint="n", sampler_fingerprint="s", steps=10)
    late = builders.dp_sgd(
        "late",
        sigma=1.0,
        run="r",
        noise_fingerprint="n",
        sampler_fingerprint="s",
        phases=[{"steps": 4, "learning_rate": 0.1}, {"steps": 16, "learning_rate": 0.1}, {"steps": 5, "learning_rate": 0.05}],
    )
    Portfolio((early, late))
    other = builders.dp_sgd("late", sigma=2.0, run="r", noise_fingerprint="n", sampler_fingerprint="s", steps=20)
    with pytest.raises(PortfolioError, match="not the beginning"):
        Portfolio((early, other))


PAIR = builders.portfolio(builders.dp_sgd("a", sigma=1.0), builders.dp_sgd("b", sigma=2.0))


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("a=0.5,b=0.6", "sum to"),
        ("a=0.5,b=0.499999", "sum to"),
        ("a=1.000001", "sum to"),
        ("a=-0.5,b=1.5", "non-negative"),
        ("a=nan,b=1", "finite"),
        ("a=inf", "finite"),
        ("a=0.5,c=0.5", "no model named 'c'"),
        ("a=0.5,a=0.5", "given twice"),
        ("a", "cannot read"),
        ("=1", "cannot read"),
        ("a=half,b=0.5", "not a number"),
        ("a=1/0", "not a number"),
        ("", "cannot read"),
    ],
)
def test_bad_weights_are_refused_never_renormalised(text: str, complaint: str) -> None:
    with pytest.raises(WeightsError, match=complaint):
        Weights.parse(PAIR, text)


def test_weights_are_kept_exactly() -> None:
    weights = Weights.parse(PAIR, "a=1/3,b=2/3")
    assert weights.values == (1 / 3, 2 / 3)
    assert Weights.parse(PAIR, "b=1").as_dict() == {"a": 0.0, "b": 1.0}
    assert Weights.parse(PAIR, "a=0.3000000001,b=0.7").values == (0.3000000001, 0.7)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_only_distributions_pass(values: list[float]) -> None:
    given_weights = dict(zip("ab", values, strict=True))
    if abs(sum(values) - 1) <= 1e-9:
        assert PAIR.weights(given_weights).values == tuple(values)
    else:
        with pytest.raises(WeightsError):
            PAIR.weights(given_weights)


@pytest.mark.parametrize(
    ("earlier", "later", "steps", "accepted"),
    [
        ("a", "a", 10, True),
        ("a", "a+b@10", 10, True),
        ("a", "a+b@10+c@20", 9, True),
        ("a+b@10", "a+b@10+c@20", 20, True),
        ("a", "a+b@10", 11, False),  # the first was kept after the point from which the second went on
        ("a+b@5", "a+c@5", 10, False),  # two ways on from one checkpoint
        ("a", "b", 10, False),
        ("a", "ab+c@10", 10, False),
    ],
)
def test_a_run_that_was_continued_is_one_run(earlier: str, later: str, steps: int, accepted: bool) -> None:
    first = builders.dp_sgd("first", sigma=1.0, steps=steps, run="r", noise_fingerprint=earlier, sampler_fingerprint="s")
    second = builders.dp_sgd("second", sigma=1.0, steps=30, run="r", noise_fingerprint=later, sampler_fingerprint="s")
    if accepted:
        assert Portfolio((first, second)).names == ("first", "second")
    else:
        with pytest.raises(PortfolioError, match="not the beginning"):
            Portfolio((first, second))


def test_runs_that_share_a_generator_after_a_crash_are_dependent() -> None:
    models = [
        builders.dp_sgd("x", sigma=1.0, noise_fingerprint="a+b@10"),
        builders.dp_sgd("y", sigma=1.0, noise_fingerprint="c+b@5"),
    ]
    with pytest.raises(DependentRuns, match="same noise_fingerprint 'b'"):
        require_independent(tuple(models))
