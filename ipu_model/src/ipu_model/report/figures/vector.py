"""A figure as an SVG element that sits inside a page and follows its colours."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ipu_model.report.style import GREY, INK, STYLE

# Text stays text: it can be searched, and read at any size. Numbers in names do not change between runs.
_SETTINGS: Any = {
    **STYLE, "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "ipu-model", "svg.id": None,
}  # fmt: skip
_PAGE_COLOURS = {INK.lower(): "var(--ink)", "#000000": "var(--ink)", GREY.lower(): "var(--grid)"}


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as one `<svg>` element with `description` as its alternative text.

    `name` makes the names inside it differ from those of other figures on the page. Ink, grid and the colour
    of the paper become the page's (`--ink`, `--grid`, `--paper`), so that the figure suits a dark page too.
    """
    known = {key: value for key, value in _SETTINGS.items() if key in matplotlib.rcParams}
    with matplotlib.rc_context(known):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Rules in a style element would hold for the whole page; report.css has them for figures alone.
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g(?: id="[^"]*")?/>', "", text)
    used = frozenset(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    # Only what stands in tags: words between them stay as they are.
    text = re.sub(r"<[^>]*>", lambda tag: _shortened(_with_page_colours(_with_own_names(tag[0], name, used))), text)
    return _with_words(re.sub(r">\s+<", ">\n<", text), name, description)


def _with_own_names(tag: str, name: str, used: frozenset[str]) -> str:
    """Put `name` before every name that something refers to, and drop the others."""
    tag = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    return re.sub(r'(url\(#|href="#)([^)"]+)', lambda m: f"{m[1]}{name}-{m[2]}", tag)


def _with_page_colours(tag: str) -> str:
    for colour, variable in _PAGE_COLOURS.items():
        tag = re.sub(rf"(fill|stroke): {colour}", rf"\1: {variable}", tag)
    # White lines separate areas and are the paper; white text and white areas are on colours and stay.
    return tag.replace("stroke: #ffffff", "stroke: var(--paper)").replace("stroke: white", "stroke: var(--paper)")


def _shortened(tag: str) -> str:
    """Leave out what nobody sees: parts of a hundredth of a point, and most of the space."""
    tag = re.sub(r"-?[0-9]+\.[0-9]{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub(r"\s+", " ", tag).replace(' "', '"')


def _with_words(text: str, name: str, description: str) -> str:
    """Make the element an image with a description, as wide as its place."""
    opening = re.match(r"<svg[^>]*>", text)
    assert opening is not None
    view = re.search(r'viewBox="([^"]+)"', opening[0])
    assert view is not None
    words = html.escape(description, quote=True)
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view[1]}" '
        f'role="img" aria-label="{words}" class="figure">'
    )
    return start + text[opening.end() :].strip()
