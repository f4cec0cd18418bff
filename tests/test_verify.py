"""Rechecks: every field of a certificate edited, plainly and by a forger; exit codes; no false alarms; nothing crashes."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attacks.poisoned_cache import ask_like_a_recheck, poison
from attacks.victim import forge
from dpmerge.errors import DpmergeError
from dpmerge.files import canonical, sha256
from dpmerge.profiles import accuracy, compose, curves, epsilon_from_renyi, gaussian_delta, mixture
from dpmerge.records import Adjacency, Model, Portfolio
from dpmerge.release import Ledger, Merge, Released, Verdict, release, verify
from dpmerge.rules import Accounting, RuleName, round_up
from dpmerge.tensors import read_tensors
from tests import builders
from tests.checkpoint_builders import sharded, single
from tests.release_builders import DELTA, RULES, WEIGHTS, certificate, chosen, dpmerge, on_disk, runs
from verifier.recheck import recheck

Path_ = tuple[str | int, ...]


def write(out: Path, content: Any) -> None:
    """As the program writes it."""
    (out / "certificate.json").write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def rehash(out: Path, content: dict[str, Any]) -> None:
    """With the hash fitted, whatever it says."""
    plain = {key: value for key, value in content.items() if key not in ("sha256", "signature")}
    write(out, {**content, "sha256": sha256(canonical(plain))})


def at(content: Any, path: Path_) -> Any:
    for key in path:
        content = content[key]
    return content


def put(content: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """A copy with another value there."""
    changed = copy.deepcopy(content)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def paths(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    """Every place in a tree, lists and objects included."""
    if here:
        yield here
    items: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield from paths(item, (*here, key))


# For fields with few values all of them; for those that are null something that belongs there.
HALF, DIGEST = (0.5).hex(), "ab" * 32
VALUES: dict[str, list[Any]] = {
    "rule": ["selection", "tempered", "combination", "joint"],
    "provenance": ["a-priori", "after-looking", "private-validation"],
    "adjacency": ["add-remove", "replace-one", "zero-out"],
    "standing": ["proved", "conditional"],
    "by": ["best", "pld", "rdp", "gdp"],
    "conversion": ["tight", "paper", None],
    "solved_for": ["epsilon", "delta"],
    "clipping": ["flat", "per-layer", "adaptive"],
    "lora": ["factors", "exact", None],
    "convex": ["glm", "unclipped", None],
    "theorem": ["selection-pld", "joint-release", "single-run", "transport", "no-such-theorem"],
    "kind": ["gaussian", "non-private"],
    "scheme": ["shuffle", "full-batch"],
    "utilities_source": ["measured on something else"],
    "shuffle_rate": [HALF],
    "assume_smoothness": [HALF],
    "kappa": [HALF, (0.25).hex(), None],
    "validation": [{"records": 10, "disjoint": True, "epsilon": HALF}],
    "method": ["ties"],
    "take_from": ["a"],
    "base": [{"model.safetensors": DIGEST}],
    "drawn": ["a", "b", "c", None],
    "ledger": [{"number": 1, "entry": DIGEST, "epsilon": 1.0, "delta": 0.5}],
    "signature": [{"key": DIGEST, "value": DIGEST * 2}],
    "sampling": [{"scheme": "poisson", "rate": 0.5}],
    "smoothness": [0.1, None],
    "rate": [0.5],
    "schema": [2],
}


def others(path: Path_, value: Any) -> list[Any]:
    """Other values of the right kind for this place: those that a careful forger would try."""
    known = VALUES.get(str(path[-1]))
    if known is not None:
        return [other for other in known if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value / 2 if isinstance(value, float) else value + 1]
    if isinstance(value, str):
        if value.startswith("0x"):
            return [(float.fromhex(value) / 2).hex()]
        return [("1" if value[0] != "1" else "2") + value[1:]] if len(value) >= 64 else [value + "x"]
    if isinstance(value, list):
        return [[], [*value, *value[:1]]] if value else [["c"]]
    if isinstance(value, dict):
        shorter = [{key: item for key, item in value.items() if key != gone} for gone in value]
        return [*shorter, {**value, "more": next(iter(value.values()), "more")}]
    return [1.0, "text"]


def setting(section: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    """A change of some fields of one section."""
    return lambda content: content[section].update(values)


def places(content: dict[str, Any]) -> list[Path_]:
    """Every place; of the records, which have the same fields, one in full: another one for another rule."""
    names = list(content["records"])
    whole = names[RULES.index(content["rule"]["rule"]) % len(names)]
    return [path for path in paths(content) if path[0] != "records" or len(path) <= 2 or path[1] == whole]


def edits(content: dict[str, Any]) -> list[tuple[Path_, dict[str, Any]]]:
    return [(path, put(content, path, other)) for path in places(content) for other in others(path, at(content, path))]


@pytest.fixture
def released(tmp_path: Path, request: pytest.FixtureRequest) -> Released:
    portfolio = runs(tmp_path)
    return release(portfolio, chosen(portfolio, request.param), tmp_path / "out")


# --- every field ------------------------------------------------------------------------------------------------------------


@pytest.mark.uncounted  # hundreds of rechecks, which run the same lines
@pytest.mark.parametrize("released", RULES, indirect=True)
def test_every_edit_is_noticed_from_the_folder_alone(released: Released) -> None:
    content = certificate(released.folder)
    assert verify(released.folder).code == 0
    every = edits(content)
    assert len(every) > 120
    for path, changed in every:
        write(released.folder, changed)
        assert verify(released.folder).code == 1, path
    write(released.folder, content)
    assert verify(released.folder).code == 0


# What the portfolio cannot tell from the tensors, and does not bear on the guarantee: when, with which versions, by which
# utilities. How the question was put may be changed where the answer is the same, and a treatment of shuffled batches where
# there are none; so may how adapters are merged where there are none, and whose integers are taken where all have the same.
# `ledger` is checked against the ledger.
HARMLESS = {"created", "software", "utilities_source", "numerics", "shuffle_rate", "ledger"}
UNSEEN: dict[RuleName, set[str]] = {
    # The word of whoever chose: bound by the signature alone.
    "selection": HARMLESS,
    # Of a draw, κ and what a validation set paid leave no trace in the tensors.
    "tempered": {*HARMLESS, "kappa", "provenance"},
    "joint": {*HARMLESS, "lora", "take_from"},
    # Whoever forges loses what opens the commitments, so at least these remain unchecked.
    "combination": set(),
}


@pytest.mark.uncounted  # hundreds of rechecks, which run the same lines
@pytest.mark.parametrize("released", RULES, indirect=True)
def test_a_forger_who_fits_everything_else_is_caught_with_the_portfolio(released: Released, tmp_path: Path) -> None:
    """Hashes of records, model card, own hash, and for all but edits of the guarantee itself the guarantee that follows."""
    portfolio, out = Portfolio(tmp_path / "runs"), released.folder
    original = {path: path.read_bytes() for path in out.iterdir()}
    content = certificate(out)
    unseen: set[str] = set()
    for path, changed in edits(content):
        if path[0] in ("sha256", "signature"):
            continue  # these are what the forger fits

        def become(target: dict[str, Any], changed: dict[str, Any] = changed) -> None:
            target.clear()
            target.update(copy.deepcopy(changed))

        try:
            forge(out, become, guarantee=path[0] != "guarantee")
        except (KeyError, AttributeError, DpmergeError):
            rehash(out, changed)  # the forger's tools trip over it; it is tried as it is
        # A hash of a record or of the card that was edited is fitted again: then nothing is forged.
        if certificate(out) != content and verify(out, portfolio=portfolio).code == 0:
            names = [name for name in UNSEEN[released.certificate.rule.rule] if name in path]
            unseen.add(names[0] if names else ".".join(map(str, path)))
        for file, before in original.items():
            file.write_bytes(before)
    assert unseen == UNSEEN[released.certificate.rule.rule]
    assert verify(out, portfolio=portfolio).code == 0


@pytest.mark.parametrize("released", ["selection"], indirect=True)
def test_the_weights_of_a_draw_are_bound_by_signature_and_ledger_alone(released: Released, tmp_path: Path) -> None:
    """Said in attacks/README.md: the drawn model is the same whatever its chances were."""
    portfolio = Portfolio(tmp_path / "runs")

    def other_chances(content: dict[str, Any]) -> None:
        content["rule"]["weights"] = {"a": (0.125).hex(), "b": (0.875).hex()}

    forge(released.folder, other_chances, guarantee=True)
    assert verify(released.folder, portfolio=portfolio).code == 0
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA)
    entered = release(portfolio, chosen(portfolio, "selection"), tmp_path / "entered", ledger=ledger)
    assert verify(entered.folder, portfolio=portfolio, ledger=ledger).code == 0
    forge(entered.folder, other_chances, guarantee=True)
    assert verify(entered.folder, portfolio=portfolio).code == 0
    assert verify(entered.folder, ledger=ledger).broken == ["entry 1 of the ledger was completed with another certificate"]


@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_only_the_bytes_that_were_written_stand_for_a_certificate(released: Released) -> None:
    path = released.folder / "certificate.json"
    content, text = certificate(released.folder), path.read_text()
    same = {
        "white space": json.dumps(content, indent=2, sort_keys=True),
        "order": json.dumps(dict(reversed(content.items())), indent=1),
        "a trailing space": text + " ",
        "an escape": text.replace('"adjacency"', '"\\u0061djacency"', 1),
        "an integer": text.replace('"expected_batch": 1000.0', '"expected_batch": 1000', 1),
    }
    for what, spelt in same.items():
        assert json.loads(spelt) == content and spelt != text, what
        path.write_text(spelt)
        assert verify(released.folder).broken == [
            "certificate.json was edited: it says the same, but not in the bytes that were written"
        ], what


@pytest.mark.uncounted  # as above
@pytest.mark.parametrize("released", ["joint", "tempered"], indirect=True)
def test_nothing_in_a_certificate_can_crash_a_recheck(released: Released, tmp_path: Path) -> None:
    portfolio = Portfolio(tmp_path / "runs")
    content = certificate(released.folder)
    strange: list[Any] = [
        None,
        True,
        "",
        "\ud800",
        -1,
        0,
        10**30,
        1e308,
        5e-324,
        [],
        {},
        "0x1.0p+9999",
        "../..",
        [{}],
        {"": None},
    ]
    half = slice(content["rule"]["rule"] == "joint", None, 2)  # of what both hold, one tries these and one the others
    for path in places(content):
        for value in strange if path[0] == "rule" else strange[half]:
            changed = put(content, path, value)
            try:
                rehash(released.folder, changed)
            except (UnicodeEncodeError, AttributeError):
                (released.folder / "certificate.json").write_text(json.dumps(changed))
            found = verify(released.folder, portfolio=portfolio)
            assert isinstance(found, Verdict)
            harmless = not {"created", "software", "utilities_source", "sha256", "lora"}.isdisjoint(path)
            assert found.code != 0 or harmless or value == at(content, path), (path, value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{" * 100_000,
        b'{"schema": 1, "schema": 1}',
        b'{"schema": NaN}',
        b"\xef\xbb\xbf{}",
        b"1" * 5000,
    ],
)
@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_what_is_no_certificate_does_not_hold(text: bytes, released: Released) -> None:
    (released.folder / "certificate.json").write_bytes(text)
    assert verify(released.folder).code == 1


@pytest.mark.parametrize("token", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_numbers_that_are_none_are_refused_everywhere(token: str, released: Released) -> None:
    content = certificate(released.folder)
    for path in (("guarantee", "epsilon"), ("guarantee", "details", "more"), ("numerics", "accuracy")):
        text = json.dumps(put(content, path, "HERE"), indent=1, sort_keys=True).replace('"HERE"', token)
        (released.folder / "certificate.json").write_text(text)
        assert verify(released.folder).code == 1


# --- what lies in the folder ------------------------------------------------------------------------------------------------


def remove_model(out: Path) -> None:
    (out / "model.safetensors").unlink()


def remove_card(out: Path) -> None:
    (out / "README.md").unlink()


def folder_instead(out: Path) -> None:
    (out / "config.json").unlink()
    (out / "config.json").mkdir()


def pipe_instead(out: Path) -> None:
    (out / "config.json").unlink()
    os.mkfifo(out / "config.json")


def dangling_link(out: Path) -> None:
    (out / "more.json").symlink_to("nowhere")


def lines_end_otherwise(out: Path) -> None:
    (out / "config.json").write_bytes(b'{"model_type":\r\n "linear"}')


@pytest.mark.parametrize(
    "change", [remove_model, remove_card, folder_instead, pipe_instead, dangling_link, lines_end_otherwise]
)
@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_every_change_of_the_folder_is_named(change: Callable[[Path], None], released: Released) -> None:
    change(released.folder)
    verdict = verify(released.folder)
    assert verdict.code == 1
    named = ("missing", "was changed", "is not part of", "is not a regular file")
    assert any(word in " ".join(verdict.broken) for word in named)


def test_what_cannot_be_read_is_not_checked(tmp_path: Path) -> None:
    verdict = Verdict()
    assert verdict.digest(tmp_path) is None and verdict.digest(tmp_path / "nowhere") is None
    assert verdict.code == 2 and len(verdict.unchecked) == 2


@pytest.mark.parametrize("released", ["combination", "selection"], indirect=True)
def test_links_to_the_same_content_hold(released: Released, tmp_path: Path) -> None:
    """A hub's cache keeps files as links; other links may not lead out of the folder."""
    cached = tmp_path / "hub" / "snapshots" / "revision"
    shutil.copytree(released.folder, cached)
    (tmp_path / "hub" / "blobs").mkdir()
    for path in list(cached.iterdir()):
        blob = tmp_path / "hub" / "blobs" / sha256(path.read_bytes())
        path.rename(blob)
        path.symlink_to(Path("..") / ".." / "blobs" / blob.name)
    assert verify(cached).code == 0
    model = released.folder / "model.safetensors"
    model.rename(tmp_path / "blob")
    model.symlink_to(tmp_path / "blob")
    assert any("is a link out of the model's folder" in text for text in verify(released.folder).broken)


