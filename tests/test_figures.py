"""Pictures: every format of every document, hostile names, missing numbers, and files that are complete or absent."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from dpmerge import figures
from dpmerge.errors import FigureError
from dpmerge.figures import describe, draw, frontier as frontiers, labels, png, render, style
from dpmerge.figures.picture import Panel
from dpmerge.files import json_text
from dpmerge.planning import Curve, Frontier, FrontierPoint, Heatmap, ModelAlone, Surface

HOSTILE = "<script>alert(1)</script>&$x$"
SUFFIXES = (".png", ".html")
Document = dict[str, Any]


def selection_points(names: list[str], factor: float) -> list[Document]:
    points: list[Document] = []
    for target in (0.1 * 1.2**k for k in range(25)):
        share = min(1.0, (target - 0.2 * factor) / (6.3 * factor))
        fits = share >= 0
        weights = {names[0]: share, names[1]: 0.0, names[2]: 1 - share} if fits else None
        points.append({"epsilon": target, "utility": 0.83 + 0.08 * share if fits else None, "weights": weights})
    return points


def combination_points(names: list[str], power: float) -> list[Document]:
    points: list[Document] = []
    for k, (a, b) in enumerate(itertools.product((0, 0.1, 0.3, 0.5, 0.7), (0, 0.1, 0.3))):
        weights = dict(zip(names, (a, b, 1 - a - b), strict=True))
        utility = 0.91 * a + 0.90 * b + 0.83 * (1 - a - b)
        kind = "interpolated" if k % 2 else "measured"
        points.append(
            {"epsilon": 0.2 + 6 * (a + b) ** power, "utility": utility, "weights": weights, "utility_kind": kind}
            | {"on_frontier": b == 0}
        )
    return points


def frontier(names: list[str] | None = None) -> Document:
    names = names or ["a", "b", "c"]

    def curve(rule: str, by: str, standing: str, title: str, points: list[Document]) -> Document:
        return {"rule": rule, "by": by, "standing": standing, "title": title, "exact": rule == "selection", "points": points}

    own = zip(names, (0.91, 0.90, 0.83), (6.46, 6.46, 0.2), strict=True)
    formula = "linear combination (papers' formula)"
    return {
        "kind": "frontier",
        "delta": 1e-5,
        "adjacency": "add-remove",
        "provenance": "a-priori",
        "utilities_source": "stated beforehand",
        "utility_label": "accuracy",
        "warning": None,
        "assumptions": {},
        "models": [{"name": name, "utility": u, "epsilon": {"pld": e, "rdp": 1.2 * e}} for name, u, e in own],
        "joint": {"epsilon": 7.93, "utility": 0.91, "standing": "proved"},
        "curves": [
            curve("selection", "pld", "proved", "random selection", selection_points(names, 1.0)),
            curve("selection", "rdp", "proved", "random selection", selection_points(names, 1.2)),
            curve("combination", "pld", "proved", "linear combination", combination_points(names, 0.7)),
            curve("combination", "rdp", "proved", "linear combination", combination_points(names, 0.6)),
            curve("combination", "pld", "conditional", formula, combination_points(names, 2.0)),
            curve("combination", "rdp", "conditional", formula, combination_points(names, 1.8)),
        ],
    }


def heatmap(names: list[str] | None = None, value: Callable[[float, float], float | None] | None = None) -> Document:
    points = [[i / 10, j / 10, (10 - i - j) / 10] for i in range(11) for j in range(11 - i)]
    law = value or (lambda a, b: 0.2 + 6 * (a + b) ** 1.5)
    panels = [
        {"rule": rule, "by": by, "standing": standing, "title": f"{title}, {by.upper()}"}
        | {"epsilons": [law(a, b) for a, b, _ in points]}
        for rule, standing, title in (
            ("combination", "conditional", "linear combination"),
            ("selection", "proved", "random selection"),
        )
        for by in ("pld", "rdp")
    ]
    common = {"kind": "heatmap", "delta": 1e-5, "adjacency": "add-remove", "step": 0.1, "models": names or ["a", "b", "c"]}
    return {**common, "assumptions": {}, "points": points, "panels": panels}


def printed(document: Document) -> Figure:
    """The picture as matplotlib draws it, before it becomes a file."""
    with matplotlib.rc_context(png.SETTINGS):
        return png.figure(describe(document))


def printed_texts(document: Document) -> list[str]:
    return [found.get_text() for found in printed(document).findobj(Text)]


def panel_of(document: Document) -> Panel:
    return describe(document).panels[0]


def without_plotly(page: str) -> str:
    """The page less the library itself, which mentions many things."""
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() in page
    return page.replace(get_plotlyjs(), "")


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_png(make: Callable[[], Document], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    draw(make(), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1100 and 700 <= height <= 1100
    assert b"tEXt" not in content and len(content) < 60_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_names_and_standing_are_in_both_renderings(make: Callable[[list[str]], Document]) -> None:
    names = ["model-one", "deux", HOSTILE]
    texts = printed_texts(make(names))
    for name in names:
        assert style.short(name, 22) in texts or style.short(name) in texts
    assert any("conditional" in text for text in texts)
    assert any("δ = 1e-5" in text for text in texts)
    web = json.dumps(figures.web_figure(make(names)), ensure_ascii=False)
    for wanted in ("model-one", "deux", "conditional", "δ = 1e-5"):
        assert wanted in web


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_nothing_is_outside_the_picture(make: Callable[[], Document]) -> None:
    inside(printed(make()))


def inside(drawn: Figure) -> None:
    """Every text is within the picture, and every point of a line within its axes."""
    drawn.draw_without_rendering()
    for text in drawn.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= drawn.bbox.width and box.y1 <= drawn.bbox.height, text.get_text()
    for axes in drawn.axes:
        left, right, low, high = *axes.get_xlim(), *axes.get_ylim()
        for line in axes.get_lines():
            if line.get_transform() == axes.transData:
                x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
                assert np.all((left <= x) & (x <= right) & (np.isnan(y) | (low <= y) & (y <= high)))


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_page_is_one_file_that_loads_nothing(make: Callable[[], Document]) -> None:
    page = without_plotly(render(make(), ".html").decode())
    assert page.startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in page and "<title>" in page and "<h1>" in page and "prefers-color-scheme: dark" in page
    assert not re.search(r"<script[^>]*\ssrc|<link|<img|<iframe|@import|url\(|https?://", page)
    assert "default-src 'none'" in page
    # plotly.js offers to upload the chart unless it is told not to.
    assert '"showSendToCloud": false' in page
    for wanted in ("How to read this", "conditional", "<table>", "add-remove neighbours"):
        assert wanted in page


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_names_are_never_markup(make: Callable[[list[str]], Document]) -> None:
    page = without_plotly(render(make([HOSTILE, "b", "c"]), ".html").decode())
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;$x$" in page  # in the tables
    assert "\\u003cscript" not in page  # plotly reads tags in its texts: they are escaped there as well
    assert "&amp;&#36;x&#36;" in page


def test_every_text_of_the_document_is_escaped() -> None:
    document = frontier()
    bad = "<i onload=1>"
    for key in ("provenance", "utilities_source", "utility_label", "warning"):
        document[key] = bad
    for curve in document["curves"]:
        curve["title"] = bad
    page = without_plotly(render(document, ".html").decode())
    assert bad not in page and "\\u003ci onload" not in page
    assert "&lt;i onload=1&gt;" in page
    assert 'class="warning"' in page
    with pytest.raises(FigureError, match="field adjacency"):  # one of three words: nothing else is drawn
        render({**document, "adjacency": bad}, ".html")


def test_names_that_no_format_can_hold() -> None:
    for names in (["line\nbreak", "\x00\x1b", "lone \udc80"], ["模型", "_hidden", "x" * 300], ["", r"\frac{$", "%{x}"]):
        for document in (frontier(names), heatmap(names)):
            assert render(document, ".png") and render(document, ".html")
            printed_texts(document)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("make", [frontier, heatmap])
def test_same_document_same_bytes(make: Callable[[], Document], suffix: str) -> None:
    assert render(make(), suffix) == render(make(), suffix)


def test_settings_of_the_user_neither_matter_nor_change() -> None:
    loaded = "matplotlib.pyplot" in sys.modules  # by another library
    plain = render(frontier(), ".png")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        assert render(frontier(), ".png") == plain
        assert matplotlib.rcParams["font.size"] == 30
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_the_warning_is_in_the_picture() -> None:
    document = frontier() | {"provenance": "after-looking", "warning": "these weights depend on the private models"}
    assert "these weights depend on the private models" in printed_texts(document)
    page = render(document, ".html").decode()
    assert "these weights depend on the private models" in page
    assert "only joint release" in page


def test_refusals(tmp_path: Path) -> None:
    for path, document, words in (
        (tmp_path / "a.pdf", frontier(), "no picture format has the suffix '.pdf'; use .png, .html"),
        (tmp_path / "a", frontier(), "suffix ''"),
        (tmp_path / "a.png", {}, "kind None"),
        (tmp_path / "a.html", {"kind": ["frontier"]}, "kind"),
        (tmp_path / "a.png", {"kind": "frontier"}, "this picture (frontier) cannot be drawn: field delta: Field required"),
        (tmp_path / "a.png", heatmap(["a", "b"]), "field models"),
        (tmp_path / "missing" / "a.png", frontier(), "cannot be written: No such file"),
    ):
        with pytest.raises(FigureError, match=re.escape(words)) as caught:
            draw(document, path)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_heatmap_with_too_few_values_or_no_area_is_refused() -> None:
    document = heatmap()
    document["panels"][1]["epsilons"].pop()
    with pytest.raises(FigureError, match="has 65 values for 66 points"):
        render(document, ".png")
    document = heatmap()
    document["points"] = [[a, 1 - a, 0] for a, _, _ in document["points"]]
    with pytest.raises(FigureError, match="on one line"):
        render(document, ".png")


@pytest.mark.parametrize(("suffix", "library"), [(".png", "matplotlib"), (".html", "plotly")])
def test_missing_libraries_are_named(suffix: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FigureError, match=rf"{library}: install dpmerge\[plots\]"):
        draw(frontier(), tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def write_half(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        fail()

    for target, broken in (
        ("dpmerge.files.os.replace", fail),
        ("dpmerge.files.Path.write_bytes", write_half),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, broken)
            with pytest.raises(FigureError, match="No space left on device"):
                draw(frontier(), path)
    with monkeypatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", fail)
        with pytest.raises(OSError, match="No space"):
            draw(frontier(), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_frontier_without_any_feasible_point(suffix: str) -> None:
    document = frontier() | {"joint": None, "models": []}
    for curve in document["curves"]:
        for point in curve["points"]:
            point["utility"] = point["weights"] = None
    content = render(document, suffix)
    if suffix != ".png":
        assert frontiers.NOTHING in content.decode()
    assert frontiers.NOTHING in printed_texts(document)
    assert render(document | {"curves": []}, suffix)


@pytest.mark.parametrize("missing", [None, math.inf])
def test_models_without_a_finite_epsilon_are_named_below(missing: float | None) -> None:
    document = frontier()
    document["models"].append({"name": "naked", "utility": 0.95, "epsilon": {"pld": missing, "rdp": missing}})
    document["models"].append({"name": "by-rdp", "utility": 0.8, "epsilon": {"pld": missing, "rdp": 3.0}})
    document["joint"]["epsilon"] = missing
    points = panel_of(document).points
    assert [(point.name, point.mark) for point in points] == [(name, "model") for name in ("a", "b", "c", "by-rdp")]
    assert points[-1].x == 3.0
    assert any("Not drawn, for lack of a finite ε: naked." in text for text in printed_texts(document))
    assert "Not drawn, for lack of a finite ε: naked." in render(document, ".html").decode()


def test_an_epsilon_of_zero_has_a_place() -> None:
    document = frontier()
    document["models"][2]["epsilon"] = {"pld": 0, "rdp": None}
    panel = panel_of(document)
    assert panel.across.low < panel.points[2].x < min(x for line in panel.lines for x in line.x)
    assert panel.points[2].hover == ["c, alone", "ε = 0", "accuracy = 0.83"]
    assert any("An ε of 0 is drawn at the left edge." in text for text in printed_texts(document))
    for suffix in SUFFIXES:
        assert render(document, suffix)


def test_steps_go_from_their_epsilon_to_the_right_edge() -> None:
    panel = panel_of(frontier())
    exact, steps, below = panel.lines[0], panel.lines[2], panel.lines[3]
    assert steps.steps and below.faint and not below.joined and steps.name == below.name
    assert steps.y == sorted(y for y in steps.y if y is not None) and len(exact.x) < 25  # the infeasible targets are left out
    drawn = next(line for line in printed(frontier()).axes[0].get_lines() if line.get_drawstyle() == "steps-post")
    traced = next(trace for trace in figures.web_figure(frontier())["data"] if trace.get("line", {}).get("shape") == "hv")
    assert drawn.get_xdata()[-1] == traced["x"][-1] == panel.across.high  # type: ignore[index]
    assert list(drawn.get_ydata()) == traced["y"] == [*steps.y, steps.y[-1]]  # type: ignore[arg-type]
    assert traced["marker"]["size"][-1] == 0 and drawn.get_markevery() == list(range(len(steps.x)))


def test_curves_differ_in_more_than_colour() -> None:
    looks = list(describe(frontier()).looks().values())
    assert len(looks) == 6
    for one, other in itertools.combinations(looks, 2):
        assert one.marker != other.marker and one.symbol != other.symbol
        assert one.colour != other.colour or (one.dashes != other.dashes and one.dash != other.dash)
    assert [look.hollow for look in looks] == [False] * 4 + [True] * 2
    rules = {f"{rule} {by}": (rule, by, "conditional") for rule in ("selection", "tempered") for by in ("pld", "rdp", "gdp")}
    assert all(look.hollow for look in style.looks(rules).values())


def test_table_says_the_best_within_each_target() -> None:
    table = describe(frontier()).tables[0]
    columns, rows = table.columns, table.rows
    assert columns[::2] == ["target ε", "weights", "weights", "weights"]
    assert columns[1] == "random selection, proved" and columns[5].endswith("conditional")
    assert len(rows) == 12
    assert rows[0] == ["0.1", "—", "does not fit"] + ["—", "does not fit"] * 2
    best = [float(row[1]) for row in rows if row[1] != "—"]
    assert best == sorted(best)
    assert rows[-1][1] == "0.91" and rows[-1][2] == "a\u00a0=\u00a01"


def test_epsilons_are_rounded_up() -> None:
    assert style.epsilon_text(6.45801) == "6.459"
    assert style.epsilon_text(0.3) == "0.3"
    assert style.epsilon_text(math.inf) == "∞"


def test_names_do_not_cover_each_other_or_any_point() -> None:
    names = [f"model-{k}" for k in range(40)]
    spots = [(300 + 90 * math.sin(7.0 * k), 130 + 60 * math.cos(11.0 * k)) for k in range(40)]
    placed = labels.place(names, spots, [[(0, 0), (600, 260)]], (600.0, 260.0))
    boxes = [labels._box(label, spot) for label, spot in zip(placed, spots, strict=True) if label]
    assert 10 < len(boxes) <= 40
    for one, other in itertools.combinations(boxes, 2):
        assert not labels._overlap(one, other)
    for box in boxes:
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in spots)


def test_many_models_are_drawn_and_the_unnamed_counted() -> None:
    document = frontier()
    document["models"] = [
        {"name": f"model-{k}", "utility": 0.8 + 0.0001 * k, "epsilon": {"pld": 1 + 0.001 * k, "rdp": None}} for k in range(200)
    ]
    assert any("input models are not named" in text for text in printed_texts(document))
    assert render(document, ".html")


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda a, b: None, "no finite ε"),
        (lambda a, b: None if a > 0.75 else 1 + a, "ε from 1 to 1.7, white where it is not finite"),
        (lambda a, b: 2.0 if a == 1 else math.inf, "ε = 2, white where it is not finite"),
        (lambda a, b: 3.0, "ε = 3"),
        (lambda a, b: 0.0, "ε = 0"),
        (lambda a, b: 100 * a, "ε from 0 to 100"),
        (lambda a, b: 3 + 1e-9 * b, "ε from 3 to 3.001"),
    ],
)
def test_heatmap_values(law: Callable[[float, float], float | None], said: str) -> None:
    document = heatmap(value=law)
    assert said in printed_texts(document)
    assert json.dumps(said)[1:-1] in render(document, ".html").decode()
    assert render(document, ".png")


def test_heatmap_panels_are_in_their_places() -> None:
    texts = [triangle.title for triangle in describe(heatmap()).triangles]
    selection, combination = "random selection", "linear combination"
    expected = [
        f"{selection}, RDP",
        f"{selection}, PLD",
        f"{combination}, RDP (conditional)",
        f"{combination}, PLD (conditional)",
    ]
    assert texts == expected


def test_heatmaps_may_have_a_title_and_share_a_scale() -> None:
    usual, named = describe(heatmap()), describe({**heatmap(), "title": "Ours", "reach": [0.001, 1000.0]})
    assert usual.title.startswith("ε of every merge") and named.title == "Ours"
    assert (named.colours().low, named.colours().high) == (0.001, 1000.0)
    assert usual.colours().low > 0.001 and usual.colours().high < 1000


def test_ticks_are_round_and_few() -> None:
    for low, high in ((0.15, 11), (0.9, 1.1), (1e-6, 1e6), (0.2, 7.4), (3, 3.3)):
        ticks = style.log_ticks(low, high)
        assert 1 <= len(ticks) <= 9 and all(low <= tick <= high for tick in ticks), (low, high)
    assert style.linear_ticks(2, 3.3) == [2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2]


@pytest.mark.parametrize("make", [frontier, heatmap])
def test_what_plotly_draws_is_plain_data(make: Callable[[list[str]], Document], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    made = figures.web_figure(make([HOSTILE, "b", "c"]))
    assert set(made) == {"data", "layout"} and made["data"]
    text = json.dumps(made, allow_nan=False)
    assert json.loads(text) == made  # lists and numbers, no arrays or tuples
    assert "template" not in made["layout"] and "<script" not in text


def test_results_are_drawn_as_their_documents() -> None:
    names = ["line\nbreak", "lone \udc80", HOSTILE]
    open_model = ModelAlone(names[2], {"pld": math.inf, "rdp": math.inf}, 0.95)
    tried = (FrontierPoint(2.0, 0.7, {names[0]: 1.0}, "given", True), FrontierPoint(math.inf, 0.9, {names[1]: 1.0}, "given"))
    exact = (FrontierPoint(0.5, None, None), FrontierPoint(2.0, 0.7, {names[0]: 0.5, names[1]: 0.5}))
    curves = (
        Curve("selection", "pld", "proved", "random selection", True, exact),
        Curve("combination", "rdp", "conditional", "linear combination", False, tried),
    )
    models = (ModelAlone(names[0], {"pld": 0.0, "rdp": 1.0}, 0.5), open_model)
    found = Frontier(1e-5, "add-remove", "a-priori", "given", "utility", None, {}, models, None, curves, (1.0,))
    epsilons = [1.0, 2.0, math.inf]
    surface = Surface("selection", "pld", "proved", "random selection, PLD", epsilons)
    corners = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    simplex = Heatmap(1e-5, "add-remove", 1.0, {}, tuple(names), corners, (surface,))
    for result in (found, simplex):
        kept = json.loads(json_text(result.as_dict()))
        assert figures.web_figure(result) == figures.web_figure(kept)


def test_web_figures_are_of_known_kinds() -> None:
    with pytest.raises(FigureError, match="kind 'table'"):
        figures.web_figure({"kind": "table"})


def test_targets_are_marked_and_on_the_axis() -> None:
    document = frontier() | {"targets": [0.05, 2.0, 100.0]}
    layout = figures.web_figure(document)["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [0.05, 2.0, 100.0]
    inside(printed(document))
    low, high = layout["xaxis"]["range"]
    assert low < math.log10(0.05) and math.log10(100) < high
    texts = printed_texts(document)
    for target in ("0.05", "2", "100"):
        assert f"target ε = {target}" in texts
        assert any(note["text"] == f"target ε = {target}" for note in layout["annotations"])
    with pytest.raises(FigureError, match=r"field targets\.0"):
        figures.web_figure(frontier() | {"targets": [0.0]})
    assert figures.web_figure(frontier())["layout"]["shapes"] == []
