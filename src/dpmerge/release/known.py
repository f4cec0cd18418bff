"""Which models of all that is in a ledger are one and the same: by run, record and what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dpmerge.checkpoints import content_digest
from dpmerge.errors import DependentRuns, LedgerError
from dpmerge.records import Model, Portfolio, Record
from dpmerge.release.certificate import record_digest

_State = tuple[str, int]


class KnownModels:
    """The models of the ledger's entries under its own names, each with the digest of its tensors where that is known.

    A record of DP-SGD or DP-FTRL covers every iterate of its run once, so there is one model for each step. Every other
    record covers one model: another that holds something else counts too, whatever its run is called.
    """

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self._states: dict[_State, tuple[str, str]] = {}
        self._contents: dict[str, str] = {}

    def add(self, content: Mapping[str, Any], source: str) -> dict[str, str]:
        """Take in the models of an entry; returns the name that each of its names has here."""
        digests = content.get("contents", {})
        names = {}
        for name, record in content["records"].items():
            model = self.models.get(name) or Model(name, Record.parse(json.dumps(record), source=source))
            digest = digests.get(name)
            if model.covers_iterates:
                self._require_one_state(model, digest, f"{content['names'][name]!r} ({source})")
                names[name] = name
            else:
                names[name] = self._same(name, digest)
            self.models.setdefault(names[name], Model(names[name], model.record))
        return names

    def _require_one_state(self, model: Model, digest: str | None, label: str) -> None:
        if digest is not None:
            require_one_state(self._states, model, digest, label)

    def _same(self, name: str, digest: str | None) -> str:
        """The name of the model with this run, record and content; what is not known to differ is taken for the same."""
        if digest is None:
            return name
        run_and_record = name.partition("#")[0]
        for own, held in self._contents.items():
            if held == digest and own.partition("#")[0].partition("~")[0] == run_and_record:
                return own
        own = f"{name}~{digest[:16]}" if name in self._contents else name
        self._contents[own] = digest
        return own


def require_one_state(states: dict[_State, tuple[str, str]], model: Model, digest: str, label: str) -> None:
    """Refuse a second content at the same step of one run, whose record covers one: and remember the first."""
    held, other = states.setdefault((model.run, getattr(model.mechanism, "steps", 0)), (digest, label))
    if held != digest:
        raise DependentRuns(
            f"models {other} and {label} both are step {getattr(model.mechanism, 'steps', 0)} of run {model.run!r}, and hold "
            "different tensors: a run has one model at each step, so no bound holds for the two; give different runs different "
            "ids, and what was made from a released model (rounded, averaged) needs no release of its own"
        )


def contents_of(models: Iterable[Model]) -> dict[str, str]:
    """The digests of these models' tensors, by name; those of models that have no folder are not known.

    Two models at one step of one run must hold the same.
    """
    found: dict[str, str] = {}
    states: dict[_State, tuple[str, str]] = {}
    for model in models:
        if model.folder is not None:
            found[model.name] = content_digest(model.folder, model.name)
            if model.covers_iterates:
                require_one_state(states, model, found[model.name], repr(model.name))
    return found


def identities(portfolio: Portfolio) -> dict[str, str]:
    """By name: the run and the record, under which a model is the same in every portfolio and every release."""
    names: dict[str, str] = {}
    for model in portfolio.models:
        if model.mechanism.run is None:
            raise LedgerError(
                f"model {model.name!r}: its record has no run id, so a ledger cannot tell whether two releases are of one run; "
                "add a run to the record"
            )
        identity = f"{model.mechanism.run}@{record_digest(model.record)[:16]}"
        # Two models of one run with one record need a name each; whether they count once is decided by what they hold.
        names[model.name] = f"{identity}#{model.name}" if identity in names.values() else identity
    return names
