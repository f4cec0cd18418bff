"""Pictures of what was computed: a result (or its document) becomes one description, drawn as PNG or as a web page."""

from dpmerge.figures.drawing import (
    describe as describe,
    draw as draw,
    render as render,
    require_library as require_library,
    require_place as require_place,
    web_figure as web_figure,
)
from dpmerge.figures.picture import Line as Line, Panel as Panel, Picture as Picture
from dpmerge.figures.report import page as page
