"""The section of a model card that says what a release guarantees, in words."""

from __future__ import annotations

from collections.abc import Mapping

from dpmerge.rules import THEOREMS, Guarantee
from dpmerge.rules.guarantee import round_up, significant

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
_NEIGHBOURS = {
    "add-remove": "differ by one record added or removed",
    "replace-one": "differ by one record replaced",
    "zero-out": "differ by one record whose contribution is zeroed",
}


def model_card(
    guarantee: Guarantee,
    rule: str,
    weights: Mapping[str, float],
    dataset: str,
    provenance: str,
    drawn: str | None,
    total: tuple[float, float] | None,
) -> str:
    """Markdown: the guarantee as a sentence, then what it rests on."""
    theorem = THEOREMS[guarantee.theorem]
    lines = [
        "# Privacy of this model",
        "",
        f"This model is {_WORDS[rule]}, all trained on the private dataset {_code(dataset)}. Its release is",
        f"**({round_up(guarantee.epsilon)}, {significant(guarantee.delta)})-differentially private** for datasets that "
        f"{_NEIGHBOURS[guarantee.adjacency]}.",
        "",
        f"The guarantee is *{guarantee.standing}*: {theorem.title} ({theorem.source}), by {guarantee.by.upper()}. It assumes:",
        "",
        *(f"- {_plain(text)}" for text in guarantee.assumptions),
        "",
        _PROVENANCE[provenance],
        "",
        "| model | weight |",
        "|---|---|",
        *(f"| {_code(name)} | {value!r} |" for name, value in weights.items() if value > 0),
        "",
    ]
    if total is None:
        lines += ["This release was not entered in a ledger: other releases from the same data add to what has leaked.", ""]
    else:
        lines += [
            f"With every earlier release from this dataset it is ({round_up(total[0])}, {significant(total[1])})-DP together, "
            "by the ledger it was entered in.",
            "",
        ]
    if drawn is not None:
        lines += [f"The model drawn was {_code(drawn)}.", ""]
    lines += ["`certificate.json` binds this statement to the files here; `dpmerge verify` rechecks it.", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text in which no name of a model becomes mark-up."""
    return "".join(character if character.isprintable() and character not in "`|<>" else "·" for character in text)


def _code(text: str) -> str:
    return f"`{_plain(text)}`"
