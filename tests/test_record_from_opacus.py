"""Records of checkpoints that Opacus saved: what the file says, what must be stated, and how a stated record is shown."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import CheckpointError, RecordError, TrainingError
from dpmerge.records import DpSgd, FullPhase, Model, Portfolio, Record, Sampling
from dpmerge.release.certificate import record_digest
from dpmerge.rules import Combination, Joint, Selection, Tempered
from tests.builders import dp_sgd

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from opacus.accountants import RDPAccountant  # noqa: E402
from opacus.schedulers import StepGradClip, StepNoise  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from dpmerge.training import Stated, from_opacus, opacus_history  # noqa: E402
from dpmerge.training.recipe import dp_sgd_record  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]
STATED: dict[str, Any] = {
    "dataset": "made-up",
    "sampling": "poisson",
    "clip": "1.0",
    "clipping": "flat",
    "learning_rate": "0.1",
    "optimizer": "sgd",
    "examples": 60,
    "others_unchanged": True,
}


def trained(path: Path, *kinds: str, **options: Any) -> Private:
    """A run of 12 steps, and Opacus' own checkpoint of it."""
    torch.set_num_threads(1)
    run = private(**options)
    held: dict[str, Any] = {}
    if "noise" in kinds:
        held["noise_scheduler"] = StepNoise(run.optimizer, step_size=4, gamma=0.5)
    if "clip" in kinds:
        held["grad_clip_scheduler"] = StepGradClip(run.optimizer, step_size=6, gamma=0.5)
    run.train(*held.values())
    run.engine.save_checkpoint(path=path, module=run.module, optimizer=run.optimizer, **held)
    return run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("opacus") / "checkpoint.pt"
    trained(path)
    return path


# --- what is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_history_and_tensors(accountant: str, mode: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "c.pt", "noise", accountant=accountant, mode=mode)
    record = from_opacus(tmp_path / "c.pt", tmp_path / "portfolio" / "a", Stated(**STATED))
    assert record == Record.load(tmp_path / "portfolio" / "a" / "record.json")
    assert record.source == "stated-by-user" and isinstance(record.mechanism, DpSgd)
    assert opacus_history(record) == run.engine.accountant.history == [(0.5**i, 1 / 12, 4) for i in range(3)]
    fresh = RDPAccountant()
    fresh.history = opacus_history(record)
    live = RDPAccountant()
    live.history = run.engine.accountant.history
    assert fresh.get_epsilon(1e-5) == pytest.approx(live.get_epsilon(1e-5), abs=1e-6)
    assert (record.mechanism.expected_batch, record.mechanism.noise_fingerprint) == (5.0, None)
    held, inner = load_file(tmp_path / "portfolio" / "a" / "model.safetensors"), run.module._module.state_dict()
    assert held.keys() == inner.keys() and all(torch.equal(held[name], inner[name]) for name in inner)


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
def test_the_third_accountant_has_the_same_history(tmp_path: Path) -> None:
    trained(tmp_path / "c.pt", accountant="gdp")
    assert opacus_history(from_opacus(tmp_path / "c.pt", tmp_path / "a", Stated(**STATED))) == [(1.0, 1 / 12, 12)]


def test_what_changed_is_stated_step_by_step(tmp_path: Path) -> None:
    trained(tmp_path / "c.pt", "noise", "clip")
    stated = Stated(**{**STATED, "clip": "1*6,0.5*6", "learning_rate": "0.1*5,0.05*7", "optimizer": "adam"})
    record = from_opacus(tmp_path / "c.pt", tmp_path / "a", stated)
    assert isinstance(record.mechanism, DpSgd)
    phases = [(p.steps, p.noise_multiplier, p.clip, p.learning_rate) for p in record.mechanism.settings()]
    assert phases == [(4, 1.0, 1.0, 0.1), (1, 0.5, 1.0, 0.1), (1, 0.5, 1.0, 0.05), (2, 0.5, 0.5, 0.05), (4, 0.25, 0.5, 0.05)]


