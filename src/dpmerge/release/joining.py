"""The record that a release carries, by which it can be a model of another portfolio (docs/theory.md §5)."""

from __future__ import annotations

from collections.abc import Iterable

from dpmerge.files import canonical, sha256
from dpmerge.records import ApproxDp, MadeOf, Model, Record
from dpmerge.release.certificate import Certificate
from dpmerge.rules import Standing

RECORD = "record.json"


def can_join(standing: Standing, dependent: bool, records: Iterable[Record]) -> bool:
    """Whether a release has a guarantee that is proved, its own, and adds to what other runs cost.

    Its runs need ids, by which other models of them are noticed. A record's part of the data is drawn once for all models of a
    partition, so what parts save does not add either (docs/theory.md §10).
    """
    lineage = (mechanism for record in records for mechanism in record.lineage)
    return standing == "proved" and not dependent and all(one.run is not None and one.shard is None for one in lineage)


def record_of(certificate: Certificate) -> bytes | None:
    """The bytes of the record: the certified (ε, δ), the runs that the release was made of, and what is assumed.

    It is a function of the certificate without this record's own hash and that of the card.
    """
    records = [form.record for form in certificate.records.values()]
    if not can_join(certificate.guarantee.standing, certificate.dependent, records):
        return None
    told = certificate.model_dump(mode="json", by_alias=True, exclude={"sha256", "signature", "card"})
    told["outputs"].pop(RECORD, None)
    models = [Model(name, form.record) for name, form in certificate.records.items()]
    runs = {run for model in models for one in (model, *model.starts) for run in (one.run, *one.made_of)}
    sources = {record.source for record in records}
    mechanism = ApproxDp(
        kind="approx-dp",
        run=f"release-{sha256(canonical(told))[:32]}",
        epsilon=certificate.guarantee.epsilon,
        delta=certificate.guarantee.delta,
        made_of=MadeOf(runs=sorted(runs), assumes=certificate.guarantee.assumptions),
    )
    record = records[0].model_copy(
        update={"source": sources.pop() if len(sources) == 1 else "stated-by-user", "mechanism": mechanism}
    )  # of one dataset and adjacency, as all are
    return (record.model_dump_json(by_alias=True, indent=1) + "\n").encode()
