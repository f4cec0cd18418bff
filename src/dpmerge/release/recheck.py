"""A release against the private portfolio it is said to come from: records, input files, every tensor, the files beside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import CertificateError, DpmergeError, printable
from dpmerge.files import sha256
from dpmerge.notebook import html_table
from dpmerge.records import Portfolio
from dpmerge.release.certificate import CARD, Certificate, published, record_digest
from dpmerge.release.commitment import Commitment, Opening, Openings, input_names
from dpmerge.release.forms import COVERS_INPUTS
from dpmerge.release.joining import RECORD
from dpmerge.release.known import contents_of
from dpmerge.release.ladder import Ladders, spared
from dpmerge.rules import Combination, Standing, covers, why_joint
from dpmerge.tensors import (
    ADAPTER_CONFIG,
    INDEX,
    METHODS,
    Checkpoint,
    MergePlan,
    Noise,
    coarsest_spacing,
    open_model,
    open_plan,
    plan_copy,
    read_object,
    verify_plan,
)


@dataclass(repr=False)
class Verdict:
    """What was checked and holds, what does not, what could not be checked; `warnings`: guarantees that promise little.

    `uncovered` names files that are not certified. `certified` is the guarantee that followed again, with its standing, and
    `assumptions` is what it assumes; `epsilon`, `delta` and `standing` are its parts, None and empty where it did not follow.
    `granted` are those assumptions that whoever made the release granted, and that no theorem or record gives. `left_out` says
    what this verdict does not speak of, whatever it is.
    """

    holds: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    certified: str = ""
    assumptions: list[str] = field(default_factory=list)
    epsilon: float | None = None
    delta: float | None = None
    standing: Standing | Literal[""] = ""
    granted: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """0: holds, 1: does not, 2: could not be checked."""
        return 1 if self.broken else 2 if self.unchecked else 0

    @property
    def sentence(self) -> str:
        return ("it holds", "it does NOT hold", "it could not be checked")[self.code]

    def note(self, faults: list[str], holds: str) -> bool:
        """Add the faults, or what holds if there are none."""
        self.broken += faults
        if not faults:
            self.holds.append(holds)
        return not faults

    def digest(self, path: Path) -> str | None:
        """A file's SHA-256, or nothing where it cannot be read, which is noted."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as fault:
            self.unchecked.append(f"{path}: cannot be read: {fault.strerror}")
            return None

    def __repr__(self) -> str:
        return printable(f"<Verdict: {'; '.join([self.sentence, *self.broken, *self.unchecked, *self.warnings])}>")

    def _repr_html_(self) -> str:
        found = {"does NOT hold": self.broken, "not checked": self.unchecked, "beware": self.warnings, "holds": self.holds}
        found |= {"not certified": self.uncovered}
        found |= {"certified": [self.certified] if self.certified else [], "assumes": self.assumptions}
        found |= {"granted by whoever made it": self.granted, "not covered": self.left_out}
        return html_table([], [(name, tuple(texts)) for name, texts in found.items() if texts])


