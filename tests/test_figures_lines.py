"""Pictures of lines: every format, gaps and bands, looks that differ in more than colour, one line for what is malformed."""

from __future__ import annotations

import itertools
import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import FigureError
from dpmerge.figures import describe, draw, render, style, web_figure
from tests.test_figures import HOSTILE, SUFFIXES, Document, inside, panel_of, printed, printed_texts, without_plotly

X = [0.1 * 1.5**k for k in range(12)]


def line(label: str, factor: float, **more: Any) -> Document:
    return {"label": label, "x": X, "y": [factor / x for x in X], **more}


def panel(title: str = "", scale: str = "log") -> Document:
    return {
        "title": title,
        "x_label": "ε at δ = 1e-5",
        "y_label": "error",
        "x_scale": scale,
        "y_scale": scale,
        "lines": [
            line("random selection, PLD", 1.0, rule="selection", by="pld"),
            line("random selection, RDP", 1.3, rule="selection", by="rdp"),
            line("linear combination, PLD", 0.9, rule="combination", by="pld"),
            line("formula", 0.7, rule="combination", by="pld", standing="conditional"),
            line("joint, PLD", 1.5, rule="joint", by="pld"),
            line("joint, RDP", 1.6, rule="joint", by="rdp"),
            line("advanced", 2.0),
            line("optimal", 1.8, standing="conditional"),
            line("measured", 0.5, standing="measured", markers=True)
            | {"low": [0.4 / x for x in X], "high": [0.6 / x if k != 5 else None for k, x in enumerate(X)]},
            {"label": "no privacy", "standing": "reference", "x": [X[0], X[-1]], "y": [0.3, 0.3]},
        ],
        "points": [{"name": "a", "x": 0.5, "y": 1.0}, {"name": "both", "x": 2.0, "y": 0.4, "mark": "joint"}],
    }


def one(**more: Any) -> Document:
    return {"kind": "lines", **panel(), "title": "Error against privacy", "subtitle": "n = 100", **more}


def several(count: int = 3, **more: Any) -> Document:
    return {"kind": "lines", "title": "Several", "panels": [panel(f"panel {k}", "log") for k in range(count)], **more}


@pytest.mark.parametrize(("document", "height"), [(one(), 704), (several(2), 704), (several(3), 1100), (several(8), 1892)])
def test_png(document: Document, height: int, tmp_path: Path) -> None:
    draw(document, tmp_path / "lines.png")
    content = (tmp_path / "lines.png").read_bytes()
    assert struct.unpack(">II", content[16:24]) == (1100, height)
    assert b"tEXt" not in content


def test_long_headings_are_written_smaller() -> None:
    drawn = printed(one(title="Rényi divergences " * 6, subtitle="of a mean and a draw " * 8))
    inside(drawn)
    sizes = [float(text.get_fontsize()) for text in drawn.texts[:2]]
    assert sizes[0] < 14 and sizes[1] < 9.5
    assert [text.get_fontsize() for text in printed(one()).texts[:2]] == [14, 9.5]


def test_the_picture_says_titles_labels_and_standing() -> None:
    texts = printed_texts(several(2, subtitle="below", warning="chosen by looking", caption="how to read"))
    for wanted in ("Several", "below", "chosen by looking", "how to read", "panel 0", "panel 1", "joint, RDP", "both"):
        assert wanted in texts
    assert "formula, conditional" in texts and "optimal, conditional" in texts
    assert "input model alone" in texts and "joint release" in texts  # the marks
    assert texts.count("advanced") == 1  # one legend for all panels
    assert "already conditional" in printed_texts(one(lines=[line("already conditional", 1.0, standing="conditional")]))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_document_same_bytes(suffix: str) -> None:
    assert render(several(), suffix) == render(several(), suffix)


def test_page_is_one_file_with_the_numbers_in_tables() -> None:
    page = without_plotly(render(several(caption="how this was made"), ".html").decode())
    assert not re.search(r"<script[^>]*\ssrc|<link|<img|<iframe|@import|url\(|https?://", page)
    assert "how this was made" in page and page.count("<table>") == 3
    assert "<td>5 (4 to 6)</td>" in page


