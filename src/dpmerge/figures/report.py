"""A report as a page: what may be released from a portfolio, for a reader who has a browser and nothing else.

Everything but the pictures works without JavaScript, and every picture is there as a table as well. What is proved and what is
conditional is said in words and by a mark and a border, never by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pydantic import ValidationError

from dpmerge.errors import FigureError
from dpmerge.figures import page as pages, style
from dpmerge.figures.drawing import describe
from dpmerge.figures.picture import Picture, Table, fault
from dpmerge.figures.report_form import Card, LedgerState, Report, ReportedOption, ReportedPlan
from dpmerge.rules import MIXTURE_ACCOUNTANTS, THEOREMS, round_up, significant

_MARKS = {"proved": "✓ proved", "conditional": "◇ conditional", "refused": "✗ refused", "none": "✗ no guarantee"}
_RULES = {
    "single": "One model alone",
    "selection": "Random selection",
    "combination": "Linear combination",
    "joint": "Joint release",
    "tempered": "Tempered selection",
}
_UTILITY_KINDS = {
    "expected": "expected",
    "interpolated": "interpolated: evaluate before you rely on it",
    "extrapolated": "a guess, with more noise than in any model whose utility was stated: evaluate it",
    "predicted": "predicted from the records' noise",
    "best of all": "of the best of all models",
}
_NO_SCRIPT = "The picture needs JavaScript; the table below it does not."
_WORDS = (
    "Every guarantee here is a theorem under the assumptions printed with it. ✓ proved means that all of them are statements "
    "about what was run. ◇ conditional means that one of them is known to fail in general and is only stated by the user: if "
    "it fails, so may the guarantee. ✗ refused means that no theorem covers it. Every ε and δ of a guarantee is rounded up.",
    "A guarantee is for weights that were chosen without looking at the models or the data, unless it says otherwise, and for "
    "one release. Several releases from the same data add up: that is what a ledger is for.",
)
_STYLE = """h3 { margin: 1.75rem 0 0.5rem; font-size: 1.05rem; }
h4 { margin: 0 0 0.25rem; font-size: 1rem; }
article { margin: 0.75rem 0; padding: 0.6rem 0.9rem; border: 1px solid var(--line); border-radius: 0.5rem; }
article p, article ul { margin: 0.35rem 0; max-width: 60rem; }
.standing { padding: 0 0.45rem; border: 2px solid currentColor; border-radius: 0.3rem; font-size: 0.85rem; font-weight: 600;
  white-space: nowrap; }