def test_other_batches(checkpoint: Path, tmp_path: Path) -> None:
    shuffled = from_opacus(checkpoint, tmp_path / "a", Stated(**{**STATED, "sampling": "shuffle", "run": "mine"}))
    assert isinstance(shuffled.mechanism, DpSgd)
    assert (shuffled.mechanism.sampling, shuffled.mechanism.run) == (Sampling(scheme="shuffle"), "mine")
    with pytest.raises(RecordError, match=r"full-batch, but the accountant has counted steps with rate 0\.0833"):
        from_opacus(checkpoint, tmp_path / "b", Stated(**{**STATED, "sampling": "full-batch"}))
    trained(tmp_path / "whole.pt", batch=60)
    full = from_opacus(tmp_path / "whole.pt", tmp_path / "b", Stated(**{**STATED, "sampling": "full-batch"}))
    assert opacus_history(full) == [(1.0, 1.0, 1)]


# --- what is refused -----------------------------------------------------------------------------------------------------


def test_everything_that_is_missing_is_named_at_once(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["record", "from-opacus", str(checkpoint), "--out", str(tmp_path / "a"), "--clip", "1"])
    assert result.exception is not None and not (tmp_path / "a").exists()
    text = str(result.exception)
    fields = ("dataset", "sampling", "clipping", "learning_rate", "optimizer", "expected_batch (or examples)")
    for field in (*fields, "others_unchanged"):
        assert field in text
    assert "clip," not in text and "\n" not in text


@pytest.mark.parametrize(
    "stated, match",
    [
        ({"expected_batch": 5.0}, "give one"),
        ({"clip": "0"}, "positive"),
        ({"clip": "-1"}, "positive"),
        ({"clip": "nan"}, "positive"),
        ({"clip": "one"}, "not a number"),
        ({"learning_rate": "0.1*5"}, "is about 5 steps; there were 12"),
        ({"learning_rate": "0.1*5,0.2"}, "is about 17 steps"),
        ({"learning_rate": "0.1*12.5"}, "not a number"),
        ({"learning_rate": "0.1*-12"}, "at least one step"),
        ({"learning_rate": "0.2"}, r"learning rate 0\.1, not 0\.2; if it changed"),
        ({"examples": 3}, "expected batch must be positive"),
        ({"examples": None, "expected_batch": float("nan")}, "expected batch must be positive"),
        ({"weight_decay": "-0.1"}, "weight_decay '-0.1': needs a positive"),
        ({"weight_decay": "much"}, "weight_decay 'much' is not a number"),
        ({"weight_decay": "0.1*5"}, "weight_decay 0.1\\*5 is about 5 steps"),
        ({"weight_decay": "0.1"}, r"not plain SGD \(weight_decay=0\)"),
        ({"weight_decay": "0.1", "optimizer": "adamw"}, "weight_decay is plain SGD's; with optimizer adamw"),
        ({"dataset": ""}, "field dataset"),
        ({"run": ""}, r"field mechanism\.run"),
        ({"smoothness": float("nan")}, "smoothness"),
    ],
)
def test_statements_that_cannot_be(stated: Any, match: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=match) as caught:
        from_opacus(checkpoint, tmp_path / "a", Stated(**{**STATED, **stated}))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "build, match",
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), r"momentum=0\.9"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), r"weight_decay=0\.1"),
        (
            lambda p: torch.optim.SGD([{"params": [one], "weight_decay": 0.1 * i} for i, one in enumerate(p)], lr=0.1),
            "different weight decays",
        ),
        (lambda p: torch.optim.Adam(p, lr=0.1), "amsgrad"),
        (lambda p: torch.optim.SGD([{"params": [one], "lr": 0.1 * i} for i, one in enumerate(p, 1)]), "different learning"),
    ],
)
def test_an_optimizer_that_is_not_plain_sgd_is_not_called_so(build: Any, match: str, tmp_path: Path) -> None:
    trained(tmp_path / "c.pt", optimizer=build)
    with pytest.raises(RecordError, match=f"not plain SGD .*{match}"):
        from_opacus(tmp_path / "c.pt", tmp_path / "a", Stated(**STATED))
    from_opacus(tmp_path / "c.pt", tmp_path / "a", Stated(**{**STATED, "optimizer": "what it was"}))