def test_texts_are_never_markup() -> None:
    document = one(title=HOSTILE, subtitle=HOSTILE, caption=HOSTILE, warning=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)
    document["lines"] = [line(HOSTILE, 1.0), line("b\n\x00\udc80", 2.0)]
    document["points"] = [{"name": HOSTILE, "x": 1.0, "y": 1.0}]
    page = without_plotly(render(document, ".html").decode())
    assert "<script>alert" not in page and "\\u003cscript" not in page
    assert "&lt;script&gt;" in page
    assert render(document, ".png") and printed_texts(document)


def test_a_single_panel_may_be_given_by_its_fields() -> None:
    assert len(describe(one()).panels) == 1
    assert panel_of(one()).title == ""
    wrapped = {"kind": "lines", "title": "Error against privacy", "subtitle": "n = 100", "panels": [panel()]}
    assert render(one(), ".png") == render(wrapped, ".png")


def test_lines_differ_in_more_than_colour() -> None:
    document = one(lines=[*panel()["lines"], *(line(f"other {k}", 3.0 + k) for k in range(12))])
    looks = describe(document).looks()
    assert len(looks) == 22
    for (first, a), (second, b) in itertools.combinations(looks.items(), 2):
        differs = a.colour != b.colour, a.dashes != b.dashes, a.dash != b.dash, a.marker != b.marker
        assert any(differs[1:]), (first, second)
        assert (a.marker, a.dashes, a.hollow) != (b.marker, b.dashes, b.hollow)
    assert {label for label, look in looks.items() if look.hollow} == {"formula, conditional", "optimal, conditional"}
    assert looks["random selection, PLD"] == style.looks({"x": ("selection", "pld", "proved")})["x"]
    assert looks["no privacy"].thin


def test_gaps_are_not_drawn_and_infinities_are_gaps() -> None:
    ys = [1.0, None, math.inf, 4.0, 5.0]
    document = one(lines=[{"label": "a", "x": [1, 2, 3, 4, 5], "y": ys, "low": ys, "high": ys}], points=[])
    held = panel_of(document)
    assert held.heights() == [1.0, 4.0, 5.0] * 3 and held.widths() == [1, 4, 5]
    rows = held.table().rows
    assert [row[1] for row in rows] == ["1 (1 to 1)", "— (— to —)", "— (— to —)", "4 (4 to 4)", "5 (5 to 5)"]
    for suffix in SUFFIXES:
        assert render(document, suffix)


def test_numbers_of_privacy_are_rounded_up() -> None:
    held = panel_of(one())
    across, up = held.across, held.up
    assert across.text(6.45801) == "6.459" and up.text(6.45801) == "6.458"
    assert up.text(None) == "—"


