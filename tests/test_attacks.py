"""Every attack is stopped; and each would succeed if the defence it is aimed at were not there."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from attacks import all_attacks
from attacks.victim import portfolio, release, verified
from dpmerge.release import Entry
from dpmerge.release.entries import Row

ATTACKS = all_attacks()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_stopped(name: str, tmp_path: Path) -> None:
    assert ATTACKS[name](tmp_path).strip()


def test_every_script_is_found_and_described() -> None:
    folder = Path(__file__).parent.parent / "attacks"
    described = (folder / "README.md").read_text()
    for path in folder.glob("*.py"):
        if "def attack(" in path.read_text():
            assert path.stem in ATTACKS
            assert f"`{path.stem}`" in described, f"attacks/README.md does not mention {path.stem}"
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_untouched_victims_hold(rule: str, tmp_path: Path) -> None:
    """Else every attack would be stopped for the wrong reason."""
    runs = portfolio(tmp_path)
    out = release(tmp_path, rule)
    found = verified(out, "--portfolio", runs)
    assert found.code == 0
    assert not any(line.startswith(("BROKEN", "not checked")) for line in found.text.splitlines())


def nothing(*arguments: Any) -> None:
    return None


def yes(*arguments: Any) -> bool:
    return True


def independent(models: Sequence[Any]) -> tuple[str, ...]:
    return ()


def unchecked_chain(start: str, rows: Sequence[Row], length: int, head: str, known: Sequence[Entry]) -> list[Entry]:
    return [Entry(row.number, json.loads(row.content), row.previous, row.hash) for row in rows]


def anywhere(folder: Path, name: str, where: str) -> Path:
    return folder / name


def one_ladder(content: Mapping[str, Any]) -> tuple[str] | None:
    return ("whichever",) if "ladder" in content["forms"][0] else None


class Everything(dict[str, Any]):
    """A table of methods that has them all."""

    def __contains__(self, key: object) -> bool:
        return True


# The attack, the module, what in it is replaced, and by what.
DEFENCES: list[tuple[str, str, str, object]] = [
    ("flipped_bit", "release.verify", "_check_outputs", nothing),
    ("flipped_bit", "release.recheck", "Recheck._tensors", nothing),
    ("flipped_bit", "release.recheck", "Verdict.code", 0),
    ("edited_weight", "release.certificate", "Certificate.faults", lambda self: []),
    ("edited_weight", "release.verify", "_check_guarantee", nothing),
    ("edited_weight", "release.verify", "_check_signature", nothing),
    ("edited_epsilon", "release.verify", "_check_guarantee", nothing),
    ("edited_hash", "release.verify", "_check_outputs", nothing),
    ("edited_hash", "release.recheck", "Recheck._inputs", nothing),
    ("edited_card", "release.verify", "_check_card", nothing),
    ("moved_certificate", "release.verify", "_check_outputs", nothing),
    ("another_key", "release.verify", "_check_signature", nothing),
    ("another_key", "release.verify", "signed_by", yes),
    ("safer_record", "release.recheck", "Recheck._records", yes),
    ("false_claims", "release.certificate", "covers_looking", yes),
    ("false_claims", "release.certificate", "merges_linearly", yes),
    ("false_claims", "release.forms", "RuleForm.paid", lambda self, adjacency: float.fromhex(self.validation.epsilon)),
    ("extra_file", "release.verify", "_check_outputs", nothing),
    ("extra_file", "release.recheck", "Recheck._beside", nothing),
    ("swapped_models", "release.recheck", "Recheck._inputs", nothing),
    ("method_that_runs_code", "release.recheck", "METHODS", Everything()),
    ("poisoned_cache", "release.choice", "without_cache", contextlib.nullcontext),
    ("poisoned_cache", "release.verify", "without_cache", contextlib.nullcontext),
    ("ledger_row_edited", "release.ledger", "checked", unchecked_chain),
    ("ledger_row_edited", "release.verify", "_check_ledger", nothing),
    ("ledger_row_edited", "release.ledger", "require_heads", nothing),
    ("ledger_row_deleted", "release.ledger", "checked", unchecked_chain),
    ("ledger_rows_reordered", "release.ledger", "checked", unchecked_chain),
    ("one_noise_seed", "rules.joint", "require_independent", independent),
    ("one_noise_seed", "rules.combination", "require_independent", independent),
    ("safetensors_offsets", "tensors.safetensors_file", "SafetensorsFile._tensors", lambda self, model, header: ()),
    ("path_traversal", "tensors.opening", "file_inside", anywhere),
    ("weights_above_one", "records.portfolio", "WEIGHT_SUM_TOLERANCE", 1e-3),
    ("guessed_seed", "release.exporting", "renamed_generators", lambda fingerprint, rename: fingerprint),
    ("guessed_seed", "release.exporting", "_other_name", lambda name, record, keyed: name),
    ("guessed_seed", "release.exporting", "_LEFT_OUT", frozenset()),
    ("guessed_example", "cli.fingerprints", "read_data_key", lambda path: bytes(32)),
    ("private_metadata", "tensors.plan", "_metadata", lambda models, *_: (dict(models[0].files[0].metadata), [])),
    ("private_metadata", "tensors.companions", "needed", lambda name, content, keep=(): (content, [])),
    ("private_metadata", "tensors.companions", "agreed", lambda configs, harmless: dict(configs[0])),
    ("private_metadata", "tensors.writing", "holds_only_tensors", yes),
    (
        "private_metadata",
        "tensors.checkpoint",
        "Checkpoint.released_names",
        property(lambda of: [f.name for f in of.files]),
    ),
    ("private_metadata", "release.making", "input_names", list),
    ("private_metadata", "release.recheck", "Recheck._metadata", nothing),
    ("hidden_nan", "tensors.kernel", "fits", yes),
    ("hostile_certificate", "cli.output", "printable", str),
    ("insider_claims", "release.verify", "left_out", lambda *arguments, **given: ()),
    ("insider_claims", "release.verify", "granted", lambda rule: ()),
    ("lattice_residues", "release.release", "settled", lambda choice, folders, surveys: choice),
    ("second_noise", "release.ladder", "Ladder.is_itself", True),
    ("second_noise", "release.counting", "ladder_of", one_ladder),
]


@pytest.mark.parametrize("name,module,defence,instead", DEFENCES, ids=[f"{name}-{gone}" for name, _, gone, _ in DEFENCES])
def test_attack_succeeds_without_the_defence(
    name: str, module: str, defence: str, instead: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *parents, last = defence.split(".")
    place: Any = importlib.import_module(f"dpmerge.{module}")
    for parent in parents:
        place = getattr(place, parent)
    monkeypatch.setattr(place, last, instead)
    with pytest.raises(AssertionError):
        ATTACKS[name](tmp_path)


def test_every_attack_is_known_to_be_able_to_succeed() -> None:
    """But the pickle: taking torch's own protection away would run the payload."""
    assert set(ATTACKS) - {name for name, *_ in DEFENCES} == {"pickle_that_runs_code"}