@pytest.mark.parametrize("released", RULES, indirect=True)
def test_other_versions_of_software_do_not_matter(released: Released) -> None:
    forge(released.folder, lambda content: content["software"].update(dpmerge="99.0", numpy="0.1"))
    assert verify(released.folder).code == 0


# --- the portfolio ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", ["combination"], indirect=True)
def test_what_cannot_be_checked_is_code_two(released: Released, tmp_path: Path) -> None:
    runs_, out = tmp_path / "runs", released.folder
    in_memory = Portfolio(tuple(Model(model.name, model.record) for model in Portfolio(runs_).models))
    assert verify(out, portfolio=in_memory).unchecked == [
        "the portfolio was not loaded from disk: there are no tensors to check against"
    ]
    shutil.rmtree(runs_ / ".dpmerge")
    assert "what opens them is not in the portfolio" in verify(out, portfolio=Portfolio(runs_)).unchecked[0]
    (runs_ / "a").rename(tmp_path / "away")
    verdict = verify(out, portfolio=Portfolio(runs_))
    assert verdict.code == 2 and verdict.unchecked == ["model 'a' is not in the portfolio"]


@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_models_that_were_added_since_were_not_looked_at(released: Released, tmp_path: Path) -> None:
    on_disk(tmp_path / "runs", builders.dp_sgd("d", sigma=1.0))
    broken = verify(released.folder, portfolio=Portfolio(tmp_path / "runs")).broken
    assert broken == ["the portfolio has other models than those certified as looked at"]


