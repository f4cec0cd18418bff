"""Making a release's folder: draw or merge, certify, write the model card. Files appear whole, last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.files import sha256
from dpmerge.notebook import html_table
from dpmerge.planning import Averaging
from dpmerge.records import Portfolio, by_name_only
from dpmerge.release.card import model_card
from dpmerge.release.certificate import (
    CARD,
    NAME,
    Certificate,
    GuaranteeForm,
    RecordForm,
    draft,
    now,
    published,
    seal,
    software,
)
from dpmerge.release.choice import Chosen
from dpmerge.release.commitment import Opening, Openings, commit, input_names
from dpmerge.release.entries import Entry
from dpmerge.release.forms import COVERS_INPUTS
from dpmerge.release.joining import RECORD, record_of
from dpmerge.release.readme import CardTemplate, header_of
from dpmerge.release.signing import Signer
from dpmerge.rules import Guarantee
from dpmerge.tensors import LoraForm, MergeReport, Noise, Surveys, copy_model, merge_models

_PLAIN = CardTemplate()


@dataclass(frozen=True)
class Merge:
    """How the tensors are made, besides the weights. `average` is the rule that gave checkpoints of one run their weights.

    `keep_metadata` names what is public and goes out too: entries of the input files' metadata, fields of configurations.
    """

    method: str | None = None
    base: Path | None = None
    lora: LoraForm = "factors"
    take_from: str | None = None
    average: Averaging | None = None
    keep_metadata: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of a merge of tensors."""
        return {name: value for name, value in vars(self).items() if name != "average"}


@dataclass(frozen=True, repr=False)
class Released:
    """The result of a release: its folder, certificate and guarantee, and notes for the user."""

    folder: Path
    certificate: Certificate
    guarantee: Guarantee
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Released {self.folder}: {self.guarantee.claim}>"

    def _repr_html_(self) -> str:
        told = {"folder": self.folder, "guarantee": self.guarantee.claim, "assumes": self.guarantee.assumptions}
        drawn = {} if self.certificate.drawn is None else {"drawn": self.certificate.drawn}
        return html_table([], [*{**told, **drawn, "notes": self.notes}.items()])


def write_statements(folder: Path, content: dict[str, Any], template: CardTemplate, signer: Signer | None) -> Certificate:
    """Write record, model card and the certificate that binds them, and return the certificate."""
    made = draft({**content, "card": "0" * 64})
    if (record := record_of(made)) is not None:
        (folder / RECORD).write_bytes(record)
        content = {**content, "outputs": {**content["outputs"], RECORD: sha256(record)}}
    section = model_card(made)
    (folder / CARD).write_bytes(template.page(section, header_of(folder, content["dataset"])).encode())
    certificate = seal({**content, "card": sha256(section.encode())}, signer)
    (folder / NAME).write_bytes(certificate.file())
    return certificate


def covers_inputs(choice: Chosen) -> bool:
    """Whether the guarantee covers each model that goes in, so that the digest of its tensors may be published."""
    return choice.form.draws or choice.form.rule == "joint" or choice.guarantee.theorem in COVERS_INPUTS


