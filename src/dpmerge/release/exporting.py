"""A ledger for others to keep: its chain and everything that is counted, and nothing by which a secret could be guessed.

Whoever finds the seed that has a generator's fingerprint takes the noise off a model, and a digest of hidden tensors confirms
guesses of them. In an export HMAC-SHA-256 under a key that stays in the ledger stands for both: equal ones are still equal, so
the total follows from an export as from the ledger. Hashes of entries are those of the ledger. They cover a nonce of 256 bits,
which is left out: else they would confirm guesses as well.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpmerge.records import Record, renamed_generators
from dpmerge.release.certificate import shown
from dpmerge.release.entries import Budget, Entry

# What no total depends on: the nonce, what was drawn and perhaps never shown, and where and by what process it was made.
_LEFT_OUT = {"nonce", "drawn", "by", "out", "temporary"}


def exported(budget: Budget, entries: Sequence[Entry], key: bytes) -> dict[str, Any]:
    """The whole ledger as plain data, with digests under the key in place of secrets."""

    def keyed(what: str, value: str) -> str:
        return hmac.digest(key, f"{what}:{value}".encode(), "sha256").hex()

    told = [{**asdict(entry), "content": _outside(entry.content, keyed)} for entry in entries]
    return {"budget": budget.header(), "entries": told}


def _outside(content: Mapping[str, Any], keyed: Callable[[str, str], str]) -> dict[str, Any]:
    kept = {name: value for name, value in content.items() if name not in _LEFT_OUT}
    if "records" not in kept:
        return kept
    records = {name: Record.parse(json.dumps(stated), source="the ledger") for name, stated in kept["records"].items()}

    def rename(field: str, known: str) -> str:
        return renamed_generators(known, lambda generator: keyed(field, generator))

    kept["records"] = {name: shown(record, rename).as_dict() for name, record in records.items()}
    kept["contents"] = {name: keyed("content", digest) for name, digest in kept.get("contents", {}).items()}
    names = {name: _other_name(name, record, keyed) for name, record in records.items()}
    found: dict[str, Any] = _renamed(kept, names)
    return found


def _other_name(name: str, record: Record, keyed: Callable[[str, str], str]) -> str:
    """The name of a model in a ledger, `run@digest`, is of its record with the fingerprints."""
    run = str(record.mechanism.run)
    digest, mark, rest = name.removeprefix(f"{run}@").partition("#")
    return f"{run}@{keyed('record', digest)[:16]}{mark}{rest}"


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(name, name): _renamed(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value
