"""A report as a page: what may be released from a portfolio, for who will read it in a browser and has nothing else.

Everything but the pictures works without JavaScript, and every picture is there as a table as well. What is proved and what is
conditional is said in words and by a mark and a border, never by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from dpmerge.figures import chart as charts, frontier as frontiers, heatmap as heatmaps, lines, page as pages, style, summary
from dpmerge.figures.documents import Chart, Frontier, Heatmap, read
from dpmerge.figures.report_document import Card, Ledger, Option, OverWeights, Plan, Report
from dpmerge.rules import THEOREMS, round_up, significant

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
    "best of all": "of the best of all models",
}
_SAME = "The same in a table"
_NO_SCRIPT = "The picture needs JavaScript; the table below it does not."
_WORDS = (
    "Every guarantee here is a theorem under the assumptions printed with it. ✓ proved means that all of them are statements "
    "about what was run. ◇ conditional means that one of them is known to fail in general and is taken on someone's word: if "
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
    """The report; the same document gives the same bytes."""
    report = read(Report, document)
    title = f"What may be released from {report.dataset}"
    subtitle = f"{report.adjacency} neighbours · δ = {_delta(report.delta)} · dpmerge {report.version}"
    parts = [
        pages.heading(title, subtitle, report.warning),
        *_who_chose(report),
        _models(report),
        *_targets(report),
        *_frontier(report),
        *_over_weights(report.weights),
        *(_ledger(report.ledger) if report.ledger else ()),
        *_words(report),
    ]
    return pages.whole(title, "\n".join(parts), _STYLE)


def _delta(value: float) -> str:
    return style.epsilon_text(value)


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else round_up(value)


def _standing(standing: str) -> str:
    return f'<span class="standing {escape(standing)}">{_MARKS[standing]}</span>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _who_chose(report: Report) -> Iterator[str]:
    yield pages.prose("Who chose the utilities", *summary.provenance(read(Frontier, report.frontier)))


# --- models -----------------------------------------------------------------------------------------------------------------


def _models(report: Report) -> str:
    columns = ["model", "ε by PLD", "ε by RDP", "standing", "utility", "training", "steps", "noise multiplier", "beware"]
    caption = f"each alone, ε at δ = {_delta(report.delta)}; a dash where an accountant does not apply"
    assumed = (
        f"Each guarantee assumes that {'; that '.join(THEOREMS['single-run'].assumptions)}; and what the last column says."
    )
    return pages.table("The models", caption, columns, [_model(card) for card in report.models]) + _paragraph(assumed)


def _model(card: Card) -> list[str]:
    how = card.kind
    if card.sampling is not None:
        how = f"{how}, {card.sampling.scheme}" + ("" if card.sampling.rate is None else f" at rate {card.sampling.rate:.6g}")
    own = [_epsilon(card.epsilon[by]) if by in card.epsilon else "—" for by in ("pld", "rdp")]
    return [
        card.name,
        *own,
        _MARKS[card.standing],
        style.utility_text(card.utility),
        how,
        "—" if card.steps is None else str(card.steps),
        "—" if card.noise_multiplier is None else f"{card.noise_multiplier:.6g}",
        "; ".join(card.warnings) or "—",
    ]


# --- plans ------------------------------------------------------------------------------------------------------------------


def _targets(report: Report) -> Iterator[str]:
    yield pages.prose("What fits a target", report.targets_chosen)
    for plan in report.plans:
        yield from _plan(plan)


def _plan(plan: Plan) -> Iterator[str]:
    yield f"<h3>Target ε = {_target(plan.epsilon)} at δ = {_delta(plan.delta)}</h3>"
    shown = plan.shown()
    if not shown:
        closest = min(plan.options, key=lambda option: float("inf") if option.epsilon is None else option.epsilon)
        yield _paragraph(f"Nothing fits. The closest is {_RULES.get(closest.rule, closest.rule).lower()}, but {closest.why}.")
    for option in shown:
        yield _option(option, best=option is shown[0])
    rest = [option for option in plan.options if option not in shown]
    if rest:
        table = pages.grid(
            f"for ε = {_target(plan.epsilon)} at δ = {_delta(plan.delta)}",
            ["rule", "weights", "ε", "δ", "standing", "fits", "why"],
            [_other(option) for option in rest],
        )
        yield f"<details>\n<summary>What else was considered, and why it is not above</summary>\n{table}\n</details>"


def _target(epsilon: float) -> str:
    """A target as it was asked for: it is no bound, so nothing is rounded."""
    return f"{epsilon!r}".removesuffix(".0")


def _option(option: Option, *, best: bool) -> str:
    name = _RULES.get(option.rule, option.rule) + (": the most useful here" if best else "")
    kind = _UTILITY_KINDS.get(option.utility_kind, option.utility_kind)
    worth = style.utility_text(option.expected_utility, option.utility_kind)
    weights = style.in_a_cell(style.weights_text(option.weights))
    exact = ", ".join(f"{name}={value!r}" for name, value in option.weights.items() if value > 0)
    assumptions = "\n".join(f"<li>{escape(text)}</li>" for text in option.assumptions)
    revealed = "".join(
        _paragraph(f"Model {model} is accounted by joint release: {why}.") for model, why in option.details.revealed.items()
    )
    return "\n".join(
        (
            "<article>",
            f"<h4>{escape(name)} {_standing(option.standing)}</h4>",
            _paragraph(f"Weights to four digits: {weights}. Utility: {worth} ({kind})."),
            f"<p><strong>{escape(option.claim)}</strong>{escape(option.sentence.removeprefix(option.claim))}</p>",
            "<details>",
            "<summary>The theorem, what it assumes, and the weights in full</summary>",
            _paragraph(f"{option.theorem_title} ({option.theorem_source}), docs/theory.md under {option.theorem}. It assumes:"),
            f"<ul>\n{assumptions}\n</ul>{revealed}",
            f"<p>Weights in full: <code>{escape(exact)}</code></p>",
            "</details>",
            "</article>",
        )
    )


def _other(option: Option) -> list[str]:
    by = "" if option.by == "none" else f", {option.by.upper()}"
    why = option.why if not option.feasible else f"fits ({option.why}), but something above of this rule is at least as good"
    return [
        f"{_RULES.get(option.rule, option.rule)}{by}",
        style.in_a_cell(style.weights_text(option.weights)),
        _epsilon(option.epsilon),
        significant(option.delta, 3),
        _MARKS[option.standing],
        "yes" if option.feasible else "no",
        why,
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------------


def _frontier(report: Report) -> Iterator[str]:
    frontier = read(Frontier, report.frontier)
    title = summary.title(frontier)
    yield pages.prose(title, f"{summary.HOW_TO_READ} Dashed vertical lines are the targets above.", *summary.notes(frontier))
    if frontier.warning:
        yield f'<p class="warning" role="note">{escape(frontier.warning)}</p>'
    yield pages.picture(title, frontiers.web_figure(report.frontier), "frontier", _NO_SCRIPT)
    caption = f"{frontier.utility_label} within a target ε, ≈ where it is interpolated"
    yield _in_a_table(pages.grid(caption, *summary.target_table(frontier)))


def _over_weights(weights: OverWeights) -> Iterator[str]:
    if weights.picture is None:
        yield pages.prose("All weights", weights.why or "")
        return
    if weights.picture.get("kind") == "heatmap":
        heatmap = read(Heatmap, weights.picture)
        title, figure = heatmaps.title(heatmap), heatmaps.web_figure(weights.picture)
        told = "The extremes in a table"
        table = pages.grid("the extremes of each triangle", *heatmaps.extremes(heatmap))
        yield pages.prose(title, heatmaps.HOW_TO_READ)
    else:
        chart = read(Chart, weights.picture)
        title, figure = chart.title, lines.web_figure(weights.picture)
        told = _SAME
        panel = chart.panels[0]
        table = pages.grid(f"{panel.y_label} against {panel.x_label}", *charts.table(panel, most=101))
        yield pages.prose(title, chart.caption)
    yield pages.picture(title, figure, "weights", _NO_SCRIPT, with_library=False)
    yield _in_a_table(table, told)


def _in_a_table(table: str, told: str = _SAME) -> str:
    return f"<details>\n<summary>{told}</summary>\n{table}\n</details>"


# --- the ledger -------------------------------------------------------------------------------------------------------------


def _ledger(ledger: Ledger) -> Iterator[str]:
    budget, spent, fits = ledger.budget.budget, ledger.budget.spent, ledger.budget.fits
    declared = f"({_target(budget.epsilon or 0.0)}, {_delta(budget.delta)})"
    told = [
        f"The budget for all releases from this data together is {declared}. Releases so far: {ledger.budget.releases}; "
        f"together they have spent ε = {_epsilon(spent.epsilon)} at δ = {_delta(budget.delta)}, and "
        f"δ = {significant(spent.delta_at_budget_epsilon)} at ε = {_target(budget.epsilon or 0.0)} ({_MARKS[spent.standing]}), "
        "under what the certificates of the releases assume.",
        *(f"{text[:1].upper()}{text[1:]}." for text in ledger.budget.counted),
        f"May still be released alone: {', '.join(fits.alone) or 'none of the models here'}.",
    ]
    told += [
        f"{name} may still be drawn with probability up to {share:g} in a selection with {fits.in_selection_with}."
        for name, share in fits.largest_probability.items()
    ]
    yield pages.prose("What the budget still allows", *told)
    columns = ["entry", "when", "what", "total ε", "δ", "hash"]
    if not ledger.entries:
        yield _paragraph("Nothing was released yet.")
        return
    rows = []
    for entry in ledger.entries:
        what = entry.kind if entry.of is None else f"{entry.kind} entry {entry.of}"
        if entry.total is not None:
            what = f"{entry.name}: {entry.rule} of {', '.join(entry.models)}"
        total = ["—", "—"] if entry.total is None else [_epsilon(entry.total.epsilon), significant(entry.total.delta)]
        rows.append([str(entry.number), entry.at, what, *total, entry.hash[:12]])
    yield pages.table("The history of releases", "every entry of the ledger; totals are of all up to there", columns, rows)


# --- what it means ----------------------------------------------------------------------------------------------------------


def _words(report: Report) -> Iterator[str]:
    yield pages.prose("What “proved” and “conditional” mean", *_WORDS)
    target = _target(report.plans[-1].epsilon) if report.plans else "1"
    recheck = f"dpmerge plan PORTFOLIO --epsilon {target} --delta {report.delta!r}"
    yield (
        "<h2>How to recheck this</h2>\n<p>Whoever has the records of the runs can compute every number here again, for example "
        f"with <code>{escape(recheck)}</code>. A model that was released comes with a certificate, and "
        "<code>dpmerge verify RELEASE</code> says whether it holds.</p>"
    )
