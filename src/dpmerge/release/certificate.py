"""A certificate: a guarantee bound by hashes to records, exact weights, input and output files; rechecked from files alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.errors import CertificateError
from dpmerge.records import Adjacency, Model, Portfolio, Record
from dpmerge.records.strict import Strict, load_strict
from dpmerge.release.canonical import canonical, sha256
from dpmerge.release.commitment import Commitment
from dpmerge.release.forms import RuleForm
from dpmerge.release.signing import Signer, signed_by
from dpmerge.rules import Guarantee

NAME = "certificate.json"
CARD = "README.md"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Provenance = Literal["a-priori", "after-looking", "private-validation"]


class CommitmentForm(Strict):
    """A commitment to a digest that the guarantee does not cover."""

    hash: Digest
    matrix: Annotated[str, Field(pattern=r"^[0-9a-f]{1,320}$")]
    masked: Digest

    def opens(self, secret: str, digest: str) -> bool:
        """Whether the secret opens it to this digest."""
        return Commitment(self.hash, self.matrix, self.masked).opens(secret, digest)


class GuaranteeForm(Strict):
    """What is guaranteed, under which assumptions, and how it was computed."""

    epsilon: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    theorem: str
    standing: Literal["proved", "conditional"]
    assumptions: list[str]
    by: Literal["pld", "rdp", "gdp"]
    conversion: Literal["tight", "paper"] | None
    details: dict[str, Any]


class RecordForm(Strict):
    """A model's record, and the hash of its canonical form."""

    sha256: Digest
    record: Record


class LedgerForm(Strict):
    """Where the release was entered, and what everything together guaranteed after it."""

    number: Annotated[int, Field(ge=1)]
    entry: Digest
    epsilon: float
    delta: float


class SignatureForm(Strict):
    """Who signed the canonical content."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class MergeForm(Strict):
    """How the tensors were made, besides the weights."""

    method: str | None = None
    lora: Literal["factors", "exact"] | None = None
    take_from: str | None = None
    base: dict[str, Digest] | None = None


class Certificate(Strict):
    """The whole of `certificate.json`."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    created: str
    dataset: str
    adjacency: Adjacency
    rule: RuleForm
    merge: MergeForm
    provenance: Provenance
    utilities_source: str | None
    guarantee: GuaranteeForm
    records: Annotated[dict[str, RecordForm], Field(min_length=1)]
    inputs: dict[str, dict[str, Digest | CommitmentForm]]
    outputs: Annotated[dict[str, Digest], Field(min_length=1)]
    drawn: str | None
    ledger: LedgerForm | None
    software: dict[str, str]
    sha256: Digest
    signature: SignatureForm | None = None

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read and validate a file."""
        return load_strict(cls, path, CertificateError, "a released model has its certificate beside it")

    def content(self) -> bytes:
        """What is hashed and signed: everything but hash and signature, canonically."""
        return canonical(self.model_dump(mode="json", by_alias=True, exclude={"sha256", "signature"}))

    def portfolio(self) -> Portfolio:
        """The models it is about, from the records it carries."""
        return Portfolio(tuple(Model(name, form.record) for name, form in self.records.items()))

    def faults(self) -> list[str]:
        """What is wrong with it by itself: its hash, the records' hashes, its signature."""
        found = []
        if sha256(self.content()) != self.sha256:
            found.append("certificate.json was edited: its content does not have the hash it states")
        found += [
            f"the record of model {name!r} was edited: it does not have the hash stated"
            for name, form in self.records.items()
            if record_digest(form.record) != form.sha256
        ]
        if self.signature is not None and not signed_by(self.signature.key, self.signature.value, self.content()):
            found.append("the signature is not that of the key stated")
        return found


def record_digest(record: Record) -> str:
    """The hash of a record's canonical form: white space and order of fields do not matter."""
    return sha256(canonical(json.loads(record.model_dump_json(by_alias=True))))


def seal(content: dict[str, Any], signer: Signer | None) -> bytes:
    """The certificate as the bytes of its file: validated, hashed, signed."""
    draft = Certificate.model_validate_json(canonical({**content, "sha256": "0" * 64}))
    body = draft.content()
    sealed = {**json.loads(body), "sha256": sha256(body), "signature": None}
    if signer is not None:
        sealed["signature"] = {"key": signer.public, "value": signer.sign(body)}
    return json.dumps(sealed, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def guarantee_form(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as it stands in a certificate."""
    kept = ("epsilon", "delta", "theorem", "standing", "assumptions", "by", "conversion", "details")
    return {name: value for name, value in guarantee.as_dict().items() if name in kept}


def software() -> dict[str, str]:
    """The versions that computed it."""
    found = {}
    for package in ("dpmerge", "dp-accounting", "numpy", "scipy", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