@pytest.mark.parametrize("said", ["0.1", "0.1*12"])
def test_weight_decay_of_sgd_is_stated(said: str, tmp_path: Path) -> None:
    trained(tmp_path / "c.pt", optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1))
    record = from_opacus(tmp_path / "c.pt", tmp_path / "a", Stated(**STATED, weight_decay=said))
    assert isinstance(record.mechanism, DpSgd)
    assert [phase.weight_decay for phase in record.mechanism.settings()] == [0.1]


def test_weight_decay_that_changed_is_stated_by_step(checkpoint: Path, tmp_path: Path) -> None:
    record = from_opacus(checkpoint, tmp_path / "a", Stated(**STATED, weight_decay="0.5*4,0*8"))
    assert isinstance(record.mechanism, DpSgd)
    assert [(phase.steps, phase.weight_decay) for phase in record.mechanism.settings()] == [(4, 0.5), (8, 0.0)]
    stated = {**STATED, "run": record.mechanism.run, "weight_decay": "0.5*4,0*8"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in stated.items() if value is not True]
    command = ["record", "from-opacus", str(checkpoint), "--out", str(tmp_path / "b"), "--others-unchanged", *options]
    invoked = CliRunner().invoke(app, command)
    assert invoked.exit_code == 0, invoked.output
    assert Record.load(tmp_path / "b" / "record.json") == record


def test_a_scheduled_clip_is_not_one_number(tmp_path: Path) -> None:
    trained(tmp_path / "c.pt", "clip")
    with pytest.raises(RecordError, match=r"scheduler of the clip; .*as 1\.0\*12"):
        from_opacus(tmp_path / "c.pt", tmp_path / "a", Stated(**STATED))


