"""`dpmerge record new`: records of models that were trained without one, as their users state them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge as library
from dpmerge.cli import app, training as commands
from dpmerge.errors import CheckpointError, RecordError
from dpmerge.records import Portfolio, Record
from dpmerge.training import StatedModel, new_record
from tests.checkpoint_builders import adapter, single
from tests.release_builders import dpmerge
from tests.test_tensors_lora import factors

SGD: dict[str, Any] = {
    "kind": "dp-sgd",
    "dataset": "d",
    "steps": 100,
    "sampling": "poisson",
    "rate": "0.01",
    "noise_multiplier": "1.1",
    "clip": "1.0",
    "clipping": "flat",
    "learning_rate": "0.1*40,0.05*60",
    "optimizer": "adam",
    "expected_batch": 64.0,
    "others_unchanged": True,
}
PAIR: dict[str, Any] = {"kind": "approx-dp", "dataset": "d", "adjacency": "replace-one", "epsilon": 2.0, "delta": 1e-6}


def flags(stated: dict[str, Any]) -> list[str]:
    return [
        part
        for name, value in stated.items()
        for part in ([f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)])
    ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return single(tmp_path / "runs" / "a", {"weight": np.ones((2, 3), np.float32)})


def test_a_run_is_recorded_as_it_is_stated(model: Path) -> None:
    made = dpmerge("record", "new", model, *flags(SGD), "--json")
    assert made.exit_code == 0, made.output
    record = Record.load(model / "record.json")
    assert json.loads(made.stdout)["record"] == record.as_dict()
    told = record.as_dict()
    assert (told["source"], told["adjacency"], told["dataset"]) == ("stated-by-user", "add-remove", "d")
    mechanism = told["mechanism"]
    assert [(phase["steps"], phase["learning_rate"]) for phase in mechanism["phases"]] == [(40, 0.1), (60, 0.05)]
    assert mechanism["sampling"] == {"scheme": "poisson", "rate": 0.01} and mechanism["noise_multiplier"] == 1.1
    assert mechanism["run"].startswith("stated-") and mechanism["others_unchanged"] is True
    found = library.joint(Portfolio(model.parent), {"a": 1.0}).guarantee(delta=1e-5)
    assert any("was stated by its user" in text for text in found.assumptions)


def test_noise_and_rate_may_change_within_a_run(model: Path) -> None:
    stated = {**SGD, "noise_multiplier": "1.0*30,2.0*70", "rate": "0.01*50,0.02*50", "learning_rate": "0.1", "run": "mine"}
    made = new_record(model, StatedModel(**stated)).as_dict()["mechanism"]
    phases = [(phase["steps"], phase.get("noise_multiplier"), phase.get("sampling")) for phase in made["phases"]]
    twice = {"scheme": "poisson", "rate": 0.02}
    assert [steps for steps, *_ in phases] == [30, 20, 50]
    assert [noise or 1.0 for _, noise, _ in phases] == [1.0, 2.0, 2.0] and phases[2][2] == twice and made["run"] == "mine"


@pytest.mark.parametrize(
    "stated", [PAIR, {**PAIR, "epsilon": 0.0, "delta": 0.0}, {"kind": "non-private", "dataset": "d", "adjacency": "add-remove"}]
)
def test_other_kinds_say_what_is_known_and_no_more(stated: dict[str, Any], tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", factors(0))
    new_record(folder, StatedModel(**stated))
    told = json.loads((folder / "record.json").read_text())
    assert told["mechanism"]["kind"] == stated["kind"] and told["adjacency"] == stated["adjacency"]
    assert told["mechanism"].get("epsilon") == stated.get("epsilon") and told["source"] == "stated-by-user"


@pytest.mark.parametrize("gone", [name for name in SGD if name not in ("kind",)])
def test_what_is_missing_is_named_by_its_option_and_nothing_is_written(gone: str, model: Path) -> None:
    made = dpmerge("record", "new", model, *flags({name: value for name, value in SGD.items() if name != gone}))
    assert isinstance(made.exception, RecordError) and f"without --{gone.replace('_', '-')}" in str(made.exception)
    assert not (model / "record.json").exists()
    with pytest.raises(RecordError, match=f"without {gone}"):
        new_record(model, StatedModel(**{name: value for name, value in SGD.items() if name != gone}))


@pytest.mark.parametrize(
    "changes, because",
    [
        ({"noise_multiplier": "1.0*10"}, "is about 10 steps; there were 100"),
        ({"rate": "1.5"}, r"a Poisson rate lies in \(0, 1\]"),
        ({"sampling": "shuffle"}, "rate belongs to poisson sampling"),
        ({"epsilon": 1.0}, "epsilon has no meaning in a record of kind dp-sgd"),
        ({"examples": 1000}, "examples states the divisor|leave it out"),
        ({"steps": 0}, "steps 0: must be positive"),
        ({"expected_batch": -1.0}, "expected_batch -1.0: must be positive"),
        ({"clip": "0"}, "needs a positive, finite value"),
        ({"clip": "abc"}, "is not a number"),
        ({"weight_decay": "0.1"}, "weight_decay is plain SGD's"),
        ({"dataset": ""}, "dataset is empty"),
        ({"leave_out": ("weight",)}, "leave_out: .* holds tensor 'weight'"),
        ({"noise_multiplier": "nan"}, "needs a positive, finite value"),
    ],
)
def test_what_no_run_can_have_been_is_refused(changes: dict[str, Any], because: str, model: Path) -> None:
    with pytest.raises(RecordError, match=because):
        new_record(model, StatedModel(**{**SGD, **changes}))
    assert not (model / "record.json").exists()


@pytest.mark.parametrize(
    "changes, because",
    [
        ({"steps": 3}, "steps has no meaning in a record of kind approx-dp"),
        ({"delta": 1.0}, "delta 1.0: must be at least 0 and below 1"),
        ({"epsilon": float("nan")}, "epsilon nan"),
        ({"epsilon": float("inf")}, "epsilon inf"),
    ],
)
def test_pairs_that_mean_nothing_are_refused(changes: dict[str, Any], because: str, model: Path) -> None:
    with pytest.raises(RecordError, match=because):
        new_record(model, StatedModel(**{**PAIR, **changes}))


def test_a_record_is_never_overwritten_and_stands_beside_tensors_only(model: Path, tmp_path: Path) -> None:
    new_record(model, StatedModel(**PAIR))
    before = (model / "record.json").read_bytes()
    with pytest.raises(RecordError, match="never overwritten"):
        new_record(model, StatedModel(**SGD))
    assert (model / "record.json").read_bytes() == before
    (tmp_path / "empty").mkdir()
    for folder, error in ((tmp_path / "empty", "no tensors"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(CheckpointError, match=error):
            new_record(folder, StatedModel(**PAIR))
    released = single(tmp_path / "released", {"x": np.ones(2, np.float32)})
    (released / "certificate.json").write_text("{}")
    with pytest.raises(RecordError, match="is a release"):
        new_record(released, StatedModel(**PAIR))


def test_a_state_dict_of_torch_is_recorded_as_it_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "a").mkdir()
    torch.save({"weight": torch.ones(2, 3)}, tmp_path / "a" / "model.pt")
    new_record(tmp_path / "a", StatedModel(**PAIR))
    assert Portfolio(tmp_path).names == ("a",)


# --- questions --------------------------------------------------------------------------------------------------------------


def answered(model: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], *arguments: str) -> Any:
    from typer.testing import CliRunner

    monkeypatch.setattr(commands, "_may_ask", lambda: True)
    return CliRunner().invoke(app, ["record", "new", str(model), *arguments], input="\n".join([*answers, ""]))


def test_a_terminal_is_asked_and_bad_answers_are_asked_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["sgd?", "approx-dp", "", "d", "add-remove", "minus one", "-1", "2.5", "1", "1e-6"]
    made = answered(model, monkeypatch, answers, "--json")
    assert made.exit_code == 0, made.output
    told = made.stdout[made.stdout.index("{") :]  # the runner shows what it types
    assert json.loads(told)["record"]["mechanism"]["epsilon"] == 2.5
    assert "epsilon -1.0: must be at least 0" in made.stderr and "delta 1.0" in made.stderr
    assert Record.load(model / "record.json").mechanism.kind == "approx-dp"


def test_a_run_is_asked_for_step_by_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = [
        "kind",
        "dataset",
        "steps",
        "sampling",
        "rate",
        "noise_multiplier",
        "clip",
        "clipping",
        "learning_rate",
        "optimizer",
    ]
    answers = [*(str(SGD[name]) for name in order), "64", "y"]
    assert answered(model, monkeypatch, answers).exit_code == 0
    assert new_without_run(Record.load(model / "record.json")) == new_without_run(StatedModel(**SGD).record())


def new_without_run(record: Record) -> dict[str, Any]:
    told = record.as_dict()
    told["mechanism"].pop("run")
    return told


def test_who_cannot_say_that_other_tensors_are_unchanged_gets_no_record(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = flags({name: value for name, value in SGD.items() if name != "others_unchanged"})
    made = answered(model, monkeypatch, ["n"], *stated)
    assert isinstance(made.exception, RecordError) and "covered by no record" in str(made.exception)
    assert not (model / "record.json").exists()


def test_without_a_terminal_it_is_one_line_and_code_two(model: Path) -> None:
    command = [sys.executable, "-m", "dpmerge", "record", "new", str(model), "--kind", "approx-dp"]
    ran = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and "without --dataset, --adjacency, --epsilon, --delta" in ran.stderr