def test_tables_have_a_row_for_each_x_only_if_all_lines_share_them() -> None:
    shared = panel_of(one(lines=[line("a", 1.0), line("b", 2.0)])).table(most=5)
    rows = shared.rows
    assert shared.columns == ["ε at δ = 1e-5", "error: a", "error: b"] and len(rows) == 5
    assert rows[0] == ["0.1", "10", "20"] and float(rows[-1][0]) == pytest.approx(X[-1], rel=1e-3)
    apart = panel_of(one()).table(most=5)
    assert apart.columns == ["line", "ε at δ = 1e-5", "error"] and len(apart.rows) == 9 * 5 + 2 + 2


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_axes_hold_everything(scale: str) -> None:
    document = {"kind": "lines", "title": "t", "panels": [panel("p", scale)]}
    held = panel_of(document)
    inside(printed(document))
    for axis, values in zip((held.across, held.up), (held.widths(), held.heights()), strict=True):
        assert axis.low < min(values) < max(values) < axis.high
        assert 0 < axis.share(min(values)) < axis.share(max(values)) < 1
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks()) and len(axis.ticks()) >= 2
    single = one(lines=[{"label": "a", "x": [2.0], "y": [0.5]}], points=[], x_scale=scale, y_scale=scale)
    for suffix in SUFFIXES:
        assert render(single, suffix)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"title": None}, "this picture (lines) cannot be drawn: field title"),
        ({"x_scale": "cubic"}, "field panels.0.x_scale"),
        ({"lines": [line("a", 1.0) | {"y": [1.0]}]}, "line 'a' has 1 values of y for 12 of x"),
        ({"lines": [line("a", 1.0) | {"x": [math.nan] * 12}]}, "field panels.0.lines.0.x.0"),
        ({"lines": [line("a", 1.0, low=X)]}, "line 'a' has only one side of its band; give low and high"),
        ({"lines": [line("a", 1.0, low=X, high=X[:3])]}, "line 'a' has 3 values of high"),
        ({"lines": [line("a", 1.0, standing="sure")]}, "field panels.0.lines.0.standing"),
        ({"lines": [line("a", -1.0)], "points": []}, "has y = -10, which a logarithmic axis cannot show"),
        ({"lines": [{"label": "a", "x": [0.0, 1.0], "y": [1.0, 1.0]}], "points": []}, "x = 0, which a logarithmic axis"),
        ({"lines": [], "points": []}, "has no point that could be drawn"),
        ({"lines": [{"label": "a", "x": [1.0], "y": [None]}], "points": []}, "has no point that could be drawn"),
        ({"points": [{"name": "a", "x": 1.0, "y": 1.0, "mark": "star"}]}, "field panels.0.points.0.mark"),
        ({"panels": []}, "field panels"),
        ({"panels": [panel()] * 9}, "field panels"),
    ],
)
def test_refusals(changed: Document, words: str, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        with pytest.raises(FigureError, match=re.escape(words)) as caught:
            draw({**one(), **changed}, tmp_path / f"lines{suffix}")
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def named(**more: Any) -> Document:
    methods = ["No Agg", "EMA of the iterates", "one-dimensional-selection"]
    lines = [
        {"label": "measured", "x": [0, 1, 2], "y": [0.1, 0.2, None], "low": [0.0, 0.1, None], "high": [0.2, 0.4, None]},
        {"label": "the paper", "x": [0, 1, 2], "y": [0.0, 0.3, 0.1], "standing": "reference"},
    ]
    unjoined = [{**line, "joined": False} for line in lines]
    axes = {"x_label": "aggregation", "y_label": "gain", "categories": methods, "lines": unjoined}
    return {"kind": "lines", "title": "Gains", **axes, **more}


def test_bars_on_one_name_stand_side_by_side() -> None:
    document = named()
    measured, paper = document["lines"]
    document["lines"] = [measured, paper, {**measured, "label": "measured again"}]
    left, reference, right = web_figure(document)["data"]
    assert reference["x"] == [0, 1, 2]
    assert left["x"] == pytest.approx([-0.1, 0.9, 1.9]) and right["x"] == pytest.approx([0.1, 1.1, 2.1])
    assert left["customdata"][1].startswith("measured<br>aggregation: EMA of the iterates")
    bars: Any = printed(document).axes[0].collections
    bars = [bar.get_segments()[0][0][0] for bar in bars]
    assert bars == pytest.approx([-0.1, 0.1])


def test_categories_are_named_and_not_joined() -> None:
    document = named()
    drawn = printed(document)
    inside(drawn)
    axes = drawn.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "No Agg",
        "EMA of the iterates",
        "one-dimensional-selection",
    ]
    assert {line.get_linestyle() for line in axes.get_lines()} == {"None"} and len(
        {line.get_marker() for line in axes.get_lines()}
    ) == 2
    made = web_figure(document)
    assert made["layout"]["xaxis"]["ticktext"][:2] == ["No Agg", "EMA of the iterates"]
    assert {trace["mode"] for trace in made["data"]} == {"markers"}
    assert (
        made["data"][0]["error_y"]["array"][1] == pytest.approx(0.2)
        and "EMA of the iterates" in made["data"][0]["customdata"][1]
    )
    table = panel_of(document).table()
    assert table.rows[1] == ["EMA of the iterates", "0.2 (0.1 to 0.4)", "0.3"]
    assert made["data"][0]["x"] == [0, 1, 2]
    with pytest.raises(FigureError, match="an x that is not the position of one of its 2 categories"):
        render(named(categories=["a", "b"]), ".png")