def test_files_that_are_no_checkpoints_of_opacus(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        from_opacus(tmp_path / "nowhere.pt", tmp_path / "a", Stated(**STATED))
    torch.save({"w": torch.zeros(2)}, tmp_path / "plain.pt")
    with pytest.raises(CheckpointError, match="no privacy_accountant_state_dict"):
        from_opacus(tmp_path / "plain.pt", tmp_path / "a", Stated(**STATED))
    (tmp_path / "damaged.pt").write_bytes(b"no pickle")
    with pytest.raises(CheckpointError, match="cannot be read without running it"):
        from_opacus(tmp_path / "damaged.pt", tmp_path / "a", Stated(**STATED))
    for rows, match in (
        ([], "counted no step"),
        ([(1.0, 0.1)], "is not σ, rate and steps"),
        ([("much", 0.1, 5)], "is not σ, rate and steps"),
        ([(1.0, 1.5, 5)], "are not private steps"),
        ([(float("nan"), 0.5, 5)], "are not private steps"),
    ):
        held = torch.load(checkpoint, weights_only=True)
        held["privacy_accountant_state_dict"]["history"] = rows
        torch.save(held, tmp_path / "odd.pt")
        with pytest.raises(CheckpointError, match=match):
            from_opacus(tmp_path / "odd.pt", tmp_path / "a", Stated(**STATED))
    (tmp_path / "a").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        from_opacus(checkpoint, tmp_path / "a", Stated(**STATED))


class Surprise:
    """What a hostile file would have run when it is read."""

    def __reduce__(self) -> Any:
        return (Path.mkdir, (Path("surprise"),))


def test_no_code_of_the_file_is_run(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held = torch.load(checkpoint, weights_only=True)
    torch.save({**held, "noise_scheduler_state_dict": Surprise()}, tmp_path / "hostile.pt")
    with pytest.raises(CheckpointError, match="cannot be read without running it"):
        from_opacus(tmp_path / "hostile.pt", tmp_path / "a", Stated(**STATED))
    assert not (tmp_path / "surprise").exists() and not (tmp_path / "a").exists()


def test_only_dp_sgd_has_a_history() -> None:
    content = {"schema": 1, "dataset": "d", "adjacency": "add-remove", "mechanism": {"kind": "non-private"}}
    with pytest.raises(TrainingError, match="a non-private record is not a run of DP-SGD"):
        opacus_history(Record.parse(json.dumps(content)))


# --- records and histories -----------------------------------------------------------------------------------------------

PHASES = st.lists(
    st.builds(
        FullPhase,
        steps=st.integers(1, 9),
        learning_rate=st.sampled_from([0.0, 0.1, 1 / 3]),
        noise_multiplier=st.sampled_from([0.5, 1.0]),
        clip=st.sampled_from([1.0, 2.0]),
        sampling=st.sampled_from([Sampling(scheme="poisson", rate=0.1), Sampling(scheme="full-batch")]),
        expected_batch=st.sampled_from([6.0, 60.0]),
    ),
    min_size=1,
    max_size=6,
)
MECHANISM = {
    "run": "r",
    "noise_fingerprint": None,
    "sampler_fingerprint": None,
    "optimizer": "sgd",
    "clipping": "flat",
    "smoothness": None,
    "convex": None,
}


@given(PHASES)
def test_phases_come_back_as_they_were(phases: list[FullPhase]) -> None:
    record = dp_sgd_record("d", MECHANISM, phases, "recorded")
    again = Record.parse(record.model_dump_json(by_alias=True))
    assert isinstance(again.mechanism, DpSgd)
    assert again.mechanism.settings() == phases
    by_step = [(p.noise_multiplier, p.sampling.rate or 1.0) for p in phases for _ in range(p.steps)]
    assert opacus_history(again) == [(*setting, len(list(same))) for setting, same in groupby(by_step)]


# --- the mark and where it is shown --------------------------------------------------------------------------------------


def test_a_record_without_a_source_is_written_as_before() -> None:
    plain = dp_sgd("a", sigma=1.0).record
    marked = plain.model_copy(update={"source": "stated-by-user"})
    assert plain.source is None and "source" not in plain.as_dict() and "source" not in plain.model_dump_json()
    assert marked.as_dict()["source"] == "stated-by-user" and record_digest(plain) != record_digest(marked)
    assert Record.parse(json.dumps(marked.as_dict())) == marked
    assert Record.parse(json.dumps({**plain.as_dict(), "source": None})) == plain
    with pytest.raises(RecordError, match="source"):
        Record.parse(json.dumps({**plain.as_dict(), "source": "heard"}))


def test_every_rule_says_which_records_were_stated() -> None:
    models = [dp_sgd("a", sigma=1.0), dp_sgd("b", sigma=2.0)]
    models[0] = Model("a", models[0].record.model_copy(update={"source": "stated-by-user"}))
    models[1] = Model("b", models[1].record.model_copy(update={"source": "recorded"}))
    weights = Portfolio(tuple(models)).weights({"a": 0.5, "b": 0.5})
    said = "the record of model 'a' was stated by its user, not recorded by the training"
    for rule in (Joint(weights), Selection(weights), Combination(weights), Tempered(weights, 0.1)):
        about = [text for text in rule.guarantee(delta=1e-5).assumptions if "stated by its user" in text]
        assert about == [said]
    alone = Portfolio(tuple(models)).weights({"b": 1.0})
    assert not any("stated by its user" in text for text in Joint(alone).guarantee(delta=1e-5).assumptions)


def test_from_the_command_line_to_a_verified_release(tmp_path: Path) -> None:
    invoke, portfolio = CliRunner().invoke, tmp_path / "portfolio"
    portfolio.mkdir()
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in STATED.items()]
    for name in ("a", "b"):
        trained(tmp_path / f"{name}.pt")
        made = invoke(app, ["record", "from-opacus", str(tmp_path / f"{name}.pt"), "--out", str(portfolio / name), *flags])
        assert made.exit_code == 0 and "stated by its user" in made.output, made.output
    shown = invoke(app, ["record", "from-opacus", str(tmp_path / "a.pt"), "--out", str(tmp_path / "c"), *flags, "--json"])
    assert json.loads(shown.output)["record"]["source"] == "stated-by-user"
    options = ["--rule", "combination", "--weights", "a=0.5,b=0.5", "--delta", "1e-5"]
    asked = invoke(app, ["account", str(portfolio), *options])
    assert asked.exit_code == 0 and "the record of model 'b' was stated by its user" in asked.output, asked.output
    out = tmp_path / "released"
    assert invoke(app, ["merge", str(portfolio), *options, "--out", str(out)]).exit_code == 0
    assert "was stated by its user" in (out / "README.md").read_text()
    checked = invoke(app, ["verify", str(out), "--portfolio", str(portfolio)])
    assert checked.exit_code == 0, checked.output


def test_adaptive_clipping_needs_the_noise_of_its_counts(checkpoint: Path, tmp_path: Path) -> None:
    adaptive = {**STATED, "clipping": "adaptive"}
    with pytest.raises(RecordError, match="state unclipped_num_std"):
        from_opacus(checkpoint, tmp_path / "a", Stated(**adaptive))
    with pytest.raises(RecordError, match=r"unclipped_num_std 0\.4: Opacus needs at least half"):
        from_opacus(checkpoint, tmp_path / "a", Stated(**adaptive, unclipped_num_std=0.4))
    with pytest.raises(RecordError, match="belongs to adaptive clipping, not to clipping flat"):
        from_opacus(checkpoint, tmp_path / "a", Stated(**STATED, unclipped_num_std=1.0))
    record = from_opacus(checkpoint, tmp_path / "a", Stated(**adaptive, unclipped_num_std=0.5))
    assert isinstance(record.mechanism, DpSgd) and record.mechanism.noise_multiplier == pytest.approx(0.5, rel=1e-12)


class Copies(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Keeps a private row: in a buffer, and in a frozen parameter, which the saved optimizer lists among its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))
        self.frozen = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Any) -> Any:
        if len(x):
            self.seen.copy_(x[0])
            self.frozen.copy_(x[0])
        return self.linear(x)


