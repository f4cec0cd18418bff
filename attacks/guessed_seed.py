"""A seed of the noise was short: who confirms a guess of it takes the noise off the model. Exports of the ledger go round."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from attacks.victim import DATASET, DELTA, WEIGHTS, dpmerge, portfolio
from dpmerge.files import canonical, sha256
from dpmerge.records import Record
from dpmerge.release import Ledger
from dpmerge.tensors import content_digest

SEED = 31


def attack(folder: Path) -> str:
    """All of the record is known but the fingerprint: look for those of all seeds, and for whatever digest covers one."""
    runs = portfolio(folder, leaky={"noise_fingerprint": _fingerprint(SEED)})
    where = folder / "ledger.db"
    made = dpmerge("ledger", "new", where, "--dataset", DATASET, "--epsilon", "50", "--delta", DELTA, "--declare", runs)
    assert made.code == 0, made.text
    out = folder / "out"
    made = dpmerge("merge", runs, "--rule", "joint", "--weights", WEIGHTS, "--delta", DELTA, "--ledger", where, "--out", out)
    assert made.code == 0, made.text
    exported = dpmerge("ledger", "export", where)
    assert exported.code == 0, exported.text
    text = exported.text
    record = Record.load(runs / "leaky" / "record.json")
    own = Ledger(where).history()
    for seed in range(100):
        guess = record.mechanism.model_copy(update={"noise_fingerprint": _fingerprint(seed)})
        told = record.model_copy(update={"mechanism": guess}).as_dict()
        digest = sha256(canonical({name: value for name, value in told.items() if name != "data_fingerprint"}))
        assert _fingerprint(seed) not in text, "the export tells the fingerprint"
        assert digest[:16] not in text, "the name of the model confirms the seed"
    for entry, known in zip(json.loads(text)["entries"], own, strict=True):
        content = _with(entry["content"], known.content)
        again = sha256(canonical({"number": entry["number"], "content": content, "previous": entry["previous"]}))
        assert again != entry["hash"] or "records" not in content, "the hash of an entry confirms the seed"
    assert content_digest(runs / "leaky") not in text, "a digest confirms a guess of the hidden tensors"
    return "an export has digests under a key that stays in the ledger, and hashes of entries whose nonce stays there too"


def _with(told: dict[str, Any], guessed: dict[str, Any]) -> dict[str, Any]:
    """What the attacker would hash: everything guessed rightly, but of the nonce only what the export tells."""
    content = {name: value for name, value in guessed.items() if name != "nonce"}
    return {**content, "nonce": told["nonce"]} if "nonce" in told else content


def _fingerprint(seed: int) -> str:
    return hashlib.sha256(f"a generator's state after the seed {seed}".encode()).hexdigest()[:32]
