"""A certificate: a guarantee bound by hashes to records, exact weights, input and output files; rechecked from files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from dpmerge.errors import CertificateError
from dpmerge.files import canonical, sha256
from dpmerge.planning import Averaging
from dpmerge.profiles import Conversion
from dpmerge.records import Adjacency, DpSgd, Extended, Mechanism, Model, Portfolio, Record, Strict, joined, parse_strict
from dpmerge.release.bounds import MOST_VALUES, beyond
from dpmerge.release.commitment import Commitment, Digest
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.signing import Signer
from dpmerge.rules import Accountant, Accounting, By, Guarantee, Provenance, Rule, Standing

NAME = "certificate.json"
CARD = "README.md"
Epsilon = Annotated[float, Field(ge=0, le=1e300)]  # printing rounds up, which must not overflow
Delta = Annotated[float, Field(gt=0, lt=1)]
Recipient = Annotated[str, Field(min_length=1, max_length=200)]


class NumericsForm(Strict):
    """An `Accounting` in a file, as far as the rule does not state it, and what it was asked for."""

    solved_for: Literal["epsilon", "delta"]
    by: By
    conversion: Conversion
    accuracy: Annotated[float, Field(ge=1e-9, le=1e-2)]

    @classmethod
    def of(cls, accounting: Accounting) -> NumericsForm:
        return cls(solved_for="epsilon", by=accounting.by, conversion=accounting.conversion, accuracy=accounting.accuracy)

    @property
    def accounting(self) -> Accounting:
        """The inverse of `of`; whoever certified it wanted the δ."""
        return Accounting(self.by, self.conversion, any_delta=True, accuracy=self.accuracy)

    def answer(self, rule: Rule, epsilon: float, delta: float) -> Guarantee:
        """The rule's answer: ε at this δ, or δ at this ε."""
        if self.solved_for == "epsilon":
            return self.accounting.guarantee(rule, delta=delta)
        return self.accounting.guarantee(rule, epsilon=epsilon)


class GuaranteeForm(Extended):
    """What is guaranteed, under which assumptions, and how it was computed."""

    added: ClassVar[frozenset[str]] = frozenset({"warnings"})
    epsilon: Epsilon
    delta: Delta
    theorem: str
    standing: Standing
    assumptions: list[str]
    by: Accountant
    conversion: Conversion | None
    details: dict[str, Any]
    warnings: list[str] = Field(default_factory=list)

    @field_validator("details")
    @classmethod
    def _finite(cls, details: dict[str, Any]) -> dict[str, Any]:
        canonical(details)  # refuses NaN and infinities, which no field may hold
        return details

    @classmethod
    def of(cls, guarantee: Guarantee) -> GuaranteeForm:
        """An infinite ε is rejected."""
        kept = {name: value for name, value in guarantee.as_dict().items() if name in cls.model_fields}
        return cls.model_validate_json(canonical(kept))


class RecordForm(Strict):
    """A model's record, and the hash of its canonical form."""

    sha256: Digest
    record: Record

    @classmethod
    def of(cls, record: Record) -> RecordForm:
        return cls(sha256=record_digest(record), record=record)


class LedgerForm(Extended):
    """Where the release was entered, and what everything together guaranteed after it."""

    added: ClassVar[frozenset[str]] = frozenset({"theorem"})
    number: Annotated[int, Field(ge=1)]
    entry: Digest
    epsilon: Epsilon
    delta: Delta
    theorem: str | None = None  # how the total was computed


