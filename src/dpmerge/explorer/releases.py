"""Releases through the explorer: the same code as `dpmerge merge` and `dpmerge verify`, with names instead of paths."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpmerge
from dpmerge.errors import CertificateError, ExplorerError
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.explorer.requests import NAME, ReleaseRequest
from dpmerge.explorer.telling import guarantee_answer
from dpmerge.records import Portfolio
from dpmerge.release import (
    NO_LEDGER,
    Chosen,
    Entry,
    Ledger,
    Preview,
    Released,
    RuleForm,
    Verdict,
    choose,
    files_to_write,
    preview,
    release,
    what_fits,
)
from dpmerge.rules import round_down, round_up

_CHANGED = "the portfolio has changed since the explorer started, so its guarantees may have too: restart the explorer"


class UnknownRelease(ExplorerError):
    """No release of that name."""


class Releases:
    """A folder with one subfolder for each release, and their ledger."""

    def __init__(self, state: PortfolioState, folder: Path, ledger: str | None) -> None:
        self._state = state
        self._folder = folder
        self._ledger_address = ledger
        self._ledger = None if ledger is None else Ledger(ledger)
        if self._ledger is not None:
            self._ledger.require_same_data(state.portfolio)
        self._releasing = threading.Lock()
        self._fits: tuple[str, dict[str, Any]] | None = None

    @property
    def has_ledger(self) -> bool:
        return self._ledger is not None

    # --- existing releases --------------------------------------------------------------------------------------------------

    @property
    def delta(self) -> float | None:
        """The δ of the budget."""
        return None if self._ledger is None else self._ledger.budget.delta

    def listing(self) -> dict[str, Any]:
        """The ledger's entries without paths, and the releases that can be verified here."""
        entries = [] if self._ledger is None else self._ledger.history()
        return {"entries": [_entry(entry) for entry in entries], "folders": self._folders(entries)}

    def _folders(self, entries: list[Entry]) -> list[dict[str, Any]]:
        if not self._folder.is_dir():
            return []
        names = sorted(path.name for path in self._folder.iterdir() if re.fullmatch(NAME, path.name) and _is_folder(path))
        place = self._folder.resolve()
        numbers = {Path(entry.content["out"]): entry.number for entry in entries if entry.kind == "release"}
        known = {out.name: number for out, number in numbers.items() if out.parent.resolve() == place}
        return [{"name": name, "entry": known.get(name)} for name in names]

    def budget(self) -> dict[str, Any] | None:
        """The declared budget, what is spent, and what still fits."""
        if self._ledger is None:
            return None
        entries = self._ledger.history()
        last = entries[-1].hash if entries else ""
        if self._fits is None or self._fits[0] != last:
            self._fits = (last, what_fits(self._ledger, self._state.portfolio))
        return {**self._ledger.summary(entries), "fits": self._fits[1]}

    def verify(self, name: str) -> Verdict:
        """Recheck a release by its name, against the portfolio and the ledger."""
        folder = self.require(name)
        odd = sorted(path.name for path in folder.iterdir() if path.is_symlink() or not path.is_file())
        if odd:  # a link could lead outside the folder; reading a pipe could block forever
            raise CertificateError(f"release {name!r}: {', '.join(map(repr, odd))} is not a plain file; no file was opened")
        self._require_unchanged()
        return dpmerge.verify(folder, portfolio=self._state.portfolio, ledger=self._ledger_address)

    def require(self, name: str) -> Path:
        """The folder of a release that exists."""
        folder = self._folder_of(name)
        if not _is_folder(folder):
            raise UnknownRelease(f"no release named {name!r}")
        return folder

    # --- new releases -------------------------------------------------------------------------------------------------------

    def check(self, asked: ReleaseRequest) -> None:
        """Refuse an invalid release quickly. Its cost is not computed, because that may be slow."""
        choice, _ = self._new(asked)
        files_to_write(self._state.portfolio, choice, ledger=self._ledger, dependent=asked.depends_on_releases)

    def preview(self, asked: ReleaseRequest) -> dict[str, Any]:
        """What a release would write and spend; nothing is written."""
        choice, folder = self._new(asked)
        seen = preview(self._state.portfolio, choice, folder, ledger=self._ledger, dependent=asked.depends_on_releases)
        notes = [NO_LEDGER] if self._ledger is None else []
        return {
            "name": asked.name,
            "guarantee": guarantee_answer(seen.choice.guarantee),
            "weights": choice.form.values,
            "provenance": choice.provenance,
            "files": list(seen.files.always),
            "files_if_drawn": {name: list(names) for name, names in seen.files.if_drawn.items()},
            "keeps_openings": seen.files.openings,
            "budget": None if self._ledger is None else _pair(self._ledger.budget),
            "total": None if seen.total is None else _pair(seen.total),
            "fits": seen.fits,
            "noise": seen.choice.form.deviation,
            "after": [] if self._ledger is None else _after(seen, self._ledger),
            "notes": [*notes, *seen.choice.guarantee.notes],
        }

    def release(self, asked: ReleaseRequest, progress: Callable[[int, int], None] | None = None) -> Released:
        with self._releasing:  # one release at a time
            choice, folder = self._choose(asked), self._folder_of(asked.name)
            try:
                self._folder.mkdir(exist_ok=True)
            except OSError as error:
                raise CertificateError(f"the folder for releases cannot be created: {error.strerror}") from None
            return release(
                self._state.portfolio,
                choice,
                folder,
                ledger=self._ledger,
                dependent=asked.depends_on_releases,
                recipient=asked.recipient,
                progress=progress,
            )

    def _new(self, asked: ReleaseRequest) -> tuple[Chosen, Path]:
        """The choice and its folder, which must not exist yet."""
        choice, folder = self._choose(asked), self._folder_of(asked.name)
        if folder.exists() or folder.is_symlink():
            raise CertificateError(f"a release named {asked.name!r} exists already; a release is never overwritten")
        return choice, folder

    def _require_unchanged(self) -> None:
        """Refuse if records changed on disk: guarantees use those read at the start, tensors are read from disk now."""
        folder = self._state.portfolio.models[0].folder
        if folder is not None and Portfolio(folder.parent) != self._state.portfolio:
            raise CertificateError(_CHANGED)

    def _choose(self, asked: ReleaseRequest) -> Chosen:
        self._require_unchanged()
        portfolio = self._state.portfolio
        return choose(
            portfolio,
            asked.rule,
            delta=asked.delta,
            epsilon=asked.epsilon,
            weights=portfolio.weights(asked.weights),
            utility=self._state.utility,  # the page shows them, so the choice may depend on them
            provenance=asked.provenance,
            noise=asked.noise,
            accounting=asked.accounting(self._state.accounting),
        )

    def _folder_of(self, name: str) -> Path:
        """The folder of a release, always directly inside the folder of releases."""
        if not re.fullmatch(NAME, name):
            raise UnknownRelease("a release's name has at most 64 letters, digits, - and _")
        return self._folder / name


