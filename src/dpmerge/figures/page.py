"""The web page around an interactive picture: one file that needs nothing else, with tables beside the plot.

Everything that comes from a document passes through `html.escape`. The content policy forbids the page to load anything, so
nobody learns who opens it.
"""

from __future__ import annotations

import html

from dpmerge.figures.picture import Picture, Table
from dpmerge.figures.web import web_figure

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "img-src data: blob:",
        "style-src 'unsafe-inline'",
        "script-src 'unsafe-inline' 'unsafe-eval'",
    )
)
# plotly.js offers a button that uploads the chart, data and all; the page is shared by sending the file.
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1a1a1a; --quiet: #555; --back: #fafafa; --line: #ccc; --alarm: #a33b00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #eee; --quiet: #b0b0b0; --back: #161616; --line: #4a4a4a; --alarm: #ff9d66; }}
}}
body {{ margin: 0 auto; padding: 1.5rem; max-width: 75rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }}
h1 {{ margin: 0; font-size: 1.6rem; line-height: 1.25; }}
h2 {{ margin: 2rem 0 0.5rem; font-size: 1.2rem; }}
p {{ max-width: 50rem; }}
.quiet {{ margin: 0.25rem 0 1rem; color: var(--quiet); }}
.warning {{ padding: 0.25rem 0.75rem; border-left: 0.3rem solid var(--alarm); font-weight: 600; }}
figure {{ margin: 1rem 0; padding: 0.5rem; border: 1px solid var(--line); border-radius: 0.5rem; background: #fff;
  color: #1a1a1a; overflow-x: auto; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
caption {{ padding: 0.25rem 0; text-align: left; color: var(--quiet); }}
th, td {{ padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
tbody th {{ font-weight: 600; }}
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(picture: Picture) -> str:
    """The whole page of one picture."""
    read = prose("How to read this", picture.caption, picture.how_to_read)
    parts = [
        heading(picture.title, picture.subtitle, picture.warning),
        plot(picture, "plot", "The plot needs JavaScript; the tables below do not."),
        read,
        *(prose(title, *paragraphs) for title, paragraphs in picture.more.items()),
        *(f"<h2>{html.escape(table.heading)}</h2>\n{grid(table)}" for table in picture.numbers()),
    ]
    return whole(picture.title, "\n".join(parts))


def whole(title: str, body: str, style: str = "") -> str:
    """The file around a body that is HTML already; `style` is added to the common one."""
    return _PAGE.format(policy=_POLICY, title=html.escape(title), style=style, body=body)


def heading(title: str, subtitle: str, warning: str | None) -> str:
    """The page's title, one line under it, and what to beware of."""
    beware = f'\n<p class="warning" role="note">{html.escape(warning)}</p>' if warning else ""
    return f'<h1>{html.escape(title)}</h1>\n<p class="quiet">{html.escape(subtitle)}</p>{beware}'


def plot(picture: Picture, identifier: str, without: str, *, with_library: bool = True) -> str:
    """An interactive picture, and what to say where there is no JavaScript; the first one of a page brings plotly.js with it.

    The identifier is given, because a random one would make every drawing a different file.
    """
    import plotly.graph_objects as go

    figure = web_figure(picture)
    # Templates are known by name to the Python library only: it writes them out for plotly.js.
    drawn = go.Figure(figure["data"], {"template": "plotly_white", **figure["layout"]})
    made: str = drawn.to_html(full_html=False, include_plotlyjs=with_library, div_id=identifier, config=_CONFIG)
    told = f"<noscript>{html.escape(without)}</noscript>"
    return f'<figure tabindex="0" aria-label="{html.escape(picture.title)}">\n{made}\n{told}\n</figure>'


def prose(heading: str, *paragraphs: str) -> str:
    """A heading and its paragraphs."""
    return f"<h2>{html.escape(heading)}</h2>\n" + "\n".join(f"<p>{html.escape(text)}</p>" for text in paragraphs if text)


def grid(table: Table) -> str:
    """A table; wider than a phone, it is scrolled, by keyboard as well."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in table.columns)
    lines = [
        f'<tr><th scope="row">{html.escape(first)}</th>' + "".join(f"<td>{html.escape(text)}</td>" for text in rest) + "</tr>"
        for first, *rest in table.rows
    ]
    name = html.escape(table.caption)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{name}"><table>\n<caption>{name}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table></div>"
    )
