"""An attacker who knows all examples but one tests guesses of that one against the fingerprint of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attacks.victim import DATASET, dpmerge, forge, portfolio, release, stopped, verified
from dpmerge.training import data_fingerprint, read_data_key

KNOWN, SECRET, LABELS = np.random.default_rng(0).normal(size=(50, 4)), 7, range(10)
ROWS = np.vstack([KNOWN, KNOWN[:1]])


def attack(folder: Path) -> str:
    """Look for it in what goes out; take it from a private record, without the key; certify it."""
    runs = portfolio(folder)
    np.savez(folder / "data.npz", x=ROWS, y=_labels(SECRET))
    for words in (
        ("key", folder / "key"),
        ("fingerprint", folder / "data.npz", "--key", folder / "key", "--out", folder / "print"),
    ):
        assert dpmerge("record", *words).code == 0
    found: dict[str, str] = json.loads((folder / "print").read_text())
    for path in runs.glob("*/record.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "data_fingerprint": found}))
    for rule in ("selection", "combination", "joint"):
        for path in release(folder, rule, rule).iterdir():
            told = [text for text in ("data_fingerprint", *found.values()) if text.encode() in path.read_bytes()]
            assert not told, f"{path.name} tells {told}"
    for key in (bytes(32), bytes.fromhex(found["key"]), DATASET.encode().ljust(32)):
        assert not _confirmed(found, key), "a guess was confirmed without the key"
    assert _confirmed(found, read_data_key(folder / "key")) == [SECRET], "whoever has the key confirms the guess"
    forge(folder / "joint", lambda content: _put_into(content, found))
    stopped(verified(folder / "joint"), "a fingerprint of the data, which it does not cover")
    return "no release tells the fingerprint, without its key it confirms no guess, and a certificate with one is refused"


def _labels(last: int) -> Any:
    return np.append(np.arange(len(KNOWN)) % 10, last)


def _confirmed(found: dict[str, str], key: bytes) -> list[int]:
    return [guess for guess in LABELS if data_fingerprint(ROWS, _labels(guess), key=key).value == found["value"]]


def _put_into(content: dict[str, Any], found: dict[str, str]) -> None:
    content["records"]["leaky"]["record"]["data_fingerprint"] = found
