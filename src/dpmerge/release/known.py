"""Which models in a ledger are the same model: decided by what is public about them, never by their tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from dpmerge.errors import DependentRuns, LedgerError, PortfolioError
from dpmerge.records import DpSgd, Model, Portfolio, Record, data_contradiction
from dpmerge.release.certificate import record_digest
from dpmerge.tensors import Surveys

_State = tuple[str, int]


class KnownModels:
    """The models of the ledger's entries under its own names, each with the digest of its tensors where that is known.

    A record of DP-SGD or DP-FTRL covers every iterate of its run once, so there is one model for each step. Every other
    record covers one model, which is that run's of that name with that record; models of other names count each, whatever they
    hold: were equal ones counted once, that a release is accepted would tell that they are equal (docs/theory.md §5).
    """

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self._names: dict[tuple[str, ...], str] = {}
        self._states: dict[_State, tuple[str, str]] = {}
        self._contents: dict[str, tuple[str, str]] = {}
        self._added: dict[tuple[str, str, str | None], tuple[dict[str, Any], str]] = {}

    def add(self, content: Mapping[str, Any], source: str) -> dict[str, str]:
        """Take in the models of an entry; returns the name that each of its names has here."""
        digests = content.get("contents", {})
        names = {}
        for name, stated in content["records"].items():
            label = content["names"][name]
            before = self._added.get((name, label, digests.get(name)))
            if before is not None and before[0] == stated:  # said already, in the same words: it changes nothing
                names[name] = before[1]
                continue
            record = Record.parse(json.dumps(stated), source=source)
            model = Model(label, record)
            names[name] = own = self._own_name(model, name)
            self._added[name, label, digests.get(name)] = stated, own
            self._keep(Model(own, record), f"{label!r} ({source})")
            require_known_starts(self._states, model, f"the start of {label!r} ({source})")
            if name in digests and model.covers_iterates:
                require_one_state(self._states, model, digests[name], f"{label!r} ({source})")
            elif name in digests:
                self._require_one_content(own, model, digests[name], source)
        return names

    def _keep(self, model: Model, label: str) -> None:
        """A record counts once, with the fingerprint of the data if any entry has one; two must not contradict each other."""
        held = self.models.setdefault(model.name, model)
        if (why := data_contradiction(held, model)) is not None:
            raise PortfolioError(f"{label} and an earlier entry of the same run: {why}")
        if held.record.data_fingerprint is None:
            self.models[model.name] = model

    def _own_name(self, model: Model, name: str) -> str:
        """The name of the model with this run, record and, where the record covers one model, this name in its portfolio."""
        key = (model.run, record_digest(model.record), *(() if model.covers_iterates else (model.name,)))
        if key not in self._names:
            while name in self.models:
                name += f"#{model.name}"
            self._names[key] = name
        return self._names[key]

    def _require_one_content(self, own: str, model: Model, digest: str, source: str) -> None:
        held, where = self._contents.setdefault(own, (digest, source))
        if held != digest:
            raise DependentRuns(
                f"model {model.name!r} of run {model.run!r} held other tensors in {where} than in {source}. Models with "
                "one run and one name in the portfolio count as one, so no bound holds for the two. Give the other one its own "
                "run id or name, so that it is counted too"
            )


def require_one_state(states: dict[_State, tuple[str, str]], model: Model, digest: str, label: str) -> None:
    """Refuse models with different tensors at the same step of one run, whose record covers one model."""
    held, other = states.setdefault((model.run, getattr(model.mechanism, "steps", 0)), (digest, label))
    if held != digest:
        raise DependentRuns(
            f"models {other} and {label} both are step {getattr(model.mechanism, 'steps', 0)} of run {model.run!r}, and hold "
            "different tensors: a run has one model at each step, so no bound holds for the two; give different runs different "
            "ids. A model made from released ones (rounded, averaged) needs no release of its own"
        )


def require_known_starts(states: dict[_State, tuple[str, str]], model: Model, label: str) -> None:
    """A checkpoint that a fork starts from is its run's model at that step, wherever that is released."""
    for mechanism in model.record.lineage:
        start = mechanism.starts_from if isinstance(mechanism, DpSgd) else None
        if start is not None and start.digest is not None:
            held = Model(label, model.record.model_copy(update={"mechanism": start.mechanism}))
            require_one_state(states, held, start.digest, label)


def contents_of(models: Iterable[Model], surveys: Surveys | None = None) -> dict[str, str]:
    """The digests of these models' tensors, by name; those of models that have no folder are not known.

    Two models at one step of one run must hold the same, and so must what forks start from.
    """
    held = [model for model in models if model.folder is not None]
    folders = {model.name: model.folder for model in held if model.folder is not None}
    with Surveys(folders) if surveys is None else nullcontext(surveys) as reading:
        reading.begin(folders)
        found = {name: reading[name].content for name in folders}
    states: dict[_State, tuple[str, str]] = {}
    for model in held:
        if model.covers_iterates:
            require_one_state(states, model, found[model.name], repr(model.name))
            require_known_starts(states, model, f"the start of {model.name!r}")
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
        while identity in names.values():  # two models of one run with one record need a name each
            identity += f"#{model.name}"
        names[model.name] = identity
    return names