@pytest.mark.parametrize("optimizer", [True, False])
def test_tensors_that_the_optimizer_did_not_train_are_not_passed_on_unasked(optimizer: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    run = trained(path, build=Copies)
    if not optimizer:
        run.engine.save_checkpoint(path=path, module=run.module)
    silent = {**STATED, "others_unchanged": False}
    for left in ((), ("seen",), ("seen", "frozen")):
        with pytest.raises(RecordError, match=r"state others_unchanged .*leave_out"):
            from_opacus(path, tmp_path / "a", Stated(**silent, leave_out=left))
    with pytest.raises(RecordError, match=r"leave_out: .* has no tensor 'odd'"):
        from_opacus(path, tmp_path / "a", Stated(**STATED, leave_out=("odd",)))
    names = tuple(run.module._module.state_dict())
    with pytest.raises(RecordError, match="no model left to record"):
        from_opacus(path, tmp_path / "a", Stated(**STATED, leave_out=names))
    assert not (tmp_path / "a").exists()
    held = from_opacus(path, tmp_path / "a", Stated(**STATED, leave_out=("seen", "frozen")))
    assert isinstance(held.mechanism, DpSgd) and held.mechanism.left_out == ["frozen", "seen"]
    assert load_file(tmp_path / "a" / "model.safetensors").keys() == {"linear.weight", "linear.bias"}
    guarantee = Joint(Portfolio((Model("a", held),)).weights({"a": 1.0})).guarantee(delta=1e-5)
    said = "model 'a': its user says that tensors which the private optimizer did not train are as before it"
    assert said in guarantee.assumptions
    assert "others_unchanged" not in dp_sgd("a", sigma=1.0).record.as_dict()["mechanism"]