@pytest.mark.parametrize("released", ["combination", "selection", "joint"], indirect=True)
def test_changes_of_the_portfolio_are_named(released: Released, tmp_path: Path) -> None:
    name = released.certificate.drawn or "a"
    model = tmp_path / "runs" / name

    def broken() -> str:
        return " ".join(verify(released.folder, portfolio=Portfolio(tmp_path / "runs")).broken)

    def with_other_bytes(file: str, content: bytes) -> str:
        before = (model / file).read_bytes()
        (model / file).write_bytes(content)
        found = broken()
        (model / file).write_bytes(before)
        return found

    tensors = bytearray((model / "model.safetensors").read_bytes())
    tensors[-1] ^= 1
    found = with_other_bytes("model.safetensors", bytes(tensors))
    assert f"model {name!r}: model.safetensors is not the file that was released from" in found
    assert "tensor 'weight'" in found
    assert "the merge cannot be computed again" in with_other_bytes("model.safetensors", bytes(tensors[:-1]))
    record = (model / "record.json").read_bytes()
    assert f"the record of model {name!r} is not the one certified" in with_other_bytes(
        "record.json", record.replace(b'"clip":1.0', b'"clip":2.0')
    )
    assert with_other_bytes("record.json", record.replace(b",", b" ,\n")) == ""  # the same record
    if released.certificate.drawn is not None:
        assert "config.json is not what the merge keeps" in with_other_bytes("config.json", b'{"model_type": "other"}')
    assert broken() == ""