class SignatureForm(Strict):
    """Who signed the canonical content."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class MergeForm(Extended):
    """How the tensors were made, besides the weights. `average` is the rule that gave checkpoints of one run their weights.

    `keep_metadata` names what was kept on request: of the input files' metadata beside their format, of configurations beside
    the fields by which they are loaded.
    """

    added: ClassVar[frozenset[str]] = frozenset({"average", "keep_metadata"})
    method: str | None = None
    lora: Literal["factors", "exact"] | None = None
    take_from: str | None = None
    base: dict[str, Digest] | None = None
    average: Averaging | None = None
    keep_metadata: Annotated[list[str], Field(min_length=1)] | None = None


class Certificate(Extended):
    """The whole of `certificate.json`. `recipient` is whom it was made for, `parent` the hash of a release it was made of.

    `card` is the hash of the model card's certified section; older certificates have that of the whole file among `outputs`.
    """

    added: ClassVar[frozenset[str]] = frozenset({"recipient", "parent", "card"})
    schema_version: Annotated[Literal[1], Field(alias="schema")]
    created: str
    dataset: str
    adjacency: Adjacency
    rule: RuleForm
    merge: MergeForm
    provenance: Provenance
    dependent: bool  # the weights depend on what earlier releases showed: only the ledger's total covers that
    utilities_source: str | None
    guarantee: GuaranteeForm
    numerics: NumericsForm
    records: Annotated[dict[str, RecordForm], Field(min_length=1)]
    inputs: dict[str, dict[str, Digest | Commitment]]
    outputs: Annotated[dict[str, Digest], Field(min_length=1)]
    card: Digest | None = None
    drawn: str | None
    ledger: LedgerForm | None
    recipient: Recipient | None = None
    parent: Digest | None = None
    software: dict[str, str]
    sha256: Digest
    signature: SignatureForm | None

    @classmethod
    def parse(cls, content: bytes, source: str) -> Certificate:
        """Read and validate a file's content; `source` names it in errors."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise CertificateError(f"{source}: cannot be read: {fault}") from None
        return parse_strict(cls, text, source, CertificateError, MOST_VALUES)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Certificate:
        """Refuse fields that contradict each other: else a true guarantee could be attached to another release."""
        rule, merge = self.rule, self.merge
        records = {name: form.record for name, form in self.records.items()}
        if (large := next(beyond(records, rule.rule == "combination"), None)) is not None:
            raise ValueError(f"too large: {large}")
        for contradiction, there in {
            "records of other models than the rule involves": set(records) != rule.involved,
            "another dataset than its records": any(record.dataset != self.dataset for record in records.values()),
            "a fingerprint of the data, which it does not cover": any(record.data_fingerprint for record in records.values()),
            "other neighbours than its records": any(record.adjacency != self.adjacency for record in records.values()),
            "a rule that draws without a model drawn, or the reverse": rule.draws != (self.drawn is not None),
            "a drawn model that had no chance": self.drawn is not None and self.drawn not in rule.weights,
            "inputs of other models than were merged": set(self.inputs) != self.merged,
            "a drawn model that was merged": rule.draws and merge != MergeForm(keep_metadata=merge.keep_metadata),
            "a merge that only joint release covers": rule.rule != "joint" and not merges_linearly(merge),
            "an average of checkpoints with other weights than its rule gives": not averages_as_stated(rule, merge, records),
            **rule.contradictions,
            "an average of real numbers, which no file holds": (
                rule.rule == "combination"
                and (rule.arithmetic, rule.noise) == (None, None)
                and self.guarantee.theorem not in COVERS_INPUTS
            ),
            "noise of no ladder": rule.noise is not None and rule.ladder is None and rule.renoised is None,
            "more noise on no release, or the reverse": (self.parent is None) != (rule.renoised is None),
            "weights chosen by looking, under a rule that does not cover it": not covers_looking(rule, self.provenance),
            "a private validation set that paid nothing, or the reverse": (
                (self.provenance == "private-validation") != (rule.validation is not None)
            ),
            "weights that depend on earlier releases, and no ledger": self.dependent and self.ledger is None,
            "a model card that is certified twice, or not at all": (self.card is None) != (CARD in self.outputs),
        }.items():
            if there:
                raise ValueError(f"contradicts itself: {contradiction}")
        return self

    @property
    def merged(self) -> set[str]:
        """The models whose tensors were used."""
        return set(self.rule.weights) if self.drawn is None else {self.drawn}

    def content(self) -> bytes:
        """What is hashed and signed: everything but hash and signature, canonically."""
        return canonical(self.model_dump(mode="json", by_alias=True, exclude={"sha256", "signature"}))

    def file(self) -> bytes:
        """The bytes of `certificate.json`, which are the only ones that stand for this certificate."""
        return canonical(self.model_dump(mode="json", by_alias=True), indent=1) + b"\n"

    def portfolio(self) -> Portfolio:
        """The models it is about, from the records it carries, by name in alphabetical order."""
        return Portfolio(tuple(Model(name, self.records[name].record) for name in sorted(self.records)))

    def faults(self) -> list[str]:
        """What is wrong with it by itself: its hash, the records' hashes."""
        found = []
        if sha256(self.content()) != self.sha256:
            found.append(f"{NAME} was edited: its content does not have the hash it states")
        found += [
            f"the record of model {name!r} was edited: it does not have the hash stated"
            for name, form in self.records.items()
            if record_digest(form.record) != form.sha256
        ]
        return found


