"""How parts of profiles look: Okabe and Ito's colours with straight hatching, apart in grey and for all eyes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from markupsafe import Markup

BLUE, YELLOW, ORANGE, GREEN = "#0072B2", "#F5D27A", "#D55E00", "#009E73"
SKY, PURPLE, WHITE = "#56B4E9", "#CC79A7", "#FFFFFF"
INK, GREY, HATCH = "#333333", "#EBEBEB", "#D9A920"
DARK = "#111111"
"""For text on light colours, which stay light where the page is dark."""


class Look(NamedTuple):
    """How an area is filled: its colour, its hatching and the colour of that, and the colour of text on it."""

    face: str
    hatch: str = ""
    edge: str = WHITE
    text: str = DARK


SPAN_LOOKS = {
    "forward": Look(BLUE, text=WHITE),
    "recompute": Look(SKY, "\\\\\\\\", BLUE),
    "backward": Look(YELLOW, "////", HATCH),
    "update": Look(ORANGE, text=WHITE),
    "stream in": Look(GREEN, "----", WHITE),
    "stream out": Look(GREEN, "++++", WHITE),
    "copy": Look(PURPLE, "||||", WHITE),
    "collective": Look(PURPLE, "xxxx", WHITE),
    "offload": Look(WHITE, "////", GREEN),
    "wait": Look(GREY, text=INK),
    "load": Look(GREEN, "----", WHITE),
    "call": Look(WHITE, "++++", GREEN),
    "works": Look(BLUE, text=WHITE),
}
"""One for each of `predict.profile.SPAN_KINDS`, and for the device as a whole."""
OTHER_LOOK = Look(WHITE, "++++", INK)
"""For kinds that are not known."""

MEMORY_LOOKS = {
    "parameters": Look(BLUE, text=WHITE),
    "code": Look(GREY, text=INK),
    "activations": Look(YELLOW, "////", HATCH),
    "temporary data": Look(ORANGE, text=WHITE),
    "other": Look(GREEN, text=WHITE),
}
"""For groups of categories on top of each other: dark and light in turn."""
FAMILY_LOOKS = {
    "contraction": Look(BLUE, text=WHITE),
    "elementwise": Look(YELLOW, "////", HATCH),
    "normalisation": Look(GREEN, "----", WHITE),
    "softmax": Look(ORANGE, text=WHITE),
    "reduction": Look(SKY, "\\\\\\\\", BLUE),
    "copy": Look(PURPLE, "||||", WHITE),
    "loss": Look(WHITE, "xxxx", ORANGE),
    "embedding": Look(WHITE, "////", BLUE),
}
"""For families of ops; all others have `OTHER_LOOK`."""

_THEMED = {GREY: "var(--grid)", INK: "var(--ink)"}
"""Colours that follow the theme of a page; what is white on paper has the colour of the page."""
# Lines through a square of 7 by 7 that goes on in every direction, and what the hatching is called.
_LINES = {"/": "M-1 1L1 -1M0 7L7 0M6 8L8 6", "\\": "M6 -1L8 1M0 0L7 7M-1 6L1 8", "-": "M0 3.5H7", "|": "M3.5 0V7"}
_LINES |= {"+": _LINES["-"] + _LINES["|"], "x": _LINES["/"] + _LINES["\\"]}
_HATCHINGS = {"/": "up", "\\": "down", "-": "flat", "|": "upright", "+": "grid", "x": "cross"}


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
    spans: Mapping[str, PageLook]
    families: Mapping[str, PageLook]
    memory: Mapping[str, PageLook]
    other: PageLook


def _pattern(look: Look) -> Pattern:
    colours = f"{look.face.lstrip('#').lower()}-{look.edge.lstrip('#').lower()}"
    face = "var(--paper)" if look.face == WHITE else _THEMED.get(look.face, look.face)
    name = f"{_HATCHINGS[look.hatch[0]]}-{colours}" if look.hatch else ""
    return Pattern(name, face, _THEMED.get(look.edge, look.edge), _LINES[look.hatch[0]] if look.hatch else "")


def _on_page(look: Look) -> PageLook:
    pattern = _pattern(look)
    text = "var(--ink)" if look.face == WHITE else _THEMED.get(look.text, look.text)
    return PageLook(f"url(#{pattern.name})" if look.hatch else pattern.face, pattern.face, text)


LOOKS = PageLooks(
    {name: _on_page(look) for name, look in SPAN_LOOKS.items()},
    {name: _on_page(look) for name, look in FAMILY_LOOKS.items()},
    {name: _on_page(look) for name, look in MEMORY_LOOKS.items()},
    _on_page(OTHER_LOOK),
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
"""For the parts of `findings.cycles_spent`."""
LOOKS_JSON = Markup(json.dumps(asdict(LOOKS), separators=(",", ":")))
"""The looks as the page's scripts read them."""
_ALL_LOOKS = (*SPAN_LOOKS.values(), *FAMILY_LOOKS.values(), *MEMORY_LOOKS.values(), OTHER_LOOK)
PATTERNS = tuple(dict.fromkeys(_pattern(look) for look in _ALL_LOOKS if look.hatch))
"""Every hatching once."""
