"""How the parts of pictures are filled on a page: `report.looks` as SVG, in colours that follow the theme."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from markupsafe import Markup

from ipu_model.report.looks import (
    FAMILY_LOOKS,
    GREY,
    INK,
    MEMORY_LOOKS,
    OTHER_LOOK,
    SPAN_LOOKS,
    WHITE,
    Look,
)

_THEMED = {GREY: "var(--grid)", INK: "var(--ink)"}
# Lines through a square of 7 by 7 that goes on in every direction.
_LINES = {"/": "M-1 1L1 -1M0 7L7 0M6 8L8 6", "\\": "M6 -1L8 1M0 0L7 7M-1 6L1 8", "-": "M0 3.5H7", "|": "M3.5 0V7"}
_LINES["+"] = _LINES["-"] + _LINES["|"]
_LINES["x"] = _LINES["/"] + _LINES["\\"]


@dataclass(frozen=True)
class Pattern:
    """A hatching: its name on the page, the colours of the area and of the lines, and the lines as an SVG path."""

    name: str
    face: str
    edge: str
    lines: str


@dataclass(frozen=True)
class PageLook:
    """What fills an area (a colour or a pattern), the colour below the pattern, and that of text on it."""

    fill: str
    face: str
    text: str


@dataclass(frozen=True)
class PageLooks:
    """The looks of a page by kind of span, family of ops and group of memory, and that of all else."""

    spans: Mapping[str, PageLook]
    families: Mapping[str, PageLook]
    memory: Mapping[str, PageLook]
    other: PageLook


def _name(look: Look) -> str:
    hatch = {"/": "up", "\\": "down", "-": "flat", "|": "upright", "+": "grid", "x": "cross"}[look.hatch[0]]
    return f"{hatch}-{look.face.lstrip('#').lower()}-{look.edge.lstrip('#').lower()}"


def _themed(colour: str) -> str:
    return _THEMED.get(colour, colour)


def _on_page(look: Look) -> PageLook:
    face = _themed_face(look)
    text = "var(--ink)" if look.face == WHITE else _themed(look.text)
    return PageLook(f"url(#{_name(look)})" if look.hatch else face, face, text)


def _themed_face(look: Look) -> str:
    """Return the colour of an area: what is white on paper has the colour of the page."""
    return "var(--paper)" if look.face == WHITE else _themed(look.face)


def _all_on_page(looks: Mapping[str, Look]) -> Mapping[str, PageLook]:
    return {name: _on_page(look) for name, look in looks.items()}


LOOKS = PageLooks(
    _all_on_page(SPAN_LOOKS), _all_on_page(FAMILY_LOOKS), _all_on_page(MEMORY_LOOKS), _on_page(OTHER_LOOK)
)
SPENT_LOOKS = {
    "at the matrix units' peak": LOOKS.spans["forward"],
    "contractions below the peak": LOOKS.spans["recompute"],
    "other computation": LOOKS.spans["update"],
    "exchange between tiles": LOOKS.spans["backward"],
    "synchronisation of tiles": LOOKS.other,
    "copies between IPUs": LOOKS.spans["copy"],
    "host and streaming memory": LOOKS.spans["stream in"],
    "waiting for other IPUs": LOOKS.spans["wait"],
}
"""For the parts of `efficiency.cycles_spent`."""
LOOKS_JSON = Markup(json.dumps(asdict(LOOKS), separators=(",", ":")))
"""The looks as the page's scripts read them."""
_HATCHED = {
    _name(look): Pattern(_name(look), _themed_face(look), _themed(look.edge), _LINES[look.hatch[0]])
    for look in (*SPAN_LOOKS.values(), *FAMILY_LOOKS.values(), *MEMORY_LOOKS.values(), OTHER_LOOK)
    if look.hatch
}
PATTERNS = tuple(_HATCHED.values())
"""Every hatching once."""