def merges_linearly(merge: MergeForm) -> bool:
    """Whether this is the weighted average that a combination's theorems are about.

    Integers taken from one model are that model's own, and the exact sum of LoRA updates is bilinear in what was trained.
    """
    return merge == MergeForm(lora=merge.lora, keep_metadata=merge.keep_metadata) and merge.lora != "exact"


def averages_as_stated(rule: RuleForm, merge: MergeForm, records: Mapping[str, Record]) -> bool:
    """Whether the weights are those that the stated average gives to checkpoints of one run; also if none is stated."""
    if merge.average is None:
        return True
    linear = merges_linearly(merge.model_copy(update={"take_from": None, "average": None}))
    return linear and merge.average.gives(rule.values, {name: record.mechanism for name, record in records.items()})


def covers_looking(rule: RuleForm, provenance: Provenance) -> bool:
    """Whether a rule holds for weights of this provenance (docs/theory.md §4)."""
    if rule.rule == "joint":
        return (provenance == "a-priori") == (not rule.looked_at)
    return rule.rule == "tempered" or provenance == "a-priori"


def published(models: Iterable[Model]) -> dict[str, Record]:
    """The records of these models as a certificate carries them, by name: with fingerprints numbered, adapted clips left out.

    Which runs share randomness decides the guarantee and is kept. The fingerprint itself is not published: seeds are often
    short, and whoever finds the one that has this fingerprint takes the noise off the model. A clip that was adapted to the
    data is an output of its run, also of one that stays hidden; no guarantee of such a run depends on it. What a fork starts
    from is shown in the same way, without the digest of its tensors. A fingerprint of the data is a function of the data, which
    no (ε, δ) covers.
    """
    numbers: dict[tuple[str, str], str] = {}

    def number(field: str, known: str) -> str:
        return numbers.setdefault((field, known), f"number {len(numbers) + 1}")

    return {model.name: shown(model.record, number) for model in sorted(models, key=lambda model: model.name)}


def shown(record: Record, rename: Callable[[str, str], str]) -> Record:
    """A record without what is private in it (see `published`); `rename` gives what stands for a fingerprint in its field."""
    return record.model_copy(update={"mechanism": _shown(record.mechanism, rename), "data_fingerprint": None})


def _shown(mechanism: Mechanism, rename: Callable[[str, str], str]) -> Mechanism:
    """The digest of a checkpoint that a fork starts from is not published either: no release may have shown it."""
    update: dict[str, Any] = {}
    for field in ("noise_fingerprint", "sampler_fingerprint"):
        known = getattr(mechanism, field)
        if known is not None:
            update[field] = rename(field, known)
    if isinstance(mechanism, DpSgd):
        if mechanism.clipping == "adaptive":
            phases = [phase.model_copy(update={"clip": None}) for phase in mechanism.phases]
            update |= {"clip": 1.0, "phases": joined(phases)}
        if mechanism.starts_from is not None:
            start = {"digest": None, "mechanism": _shown(mechanism.starts_from.mechanism, rename)}
            update["starts_from"] = mechanism.starts_from.model_copy(update=start)
    return mechanism.model_copy(update=update)


def record_digest(record: Record) -> str:
    """The hash of a record's canonical form: white space and order of fields do not matter.

    Without the fingerprint of the data: a record is of the same run with it and without, and certificates have none.
    """
    return sha256(canonical({name: value for name, value in record.as_dict().items() if name != "data_fingerprint"}))


def draft(content: dict[str, Any]) -> Certificate:
    """A certificate without its hash; content that contradicts itself is refused."""
    try:
        return Certificate.model_validate_json(canonical({**content, "sha256": "0" * 64, "signature": None}))
    except ValidationError as fault:
        raise CertificateError(f"no certificate can be made of this release: {fault.errors()[0]['msg']}") from None


def seal(content: dict[str, Any], signer: Signer | None) -> Certificate:
    """The certificate: validated, hashed, signed."""
    made = draft(content)
    body = made.content()
    signature = None if signer is None else SignatureForm(key=signer.public, value=signer.sign(body))
    return made.model_copy(update={"sha256": sha256(body), "signature": signature})


def software() -> dict[str, str]:
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
