"""A page that holds all it needs: style, script, figures and data.

Figures are Bokeh's; its script is embedded. The page's own security policy forbids every request,
so that opening a report tells nobody about it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from botorch_dp import __version__
from botorch_dp._checks import needs_extra
from botorch_dp._files import atomic_write
from botorch_dp.privacy import Receipt

#: A figure of Bokeh, which is loaded on first use: it changes filters of warnings.
Figure: TypeAlias = Any
#: Colours that differ for everybody, and in grey [Okabe2008]; marks and dashes differ as well.
BLUE, ORANGE, GREY, BLACK = "#0072B2", "#D55E00", "#767676", "#1a1a1a"

#: How many labels a small figure's axis bears.
_MOST_LABELS = 8

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src {connect}"
)


class Page:
    """Sections one after the other, and the figures in them.

    Args:
        title: Of the page.
        lead: What it shows, in one sentence.
        notice: What its reader must know before showing it to anybody.
    """

    def __init__(self, title: str, lead: str, notice: str) -> None:
        self.title = title
        self._body = [
            f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>",
            f'<p class="notice" role="note"><strong>Sensitive.</strong> {escape(notice)}</p>',
        ]
        self._figures: dict[str, Figure] = {}
        self.data: dict[str, Any] = {}

    def section(self, title: str, *parts: str) -> None:
        """Add a section; its parts are HTML."""
        anchor = re.sub(r"\W+", "-", title.lower()).strip("-")
        content = f"<h2>{escape(title)}</h2>{''.join(parts)}"
        self._body.append(f'<section id="{anchor}">{content}</section>')

    def place(self, name: str, figure: Figure, label: str) -> str:
        """Where a figure appears, as HTML; ``label`` says what it shows to those who cannot see."""
        self._figures[name] = figure
        return f'<div class="figure" role="img" aria-label="{escape(label)}">{{{{{name}}}}}</div>'

    def html(self, *, live: bool = False) -> str:
        """The whole page.

        Args:
            live: Whether it may ask its own server for news.
        """
        body = "".join(self._body)
        scripts = ""
        if self._figures:
            from bokeh.document import Document
            from bokeh.embed import components
            from bokeh.resources import Resources

            # Left to itself, Bokeh would look through all figures again for each one that it adds.
            document = Document()
            with document.models.freeze():
                for each in self._figures.values():
                    document.add_root(each)
            try:
                started, places = components(self._figures, wrap_script=False)
            finally:
                document.clear()  # a figure has one document, and may be drawn again
            for name, place in places.items():
                body = body.replace(f"{{{{{name}}}}}", place)
            library = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
            scripts = "".join(f"<script>{code}</script>" for code in [*library, started])
        assets = files("botorch_dp.report")
        policy = _POLICY.format(connect="'self'" if live else "'none'")
        data = {**self.data, "figures": len(self._figures), "live": live}
        stored = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="generator" content="botorch_dp {__version__}">'
            f"<title>{escape(self.title)}</title>"
            f"<style>{assets.joinpath('page.css').read_text()}</style></head>"
            f'<body><main>{body}</main><script type="application/json" id="data">{stored}</script>'
            f"{scripts}<script>{assets.joinpath('page.js').read_text()}</script></body></html>"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page for its owner only (mode 0600), whole or not at all."""
        target = Path(path)
        if not target.parent.is_dir():
            raise ValueError(f"`path`: the folder {target.parent} does not exist.")
        if target.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"`path` must end in .html, got {target.name!r}.")
        content = self.html()
        with atomic_write(target, owner_only=True) as file:
            file.write(content)
        return target


def figure(x_label: str, y_label: str, *, height: int = 380, **options: Any) -> Figure:
    """An empty figure as wide as its place, with labelled axes."""
    with needs_extra("report", "A report"):
        from bokeh.plotting import figure as new
    made = new(
        height=height,
        sizing_mode="stretch_width",
        x_axis_label=x_label,
        y_axis_label=y_label,
        tools="pan,box_zoom,wheel_zoom,reset,save",
        # Nothing is active, so that a finger or a wheel on the figure still scrolls the page.
        active_drag=None,
        active_scroll=None,
        output_backend="canvas",
        **options,
    )
    made.toolbar.autohide = True
    made.toolbar.logo = None
    return made


def log_ticks(figure: Figure, low: float, high: float) -> None:
    """Label a short logarithmic axis at 1, 2, 5, 10: Bokeh's own labels would lie on each other."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    if 2 <= len(ticks) <= _MOST_LABELS:
        figure.xaxis.ticker = ticks
        figure.xaxis.major_label_overrides = {tick: f"{tick:g}" for tick in ticks}


def source(columns: Mapping[str, Sequence[Any]], name: str | None = None) -> Any:
    """Columns of a figure, which the page's script finds by ``name``."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({key: list(values) for key, values in columns.items()}, name=name)


def hover(figure: Figure, renderers: Sequence[Any], *names: str) -> None:
    """Show these columns of what the pointer is on."""
    from bokeh.models import HoverTool

    tips = [(name, f"@{{{name}}}") for name in names]
    figure.add_tools(HoverTool(tooltips=tips, renderers=list(renderers), visible=False))


def receipt_details(receipt: Receipt) -> str:
    """A receipt to unfold: the JSON document, which may be copied into a file and verified."""
    text = json.dumps(receipt.document, indent=1, sort_keys=True)
    return (
        "<details><summary>Receipt, which somebody else can check with <code>botorch-dp verify"
        f"</code></summary><pre>{escape(text)}</pre></details>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, name: str) -> str:
    """A table that is sorted by clicking its head, and saved as CSV by a button."""
    lines = []
    for row in rows:
        cells = (
            f'<td class="{_kind(value)}"{_in_full(value)}>{escape(shown(value))}</td>'
            for value in row
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    kinds = [_kind(value) for value in rows[0]] if rows else ["words"] * len(head)
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(title)}</button></th>'
        for title, kind in zip(head, kinds, strict=True)
    )
    return (
        f'<p><button type="button" class="save" data-table="{name}">Save as CSV</button></p>'
        f'<div class="scroll" tabindex="0"><table id="{name}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _kind(value: object) -> str:
    if not isinstance(value, str):
        return "number"
    return "words" if len(value) < 40 else "sentence"


def _in_full(value: object) -> str:
    """An attribute with the value for sorting and for the file, where it is shown shortened."""
    return f' data-value="{value!r}"' if isinstance(value, float) and value == value else ""


def shown(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)