@dataclass(frozen=True)
class Making:
    """What every folder of one release has in common."""

    portfolio: Portfolio
    folders: Mapping[str, Path]
    merge: Merge
    entry: Entry | None
    dependent: bool
    signer: Signer | None
    progress: Callable[[int, int], None] | None
    noise: Noise | None = None
    recipient: str | None = None
    surveys: Surveys | None = None
    template: CardTemplate = _PLAIN

    def write(self, choice: Chosen, drawn: str | None, out: Path, into: Path | None = None) -> Released:
        """Draw or merge into a new folder, with certificate and model card; or into one that becomes `out` later."""
        made: list[Released] = []

        def certify(folder: Path, report: MergeReport) -> None:
            inputs, openings = self._inputs(choice, report)
            content = {**self._content(choice, drawn, report), "inputs": inputs, "outputs": dict(report.outputs)}
            certificate = write_statements(folder, content, self.template, self.signer)
            notes = (*report.notes, *self._keep(openings, certificate), *self._about_data(choice))
            made.append(Released(out, certificate, choice.guarantee, notes))

        if drawn is not None:
            kept = self.merge.keep_metadata
            copy_model(self.folders[drawn], out, name=drawn, keep_metadata=kept, extra_files=certify, into=into)
        else:
            used = choice.form.values
            folders = {name: self.folders[name] for name in used}
            how = {**self.merge.arguments(), "noise": self.noise}
            surveyed = {} if self.surveys is None else self.surveys.files(used)
            merge_models(folders, used, out, extra_files=certify, progress=self.progress, into=into, surveyed=surveyed, **how)
        return made[0]

    def _content(self, choice: Chosen, drawn: str | None, report: MergeReport) -> dict[str, Any]:
        record = self.portfolio.models[0].record
        involved = [model for model in self.portfolio.models if model.name in choice.form.involved]
        return {
            "schema": 1,
            "created": now(),
            "dataset": record.dataset,
            "adjacency": record.adjacency,
            "rule": choice.form.model_dump(mode="json"),
            "merge": {"keep_metadata": self._kept()} if drawn is not None else self._merge_form(report),
            "provenance": choice.provenance,
            "dependent": self.dependent,
            "utilities_source": None if choice.question.utility is None else choice.question.utility.source,
            "guarantee": GuaranteeForm.of(choice.guarantee).model_dump(mode="json"),
            "numerics": choice.numerics.model_dump(mode="json"),
            "records": {
                name: RecordForm.of(one).model_dump(mode="json", by_alias=True) for name, one in published(involved).items()
            },
            "drawn": drawn,
            "ledger": self._ledger_form(),
            "recipient": self.recipient,
            "software": software(),
        }

    def _about_data(self, choice: Chosen) -> list[str]:
        """Who uses fingerprints of the data learns where they show nothing."""
        involved = [model for model in self.portfolio.models if model.name in choice.form.involved]
        used = any(model.record.data_fingerprint is not None for model in involved)
        return [why] if used and (why := by_name_only(involved)) is not None else []

    def _merge_form(self, report: MergeReport) -> dict[str, Any]:
        merge = self.merge
        base = None if merge.base is None else dict(report.inputs["base"])
        average = None if merge.average is None else merge.average.model_dump(mode="json")
        how = {"method": merge.method, "lora": merge.lora, "take_from": merge.take_from, "base": base, "average": average}
        return {**how, "keep_metadata": self._kept()}

    def _kept(self) -> list[str] | None:
        return sorted(set(self.merge.keep_metadata)) or None

    def _ledger_form(self) -> dict[str, Any] | None:
        """Where it was entered, and what everything released guarantees together after it."""
        if self.entry is None:
            return None
        total = self.entry.content["total"]
        told = {name: total[name] for name in ("epsilon", "delta", "theorem")}
        return {"number": self.entry.number, "entry": self.entry.hash, **told}

    def _inputs(self, choice: Chosen, report: MergeReport) -> tuple[dict[str, Any], dict[str, dict[str, Opening]]]:
        """Digests where the guarantee covers what is in a file; else commitments, whose openings stay private.

        It covers tensors of some rules (docs/theory.md §5), and never what else a training wrote into a file, by whose digest
        a guess could be confirmed.
        """
        inputs: dict[str, Any] = {}
        openings: dict[str, dict[str, Opening]] = {}
        for name, files in report.inputs.items():
            if name not in choice.form.weights:  # the base model, which is public and stands with the merge
                continue
            inputs[name] = {}
            for (file, digest), told in zip(files.items(), input_names(files), strict=True):
                if covers_inputs(choice) and (name, file) in report.plain:
                    inputs[name][told] = digest
                else:
                    public, openings.setdefault(name, {})[told] = commit(digest)
                    inputs[name][told] = public.model_dump(mode="json")
        return inputs, openings

    def _keep(self, openings: dict[str, dict[str, Opening]], certificate: Certificate) -> list[str]:
        """Write the openings beside the private models, before the release appears."""
        if not openings:
            return []
        path = Openings.path(next(iter(self.folders.values())).parent, certificate.sha256)
        try:
            Openings(openings=openings).keep(path)
        except OSError as fault:
            return [f"what opens the certificate's commitments to its inputs could not be kept ({path}: {fault.strerror})"]
        return []