@dataclass(frozen=True)
class Recheck:
    """One certified folder and one portfolio; what is found goes into the verdict."""

    folder: Path
    certificate: Certificate
    portfolio: Portfolio
    base: Path | None
    method: str | None
    verdict: Verdict

    def run(self) -> None:
        """Each check needs what the one before it found."""
        if not self._records():
            return
        where = {model.name: model.folder for model in self.portfolio.models}
        folders = {name: folder for name in sorted(self.certificate.merged) if (folder := where[name]) is not None}
        if len(folders) < len(self.certificate.merged):
            self.verdict.unchecked.append("the portfolio was not loaded from disk: there are no tensors to check against")
            return
        try:
            self._inputs(folders)
            if self._may_merge():
                self._tensors(folders)
        except DpmergeError as fault:
            self.verdict.broken.append(f"the merge cannot be computed again: {fault}")

    def _records(self) -> bool:
        stated = self.certificate.records
        known = {model.name: model for model in self.portfolio.models}
        missing = [f"model {name!r} is not in the portfolio" for name in stated if name not in known]
        if missing:
            self.verdict.unchecked += missing
            return False
        found = published(known[name] for name in stated)
        faults = [
            f"the record of model {name!r} is not the one certified"
            for name, form in stated.items()
            if record_digest(found[name]) != form.sha256
        ]
        if self.certificate.rule.looked_at and set(self.certificate.rule.looked_at) != set(known):
            faults.append("the portfolio has other models than those certified as looked at")
        average, mechanisms = self.certificate.merge.average, {name: model.mechanism for name, model in known.items()}
        if average is not None and not average.gives(self.certificate.rule.values, mechanisms):
            faults.append("the models averaged are not checkpoints that follow each other in the portfolio")
        return self.verdict.note(faults, "the records are those of the portfolio")

    # --- what went in -----------------------------------------------------------------------------------------------------

    def _inputs(self, folders: Mapping[str, Path]) -> None:
        """The files that decided the tensors: by their digests, or by opening the commitments to these."""
        openings = self._openings(folders)
        faults = []
        unopened = 0
        for name, folder in folders.items():
            digests, stated = self._digests(folder, name), self.certificate.inputs[name]
            found = dict(zip(input_names(digests), digests.values(), strict=True))
            if set(found) != set(stated):
                faults.append(f"model {name!r}: has other files than those certified")
                continue
            for file, digest in found.items():
                claim, opening = stated[file], openings.get(name, {}).get(file)
                if digest is None:
                    continue  # noted where it could not be read
                if isinstance(claim, Commitment) and opening is None:
                    unopened += 1
                elif not _matches(claim, digest, opening):
                    faults.append(f"model {name!r}: {file} is not the file that was released from")
        if unopened:
            self.verdict.unchecked.append(f"{unopened} commitments to input files: what opens them is not in the portfolio")
            self.verdict.broken += faults
        else:
            self.verdict.note(faults, "the input files are those certified")

    def _digests(self, folder: Path, name: str) -> dict[str, str | None]:
        with open_model(folder, name) as opened:
            paths = [file.path for file in opened.files]
            if opened.layout == "lora":
                paths.append(folder / ADAPTER_CONFIG)
        return {path.name: self.verdict.digest(path) for path in paths}

    def _openings(self, folders: Mapping[str, Path]) -> Mapping[str, Mapping[str, Opening]]:
        try:
            return Openings.load(Openings.path(next(iter(folders.values())).parent, self.certificate.sha256)).openings
        except CertificateError:
            return {}

    # --- what came out ----------------------------------------------------------------------------------------------------

    def _may_merge(self) -> bool:
        """A certificate may name a user's function: it is run only if the person who verifies names it too."""
        merge = self.certificate.merge
        if merge.method is not None and merge.method not in METHODS and merge.method != self.method:
            self.verdict.unchecked.append(
                f"the merge was made by the function {merge.method!r}; if you trust it, name it as the method to run"
            )
            return False
        if merge.base is None:
            return True
        if self.base is None:
            self.verdict.unchecked.append("the merge has a base model: give its folder")
            return False
        same = self._digests(self.base, "base") == merge.base
        faults = [] if same else ["the base model is not the one certified"]
        return self.verdict.note(faults, "the base model is the one certified")

    def _tensors(self, folders: Mapping[str, Path]) -> None:
        merge, drawn = self.certificate.merge, self.certificate.drawn
        with ExitStack() as stack:
            if drawn is not None:
                self._drawn(stack.enter_context(open_model(folders[drawn], drawn)))
                return
            base = self.base if merge.base is not None else None
            how: dict[str, Any] = {"take_from": merge.take_from, "method": merge.method, "base": base}
            how |= {"lora": merge.lora or "factors", "keep_metadata": merge.keep_metadata or ()}
            if self.certificate.rule.renoised is not None:
                self.verdict.unchecked.append(
                    "noise was added to a release by someone who held it, and its key thrown away: the tensors were not checked"
                )
                return
            if self.certificate.rule.noise is not None:
                how["noise"] = self._noise(folders)
                if how["noise"] is None:
                    return
            _, plan = open_plan(stack, folders, self.certificate.rule.values, **how)
            found = verify_plan(plan, self.folder)
            what = "the stated combination" + ("" if how.get("noise") is None else " with the noise of its ladder")
            self.verdict.note([str(one) for one in found], f"the tensors are {what}, bit for bit")
            self._arithmetic(plan)
            self._metadata(plan)
            self._beside(plan)

    def _noise(self, folders: Mapping[str, Path]) -> Noise | None:
        """The noise of the release, from the ladder that the portfolio keeps; none where it cannot be drawn again."""
        form = self.certificate.rule
        held = contents_of(model for model in self.portfolio.models if model.name in form.weights)
        ladder = Ladders.beside(folders, form).find(form, held)
        if ladder is None:
            self.verdict.unchecked.append("the ladder of the noise is not in this portfolio: the tensors were not checked")
            return None
        faults = {
            "the ladder of these models and weights is not the one certified": ladder.id != form.ladder,
            "the noise certified is not on its ladder": ladder.rung(form.deviation) != form.deviation,
        }
        broken = [fault for fault, there in faults.items() if there]
        holds = self.verdict.note(broken, "the ladder of the noise is that of these models and weights")
        models = (self.portfolio[name] for name in form.values)
        return ladder.noise(form.deviation, spared(models, folders[min(form.values)])) if holds else None

    def _arithmetic(self, plan: MergePlan) -> None:
        """Below joint release, the noise covers the stored numbers (docs/theory.md §3.6)."""
        if self.certificate.rule.rule != "combination" or self.certificate.guarantee.theorem in COVERS_INPUTS:
            return
        rule = self.certificate.rule.build(self.certificate.portfolio())
        assert isinstance(rule, Combination)
        fine = covers(rule.covering, coarsest_spacing(plan.outputs))
        because = why_joint(rule.last_noise, rule.noise)
        faults = [] if fine else [f"the guarantee needs finer numbers than those stored: {because}"]
        whose = "noise at release" if rule.noise > 0 else "models' last noise"
        self.verdict.note(faults, f"the {whose} covers the arithmetic of the stored numbers")

    def _drawn(self, model: Checkpoint) -> None:
        """A drawn model is released with the same tensors, and nothing else of its files."""
        plan = plan_copy(model, self.certificate.merge.keep_metadata or ())
        found = verify_plan(plan, self.folder)
        self.verdict.note([str(one) for one in found], "the tensors are those of the drawn model, bit for bit")
        self._metadata(plan)
        self._beside(plan)

    def _metadata(self, plan: MergePlan) -> None:
        """Nothing hides in the headers, nor in the index. A file that names no format has PyTorch's layout."""
        with open_model(self.folder, "release") as released:
            faults = [
                f"{file.name}: has other metadata than the merge"
                for file in released.files
                if {"format": "pt", **file.metadata} != plan.metadata
            ]
        if plan.sharded and (self.folder / INDEX).exists():
            index = read_object(self.folder / INDEX, INDEX)
            metadata = index.get("metadata")
            if set(index) != {"metadata", "weight_map"} or not isinstance(metadata, dict) or set(metadata) != {"total_size"}:
                faults.append(f"{INDEX}: says more than where the tensors are, and their total size")
        self.verdict.broken += faults

    def _beside(self, plan: MergePlan) -> None:
        """Configuration and tokenizer are those that the merge keeps, and there are no other files."""
        outputs, kept = self.certificate.outputs, plan.companions
        with_paths, with_fields = plan.earlier
        before = {**with_paths, **with_fields}
        once = [with_fields, *([with_paths] if self.certificate.card is None else [])]
        expected = {*plan.names, *([CARD] if self.certificate.card is None else []), *({RECORD} & outputs.keys())}
        faults = [f"{name} is not a file of this merge" for name in sorted(outputs.keys() - expected - before.keys())]
        faults += [f"{name} is missing from what was certified" for name in sorted(expected - outputs.keys())]
        for name in sorted((kept.keys() | before.keys()) & outputs.keys()):
            if name in kept and outputs[name] == sha256(kept[name]):
                continue
            if any(name in files and outputs[name] == sha256(files[name]) for files in once):
                self.verdict.warnings.append(
                    f"{name} is as an earlier version wrote it, with fields by which no model is loaded: what a training wrote "
                    "there is covered by no guarantee"
                )
            else:
                faults.append(f"{name} is not what the merge keeps of its models' own")
        self.verdict.note(faults, "the files beside the tensors are those that the merge keeps")


def _matches(claim: str | Commitment, digest: str, opening: Opening | None) -> bool:
    if not isinstance(claim, Commitment):
        return claim == digest
    return opening is not None and claim.opens(Opening(sha256=digest, secret=opening.secret))