def test_metadata_of_the_merged_file_is_not_a_place_to_hide_in(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    released = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out")
    single(released.folder, read_tensors(released.folder), {"format": "pt", "loss": "0.123"})
    digest = sha256((released.folder / "model.safetensors").read_bytes())
    forge(released.folder, lambda content: content["outputs"].update({"model.safetensors": digest}))
    assert verify(released.folder).code == 0
    assert verify(released.folder, portfolio=portfolio).broken == ["model.safetensors: has other metadata than the merge"]


@pytest.mark.parametrize("rule", ["selection", "joint"])
def test_metadata_that_was_asked_for_is_certified_and_rechecked(rule: RuleName, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for model in portfolio.models:
        assert model.folder is not None
        single(model.folder, read_tensors(model.folder), {"format": "pt", "license": "mit", "loss": "0.1"})
    kept = release(portfolio, chosen(portfolio, rule), tmp_path / "kept", merge=Merge(keep_metadata=("license",)))
    assert kept.certificate.merge.keep_metadata == ["license"]
    assert any("metadata loss was left out" in note for note in kept.notes)
    assert verify(kept.folder, portfolio=portfolio).code == 0
    forge(kept.folder, lambda content: content["merge"].pop("keep_metadata"))
    assert verify(kept.folder, portfolio=portfolio).broken == ["model.safetensors: has other metadata than the merge"]
    plain = release(portfolio, chosen(portfolio, rule), tmp_path / "plain")
    assert "keep_metadata" not in plain.certificate.model_dump(mode="json")["merge"]


def test_the_index_of_a_drawn_model_is_not_a_place_to_hide_in(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for model in portfolio.models:
        assert model.folder is not None
        tensors = read_tensors(model.folder)
        (model.folder / "model.safetensors").unlink()
        sharded(model.folder, tensors)
    released = release(portfolio, chosen(portfolio, "selection"), tmp_path / "out")
    assert verify(released.folder, portfolio=portfolio).code == 0
    index = released.folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"total_size"', '"loss": 0.3, "total_size"'))
    forge(released.folder, lambda content: content["outputs"].update({index.name: sha256(index.read_bytes())}))
    (fault,) = verify(released.folder, portfolio=portfolio).broken
    assert "says more than where the tensors are" in fault


# --- the guarantee ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", ["joint"], indirect=True)
def test_rounding_is_tolerated_and_more_is_not(released: Released) -> None:
    epsilon = released.certificate.guarantee.epsilon
    for factor, code in ((1 + 1e-9, 0), (1 - 1e-9, 0), (1 - 1e-5, 1), (1 + 1e-5, 1)):
        forge(released.folder, setting("guarantee", epsilon=epsilon * factor))
        assert verify(released.folder).code == code, factor


@pytest.mark.parametrize(("sampling", "said"), [(None, "is coarser here and gives"), (0.01, "confirms the certified")])
def test_a_second_path_says_which_number_is_certified(sampling: float | None, said: str, tmp_path: Path) -> None:
    """Full batches are certified in closed form, to which a grid adds a little; sampled ones on a grid coarser than this."""
    portfolio = runs(tmp_path, sampling=sampling)
    released = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out")
    holds = [text for text in verify(released.folder).holds if "second path" in text]
    assert len(holds) == 1 and said in holds[0]
    epsilon = released.certificate.guarantee.epsilon
    certified = f"({round_up(epsilon)}, 1e-05)"
    assert f"certified {certified}" in holds[0] or f"what is certified is {certified}, and it stands" in holds[0]
    assert ("within the tolerance of 0.01 %" in holds[0]) == (sampling is None)
    assert f"gives ({round_up(epsilon if sampling else epsilon * (1 + 1e-4) + 1e-6)}, " in holds[0]
    shown = json.loads(dpmerge("verify", released.folder, "--json").stdout)
    assert holds[0] in shown["holds"]


def halved(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments) / 2


@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_the_second_path_notices_a_wrong_closed_form(rule: RuleName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mistake at the release and at the recheck agrees with itself; loss distributions do not agree with it."""
    portfolio = runs(tmp_path)
    monkeypatch.setattr(curves, "gaussian_delta", halved(gaussian_delta))
    released = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    assert released.certificate.guarantee.by == "gdp"
    broken = verify(released.folder).broken
    assert len(broken) == 1 and broken[0].startswith("a second path gives")


def test_the_second_path_notices_wrong_renyi_divergences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio = runs(tmp_path)
    monkeypatch.setattr(mixture, "epsilon_from_renyi", halved(epsilon_from_renyi))
    released = release(portfolio, chosen(portfolio, "joint", accounting=Accounting(by="rdp")), tmp_path / "out")
    broken = verify(released.folder).broken
    assert len(broken) == 1 and broken[0].startswith("a second path gives")


def test_the_second_path_notices_a_grid_that_is_too_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that shrinks with the grid: δ too small by what a coarse grid gets wrong."""
    portfolio = on_disk(tmp_path / "runs", builders.dp_sgd("a", sigma=1.0, steps=30, sampling=0.1, batch=100))
    right = compose.ComposedLoss.delta
    monkeypatch.setattr(compose.ComposedLoss, "delta", lambda self, epsilon: right(self, epsilon) * (1 - 1e4 * accuracy()))
    released = release(portfolio, chosen(portfolio, "joint", weights=portfolio.weights({"a": 1.0})), tmp_path / "out")
    broken = verify(released.folder).broken
    assert len(broken) == 1 and broken[0].startswith("a second path gives")


def mechanisms(adjacency: Adjacency) -> dict[str, Model]:
    common: dict[str, Any] = {"adjacency": adjacency, "steps": 4, "batch": 50.0}
    made = {
        "full": builders.dp_sgd("full", sigma=6.0, **common),
        "poisson": builders.dp_sgd("poisson", sigma=1.5, sampling=0.05, smoothness=0.1, convex="unclipped", **common),
        "sampled": builders.dp_sgd("sampled", sigma=1.0, sampling=0.02, **common),
        "gaussian": builders.gaussian("gaussian", noise_std=3.0, adjacency=adjacency),
        "pair": builders.model("pair", {"kind": "approx-dp", "epsilon": 0.7, "delta": 1e-7}, adjacency),
        "pure": builders.model("pure", {"kind": "approx-dp", "epsilon": 1.3, "delta": 0.0}, adjacency),
        "renyi": builders.model("renyi", {"kind": "rdp", "orders": [2.0, 8.0, 32.0], "values": [0.02, 0.08, 0.32]}, adjacency),
        "open": builders.model("open", {"kind": "non-private"}, adjacency),
    }
    if adjacency != "add-remove":
        made["tree"] = builders.model(
            "tree", {"kind": "dp-ftrl", "noise_multiplier": 9.0, "steps": 30, "restarts": 1}, adjacency
        )
        made["bands"] = builders.model(
            "bands", {"kind": "dp-ftrl", "noise_multiplier": 5.0, "steps": 30, "restarts": 0, "separation": 20}, adjacency
        )
        fixed = {**made["full"].mechanism.model_dump(mode="json"), "sampling": {"scheme": "fixed-size", "rate": 0.1}}
        made["fixed"] = builders.model("fixed", {**fixed, "run": "fixed", "noise_fingerprint": "fixed"}, adjacency)
    return made


PAIRS = [
    ("full", "gaussian"),
    ("poisson", "sampled"),
    ("full", "poisson"),
    ("pair", "pure"),
    ("pair", "poisson"),
    ("renyi", "full"),
    ("tree", "poisson"),
    ("bands", "tree"),
    ("fixed", "full"),
    ("open", "full"),
]


# Zero-out differs from add-remove only where there is no theorem for that.
CASES: list[tuple[tuple[str, str], Adjacency]] = [
    *((names, "add-remove") for names in PAIRS if not {"tree", "fixed"} & set(names)),
    *((names, "replace-one") for names in PAIRS),
    *((names, "zero-out") for names in PAIRS if {"tree", "fixed", "sampled"} & set(names)),
]


@pytest.mark.parametrize(("names", "adjacency"), CASES)
def test_no_false_alarms(names: tuple[str, str], adjacency: Adjacency, tmp_path: Path) -> None:
    known = mechanisms(adjacency)
    portfolio = on_disk(tmp_path / "runs", *(known[name] for name in names))
    checked = 0
    for rule in RULES:
        for by in ("best", "rdp"):
            shares = (1e-7, 1 - 1e-7) if "open" in names else (0.3, 0.7)
            weights = portfolio.weights(dict(zip(names, shares, strict=True)))
            try:
                choice = chosen(portfolio, rule, weights=weights, accounting=Accounting(by=by))
            except DpmergeError:
                continue  # no accountant for this, or no finite ε
            out = release(portfolio, choice, tmp_path / f"{rule}-{by}").folder
            verdict = verify(out, portfolio=portfolio)
            assert verdict.code == 0, (rule, by, verdict)
            known_to_second = not {"renyi", "tree", "fixed"} & set(names)
            assert recheck(out)[0] == ("holds" if known_to_second else "not recomputed"), (rule, by, recheck(out))
            checked += 1
    assert checked >= 2


# --- the ledger -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA)


def test_the_ledger_holds_the_entry_and_its_certificate(tmp_path: Path, ledger: Ledger) -> None:
    portfolio = runs(tmp_path)
    outside = release(portfolio, chosen(portfolio, "joint"), tmp_path / "outside")
    assert verify(outside.folder, ledger=ledger).broken == ["the certificate names no entry in a ledger"]
    released = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out", ledger=ledger)
    assert verify(released.folder, ledger=ledger).code == 0
    certified = certificate(released.folder)["ledger"]
    wrong = {
        "number": (2, "entry 2 of the ledger is not the one certified"),
        "entry": (DIGEST, "entry 1 of the ledger is not the one certified"),
        "epsilon": (0.1, "has another total"),
        "delta": (1e-9, "has another total"),
    }
    for field, (value, complaint) in wrong.items():
        forge(released.folder, setting("ledger", **{field: value}))
        assert verify(released.folder).code == 0, "by itself a certificate cannot tell what a ledger holds"
        assert complaint in verify(released.folder, ledger=ledger).broken[0]
        forge(released.folder, setting("ledger", **certified))
    forge(released.folder, lambda content: content.update(created="another day"))
    assert verify(released.folder, ledger=ledger).broken == ["entry 1 of the ledger was completed with another certificate"]


def test_an_entry_that_was_never_completed(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio = runs(tmp_path)
    monkeypatch.setattr(Ledger, "complete", lambda self, entry, certificates: [])
    released = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out", ledger=ledger)
    verdict = verify(released.folder, ledger=ledger)
    assert verdict.code == 2 and "was never completed" in verdict.unchecked[0]


# --- the command ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", ["combination"], indirect=True)
def test_exit_codes(released: Released, tmp_path: Path) -> None:
    out, runs_ = released.folder, tmp_path / "runs"

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "dpmerge", "verify", *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    held = command(out, "--portfolio", runs_)
    assert held.returncode == 0 and held.stdout.endswith("it holds\n") and held.stderr == ""
    assert command(tmp_path / "nowhere").returncode == 2
    no_portfolio = command(out, "--portfolio", tmp_path / "nowhere")
    assert no_portfolio.returncode == 2 and no_portfolio.stderr.startswith("error: ") and no_portfolio.stderr.count("\n") == 1
    (out / "config.json").write_text("{}")
    broken = command(out)
    assert broken.returncode == 1 and "BROKEN: config.json was changed" in broken.stdout
    assert broken.stdout.endswith("it does NOT hold\n") and broken.stderr == ""


@pytest.mark.parametrize("released", ["combination"], indirect=True)
def test_verdicts_as_json(released: Released, tmp_path: Path) -> None:
    out = released.folder
    (tmp_path / "runs" / "a").rename(tmp_path / "away")
    result = dpmerge("verify", out, "--portfolio", tmp_path / "runs", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == found["code"] == 2
    assert found["unchecked"] == ["model 'a' is not in the portfolio"] and found["broken"] == [] and found["holds"]
    (out / "certificate.json").unlink()
    result = dpmerge("verify", out, "--json")
    assert result.exit_code == 2 and "there is no certificate" in json.loads(result.stdout)["unchecked"][0]


def test_rechecks_go_without_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DPMERGE_CACHE", str(cache))
    portfolio = runs(tmp_path)
    weights = ",".join(f"{name}={weight}" for name, weight in WEIGHTS.items())
    question = ["account", tmp_path / "runs", "--rule", "combination", "--weights", weights, "--delta", DELTA, "--json"]
    true = json.loads(dpmerge(*question).stdout)["epsilon"]
    assert poison(cache) > 0
    tiny = json.loads(dpmerge(*question).stdout)["epsilon"]
    assert tiny == pytest.approx(true / 1000), "the cache is not used, so this test says nothing"
    released = release(portfolio, chosen(portfolio, "combination"), tmp_path / "out")
    assert released.certificate.guarantee.epsilon == true
    ask_like_a_recheck(released.folder, cache)
    poison(cache)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert verify(released.folder, portfolio=portfolio).code == 0
    forge(released.folder, setting("guarantee", epsilon=true / 1000))
    assert any("epsilon is certified" in text for text in verify(released.folder).broken)
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before, "the cache was used"
