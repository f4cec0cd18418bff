"""A ladder: the secret noise that all releases of one average share, so that they cost what the least noisy one costs.

Its file stays in the private portfolio. The noise is a function of the file alone (docs/theory.md §9): a release that was
interrupted, made again or made twice at once has the same noise, whatever happened in between.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dpmerge.errors import CertificateError
from dpmerge.files import canonical, private_folder, sha256, sync
from dpmerge.records import Model, Strict, load_strict, trained_tensors
from dpmerge.release.commitment import Digest
from dpmerge.release.forms import HexFloat, LadderId, PositiveFloat, RuleForm
from dpmerge.tensors import Noise, NoisePath, open_model


class Step(Strict):
    """One model of the average: its weight, exactly, and the digest of its tensors."""

    weight: HexFloat
    content: Digest


class Ladder(Strict):
    """The whole of a ladder's file. `key` is the secret, `root` the noise of its first release.

    `id` is public: a digest of the rest, which tells nothing of it, since nobody can guess the key. So a ledger that counts
    releases under one id counts one noise: a file with another key or root is no ladder, or another one.
    """

    version: Literal[1] = 1
    id: LadderId
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    root: PositiveFloat
    models: Annotated[dict[str, Step], Field(min_length=1)]

    @classmethod
    def new(cls, root: str, models: Mapping[str, Step]) -> Ladder:
        key = secrets.token_hex(32)
        return cls(id=_id(key, root, models), key=key, root=root, models=dict(models))

    @property
    def is_itself(self) -> bool:
        """Whether nothing was edited."""
        return self.id == _id(self.key, self.root, self.models)

    @property
    def path(self) -> NoisePath:
        return NoisePath(bytes.fromhex(self.key), float.fromhex(self.root))

    def rung(self, noise: float) -> float:
        """The least noise on this ladder that is not below what is asked for."""
        return self.path.rung(noise)

    def noise(self, deviation: float, without: frozenset[str] = frozenset()) -> Noise:
        return Noise(self.path, deviation, without)


def spared(models: Iterable[Model], folder: Path) -> frozenset[str]:
    """The tensors in this folder that no training of these models changed: public, so that they need no noise.

    A record that names tensors which are not there is about other names, and spares none.
    """
    trained = trained_tensors(models)
    if trained is None:
        return frozenset()
    with open_model(folder) as model:
        there = frozenset(model.tensors)
    return there - trained if trained <= there else frozenset()


NEW_LADDER = 32 * "0"  # stands for the id of a ladder that a release would make


class Ladders:
    """The ladders of a private portfolio, in a folder that no portfolio takes for a model."""

    def __init__(self, portfolio: Path) -> None:
        self.folder = portfolio / ".dpmerge" / "ladders"

    @classmethod
    def beside(cls, folders: Mapping[str, Path], form: RuleForm) -> Ladders:
        """Those of the portfolio that holds the models of an average."""
        return cls(folders[min(form.weights)].parent)

    def find(self, form: RuleForm, contents: Mapping[str, str]) -> Ladder | None:
        """The ladder of this average; another weight or another content is another ladder."""
        path = self._file(_steps(form, contents))
        return self._load(path) if path.exists() else None

    def find_or_make(self, form: RuleForm, contents: Mapping[str, str]) -> Ladder:
        """A new one has this release's noise as its root, and is on the disk before this returns."""
        steps = _steps(form, contents)
        path = self._file(steps)
        if not path.exists():
            assert form.noise is not None
            try:
                self._keep(Ladder.new(form.noise, steps), path)
            except OSError as fault:
                raise CertificateError(
                    f"{path}: the secret of the noise cannot be kept: {fault.strerror}. Noise that cannot be drawn again is "
                    "not released"
                ) from None
        return self._load(path)

    def ids(self) -> set[str]:
        """The ids of all that are kept here."""
        return {self._load(path).id for path in self.folder.glob("*.json")}

    def _file(self, steps: Mapping[str, Step]) -> Path:
        """Named after what it is the ladder of: of two that are made at once one is there first, and both use it."""
        return self.folder / f"{fingerprint(steps)}.json"

    def _load(self, path: Path) -> Ladder:
        found = load_strict(Ladder, path, CertificateError, "it was written into the portfolio with the ladder's first release")
        if self._file(found.models) != path or not found.is_itself:
            raise CertificateError(
                f"{path}: was edited or renamed: it is not the ladder that its name and id say. Put back the one that was there"
            )
        return found

    def _keep(self, ladder: Ladder, path: Path) -> None:
        """Readable by its owner alone, whole, and on the disk; never in place of one that is there."""
        private_folder(self.folder)
        temporary = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(canonical(ladder.model_dump(mode="json"), indent=1) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync(folder)


def _steps(form: RuleForm, contents: Mapping[str, str]) -> dict[str, Step]:
    return {name: Step(weight=weight, content=contents[name]) for name, weight in form.weights.items()}


def fingerprint(steps: Mapping[str, Step]) -> str:
    """Of the exact weights and the contents, not of names: a folder that was renamed holds the same model."""
    return sha256(canonical(sorted([step.content, step.weight] for step in steps.values())))


def _id(key: str, root: str, steps: Mapping[str, Step]) -> str:
    return sha256(canonical(["ladder", key, root, fingerprint(steps)]))[:32]