def _after(seen: Preview, ledger: Ledger) -> list[str]:
    """What the budget allows after a release."""
    if seen.total is None:
        return []
    budget = ledger.budget
    spent, left = seen.total.epsilon, budget.epsilon - seen.total.epsilon
    added = "adds nothing to" if not seen.adds else f"adds ε = {round_up(seen.adds)} to"
    if not seen.fits:
        exceeds = f"It would exceed the budget: all releases together would have ε = {round_up(spent)} of {budget.epsilon:g}."
        return [exceeds, *(f"Instead, {free['text']}." for free in ledger.free_now())]
    total = f"All releases together then have ε = {round_up(spent)}, which leaves {round_down(left):g} of {budget.epsilon:g}."
    told = [f"It {added} what is spent. {total}"]
    if seen.choice.form.noise is not None and seen.total.theorem == "hidden-run":
        told.append(
            f"After it, this same model with any more noise is free, for anyone: any ε up to {round_down(spent):g}. The total "
            f"stays {round_up(spent)}, as long as nothing else of these runs is released."
        )
    elif seen.choice.guarantee.theorem == "hidden-run" and _released_otherwise(ledger.history(), seen.choice.form):
        told.append(
            "The ledger knows other releases of these models. Its own ε assumes that there are none: what holds is the total."
        )
    return told


def _released_otherwise(entries: list[Entry], form: RuleForm) -> bool:
    """Whether something else of these models was released, except by the same ladder."""
    others = [entry.content for entry in entries if entry.kind == "release"]
    return any(
        set(form.weights) & set(one["names"].values())
        for one in others
        if form.ladder is None or one["forms"][0].get("ladder") != form.ladder
    )


def _pair(of: Any) -> dict[str, float]:
    return {"epsilon": of.epsilon, "delta": of.delta}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _entry(entry: Entry) -> dict[str, Any]:
    content, released = entry.content, entry.kind == "release"
    return {
        "number": entry.number,
        "kind": entry.kind,
        "at": content["at"],
        "hash": entry.hash,
        "of": None if released else content.get("of"),
        "name": Path(content["out"]).name if released else None,
        "rule": content["forms"][0]["rule"] if released else None,
        "models": sorted(content["names"].values()) if released else [],
        "own": content["own"] if released else [],
        "total": {name: content["total"][name] for name in ("epsilon", "delta")} if released else None,
        "noise": float.fromhex(content["forms"][0].get("noise") or "0x0p+0") if released else 0.0,
        "recipient": content.get("recipient"),
    }


def check_folder(folder: Path, writing: bool) -> None:
    """Refuse an unusable release folder when the server starts, not at the first release."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ExplorerError(f"{folder}: not a folder; choose a folder for releases")
    if writing:
        place = folder if folder.exists() else folder.parent
        if not place.is_dir():
            raise ExplorerError(f"{place}: no such folder; create it, or choose another folder for releases")
        if not os.access(place, os.W_OK | os.X_OK):
            raise ExplorerError(f"{place}: no permission to write; choose another folder for releases")
