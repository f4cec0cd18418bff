"""The section of a model card that says what a release guarantees, in words."""

from __future__ import annotations

import re

from dpmerge.records import trained_tensors
from dpmerge.release.certificate import Certificate
from dpmerge.rules import THEOREMS, round_up, significant

_WORDS = {
    "selection": "one of several models, drawn at random",
    "tempered": "one of several models, drawn at random with better ones preferred",
    "combination": "the weighted average of several models' parameters",
    "joint": "a merge of several models",
}
_PROVENANCE = {
    "a-priori": "The weights were fixed without looking at the models.",
    "after-looking": "The weights were chosen after looking at the models; the guarantee covers every model looked at.",
    "private-validation": "The choice used a private validation set, whose records are covered too.",
}
_TEMPERED = {
    **_PROVENANCE,
    "after-looking": "The draw looked at scores of the models; the guarantee covers that. The weights were fixed before.",
}
_BESIDE = (
    "It also assumes that what stands beside the parameters does not depend on the data: the names of models and tensors, and "
    "the configuration and tokenizer files."
)
_NEIGHBOURS = {
    "add-remove": "differ by one record added or removed",
    "replace-one": "differ by one record replaced",
    "zero-out": "differ by one record whose contribution is zeroed",
}


def model_card(certificate: Certificate) -> str:
    """Markdown: the guarantee as a sentence, then what it rests on. It says nothing that the certificate does not."""
    guarantee, rule = certificate.guarantee, certificate.rule
    theorem = THEOREMS[guarantee.theorem]
    how = f"*{guarantee.standing}*: {theorem.title} ({theorem.source}), by {guarantee.by.upper()}"
    because = guarantee.details.get("joint_because")
    provenance = _TEMPERED if rule.rule == "tempered" else _PROVENANCE
    lines = [
        "# Privacy of this model",
        "",
        f"This model is {_what(certificate)} trained on the private dataset {_code(certificate.dataset)}.",
        *_sentences(certificate, how),
        "",
        *(f"- {_escaped(text)}" for text in guarantee.assumptions),
        "",
        _BESIDE,
        "",
        *([f"Joint release counts: {_escaped(str(because))}.", ""] if because else []),
        *([] if rule.noise is None else [_noise(certificate), ""]),
        *([] if certificate.dependent else [provenance[certificate.provenance], ""]),
        "| model | weight |",
        "|---|---|",
        *(f"| {_code(name)} | {value!r} |" for name, value in rule.values.items()),
        "",
    ]
    if certificate.drawn is not None:
        lines += [f"The model drawn was {_code(certificate.drawn)}.", ""]
    if certificate.recipient is not None:
        lines += [f"It was released to {_code(certificate.recipient)}.", ""]
    lines += ["`certificate.json` binds this statement to the files here; `dpmerge verify` rechecks it.", ""]
    return "\n".join(lines)


def _what(certificate: Certificate) -> str:
    average = certificate.merge.average
    if certificate.rule.noise is not None:
        alone = len(certificate.rule.weights) == 1
        return "one private model with noise added," if alone else f"{_WORDS['combination']} with noise added, all"
    if average is None:
        return f"{_WORDS[certificate.rule.rule]}, all"
    return f"an average of checkpoints of one private run ({average}),"


def _noise(certificate: Certificate) -> str:
    which = "every parameter"
    if trained_tensors(certificate.portfolio().models) is not None:
        which += " that was trained"
    if certificate.parent is not None:
        return (
            f"It has noise of standard deviation {certificate.rule.deviation:.6g} on {which}, part of which was added "
            f"to an earlier release by someone who held it. That release has the certificate {_code(certificate.parent)}; "
            "whoever has that one too, or another one made of it, has its guarantee, not this one."
        )
    added = f"Noise of standard deviation {certificate.rule.deviation:.6g} was added to {which}"
    if certificate.guarantee.theorem != "hidden-run":
        return f"{added}; the guarantee does not rest on it."
    return (
        f"{added}; it is what makes the guarantee hold. Noisier and less noisy releases of the same average share one noise: "
        "whoever has several of them learns no more than the least noisy one shows."
    )


def _sentences(certificate: Certificate, how: str) -> list[str]:
    """The guarantee, and what the ledger adds to it."""
    own = _private(certificate.guarantee.epsilon, certificate.guarantee.delta)
    neighbours = f"for datasets that {_NEIGHBOURS[certificate.adjacency]}"
    total = "This release was not entered in a ledger: other releases from the same data add to what has leaked."
    if certificate.ledger is not None:
        sum_of_all = _private(certificate.ledger.epsilon, certificate.ledger.delta)
        total = f"With every earlier release from this dataset it is {sum_of_all} together, by the ledger it was entered in."
        if certificate.ledger.theorem == "adaptive-filter":
            total = (
                f"With everything that was or will be released from this dataset it is {sum_of_all} together, by the filter of "
                "the ledger it was entered in."
            )
    beware = [f"**Beware:** {_escaped(text)}." for text in certificate.guarantee.warnings]
    if not certificate.dependent:
        return [f"Its release is {own} {neighbours}.", total, *beware, "", f"The guarantee is {how}. It assumes:"]
    return [
        f"Its weights depend on what earlier releases showed, so it has no guarantee of its own {neighbours}.",
        total,
        *beware,
        "",
        f"With weights fixed beforehand it would be {own}, {how}. That assumes:",
    ]


def _private(epsilon: float, delta: float) -> str:
    return f"**({round_up(epsilon)}, {significant(delta)})-differentially private**"


def _escaped(text: str) -> str:
    """Text in which no name of a model becomes mark-up, a link or a picture."""
    shown = "".join(character if character.isprintable() else "·" for character in text)
    return re.sub(r"([\\`*_{}\[\]<>#|!&~$@]|(?<=www)\.|:(?=//))", r"\\\1", shown, flags=re.IGNORECASE)


def _code(text: str) -> str:
    """A name as code, where a backslash escapes nothing: what could end the code or the table's cell is left out."""
    shown = "".join(character if character.isprintable() and character not in "`|<>" else "·" for character in text)
    return f"`{shown}`"