.standing.conditional { border-style: dashed; color: var(--alarm); }
.standing.refused, .standing.none { border-style: dotted; }
summary { cursor: pointer; }
code { overflow-wrap: anywhere; }
.plotly-graph-div { min-width: 44rem; }
td:last-child { min-width: 14rem; }
@media (max-width: 40rem) { body { padding: 0.8rem; } }
"""


def page(document: Mapping[str, Any]) -> str:
    """The report; the same document (docs/report.md describes it) gives the same bytes."""
    try:
        report = Report.model_validate(document)
    except ValidationError as error:
        raise FigureError(f"this report cannot be drawn: {fault(error)}") from None
    return _page(report)


def _page(report: Report) -> str:
    title = f"What may be released from {report.dataset}"
    delta = style.epsilon_text(report.delta)
    frontier, weights = describe(report.frontier), report.weights
    parts = [
        pages.heading(title, f"{report.adjacency} neighbours · δ = {delta} · dpmerge {report.version}", report.warning),
        _paragraph(" ".join(report.aloud)),
        _details("What these words mean", _words_meant(report.glossary)),
        pages.prose("Who chose the utilities", *frontier.more["Who chose the weights"]),
        *_models(report.models, delta),
        pages.prose("What fits a target", report.targets_chosen),
        *(part for plan in report.plans for part in _plan(plan)),
        *_picture(frontier, "frontier"),
    ]
    if weights.picture is None:
        parts.append(pages.prose("All weights", weights.why or ""))
    else:
        parts += _picture(describe(weights.picture), "weights")
    parts += _ledger(report.ledger) if report.ledger else ()
    parts += _words(report)
    return pages.whole(title, "\n".join(parts), _STYLE)


def _target(epsilon: float) -> str:
    """A target as given: it is not a bound, so it is not rounded."""
    return f"{epsilon!r}".removesuffix(".0")


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _details(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n{content}\n</details>"


def _words_meant(glossary: Mapping[str, str]) -> str:
    rows = "\n".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in glossary.items())
    return f"<dl>\n{rows}\n</dl>"


def _models(cards: Sequence[Card], delta: str) -> Iterator[str]:
    by = [f"ε by {accountant.upper()}" for accountant in MIXTURE_ACCOUNTANTS]
    columns = ["model", *by, "standing", "utility", "training", "steps", "noise multiplier", "beware"]
    caption = f"each alone, ε at δ = {delta}; a dash where an accountant does not apply"
    yield "<h2>The models</h2>"
    yield pages.grid(Table(heading="", caption=caption, columns=columns, rows=[_model(card) for card in cards]))
    assumptions = "; that ".join(THEOREMS["single-run"].assumptions)
    yield _paragraph(f"Each guarantee assumes that {assumptions}; and what the last column says.")


def _model(card: Card) -> list[str]:
    how, sampling = card.kind, card.sampling
    if sampling is not None:
        how = f"{how}, {sampling.scheme}" + ("" if sampling.rate is None else f" at rate {sampling.rate:.6g}")
    own = [round_up(card.epsilon[by]) if by in card.epsilon else "—" for by in MIXTURE_ACCOUNTANTS]
    steps, noise = card.steps, card.noise_multiplier
    return [
        card.name,
        *own,
        _MARKS[card.standing],
        style.utility_text(card.utility),
        how,
        "—" if steps is None else str(steps),
        "—" if noise is None else f"{noise:.6g}",
        "; ".join(card.warnings) or "—",
    ]


def _plan(plan: ReportedPlan) -> Iterator[str]:
    """The best that fits for each rule, and the rest in a table."""
    asked = f"ε = {_target(plan.epsilon)} at δ = {style.epsilon_text(plan.delta)}"
    yield f"<h3>Target {asked}</h3>"
    best: dict[str, ReportedOption] = {}
    for option in plan.options:
        if option.feasible:
            best.setdefault(option.rule, option)
    shown = list(best.values())
    if not shown:
        closest = min(plan.options, key=lambda option: option.epsilon)
        yield _paragraph(f"Nothing fits. The closest is {_rule(closest).lower()}, but {closest.why}.")
    for option in shown:
        yield _option(option, best=option is shown[0])
    rest = [_other(option) for option in plan.options if option not in shown]
    if rest:
        columns = ["rule", "weights", "ε", "δ", "standing", "fits", "why"]
        table = pages.grid(Table(heading="", caption=f"for {asked}", columns=columns, rows=rest))
        yield _details("What else was considered, and why it is not above", table)


def _rule(option: ReportedOption) -> str:
    return _RULES.get(option.rule, option.rule)


def _option(option: ReportedOption, *, best: bool) -> str:
    name = f"{_rule(option)}: the most useful here" if best else _rule(option)
    kind = _UTILITY_KINDS.get(option.utility_kind, option.utility_kind)
    worth = style.utility_text(option.expected_utility, option.utility_kind)
    weights = style.in_a_cell(style.weights_text(option.weights))
    exact = ", ".join(f"{name}={value!r}" for name, value in option.weights.items() if value > 0)
    assumptions = "\n".join(f"<li>{escape(text)}</li>" for text in option.assumptions)
    revealed = option.details.revealed
    theorem = f"{option.theorem_title} ({option.theorem_source}), theory.md under {option.theorem}. It assumes:"
    joint = "".join(_paragraph(f"Model {model} is accounted by joint release: {why}.") for model, why in revealed.items())
    full = f"<p>Weights in full: <code>{escape(exact)}</code></p>"
    standing = option.standing
    claim = option.claim
    return "\n".join(
        (
            "<article>",
            f'<h4>{escape(name)} <span class="standing {escape(standing)}">{_MARKS[standing]}</span></h4>',
            _paragraph(f"Weights to four digits: {weights}{_noise(option)}. Utility: {worth} ({kind})."),
            f"<p><strong>{escape(claim)}</strong>{escape(option.sentence.removeprefix(claim))}</p>",
            _details(
                "The theorem, what it assumes, and the weights in full",
                f"{_paragraph(theorem)}\n<ul>\n{assumptions}\n</ul>{joint}\n{full}",
            ),
            "</article>",
        )
    )


def _noise(option: ReportedOption) -> str:
    return f"; noise of standard deviation {significant(option.noise, 4)} at release" if option.noise else ""


def _other(option: ReportedOption) -> list[str]:
    by, why = "" if option.by == "none" else f", {option.by.upper()}", option.why
    return [
        f"{_rule(option)}{by}",
        style.in_a_cell(style.weights_text(option.weights)) + _noise(option),
        round_up(option.epsilon),
        significant(option.delta, 3),
        _MARKS[option.standing],
        "yes" if option.feasible else "no",
        f"fits ({why}), but something above of this rule is at least as good" if option.feasible else why,
    ]


def _picture(picture: Picture, identifier: str) -> Iterator[str]:
    """A picture with how to read it, and its first table; the frontier comes first and brings the script."""
    yield pages.prose(picture.title, picture.how_to_read, picture.caption)
    if picture.warning:
        yield f'<p class="warning" role="note">{escape(picture.warning)}</p>'
    yield pages.plot(picture, identifier, _NO_SCRIPT, with_library=identifier == "frontier")
    yield _details("The numbers in a table", pages.grid(picture.numbers(most=101)[0]))


def _ledger(ledger: LedgerState) -> Iterator[str]:
    """What was spent, what fits, and every entry."""
    known = ledger.budget
    budget, spent, fits = known.budget, known.spent, known.fits
    asked, delta = _target(budget.epsilon), style.epsilon_text(budget.delta)
    told = [
        f"The budget for all releases from this data together is ({asked}, {delta}). Releases so far: {known.releases}; "
        f"together they have spent ε = {round_up(spent.epsilon)} at δ = {delta} ({_MARKS[spent.standing]}), "
        "under what the certificates of the releases assume.",
        *(f"{text[:1].upper()}{text[1:]}." for text in known.counted),
        f"May still be released alone: {', '.join(fits.alone) or 'none of the models here'}.",
    ]
    told += [
        f"{name} may still be drawn with probability up to {share:g} in a selection with {fits.in_selection_with}."
        for name, share in fits.largest_probability.items()
    ]
    yield pages.prose("What the budget still allows", *told)
    if not ledger.entries:
        yield _paragraph("Nothing was released yet.")
        return
    rows = []
    for entry in ledger.entries:
        total = entry.total
        what = entry.kind if entry.of is None else f"{entry.kind} entry {entry.of}"
        if total is not None:
            what = f"{entry.name}: {entry.rule} of {', '.join(entry.models)}"
        spending = ["—", "—"] if total is None else [round_up(total.epsilon), significant(total.delta)]
        rows.append([str(entry.number), entry.at, what, *spending, entry.hash[:12]])
    columns, caption = (
        ["entry", "when", "what", "total ε", "δ", "hash"],
        "every entry of the ledger; totals are of all up to there",
    )
    yield "<h2>The history of releases</h2>"
    yield pages.grid(Table(heading="", caption=caption, columns=columns, rows=rows))


def _words(report: Report) -> Iterator[str]:
    yield pages.prose("What “proved” and “conditional” mean", *_WORDS)
    target = _target(report.plans[-1].epsilon) if report.plans else "1"
    yield (
        "<h2>How to recheck this</h2>\n<p>Every number here can be computed again from the records of the runs, for example by "
        f"a plan of this portfolio for ε = {target} and δ = {report.delta!r}. A released model comes with a certificate, "
        "and verifying it checks that the guarantee holds for its files.</p>"
    )
