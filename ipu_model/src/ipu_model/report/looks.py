"""How parts of profiles look: Okabe and Ito's colours with straight hatching, apart in grey and for all eyes."""

from __future__ import annotations

import json
from typing import NamedTuple

from markupsafe import Markup

BLUE, YELLOW, ORANGE, GREEN = "#0072B2", "#F5D27A", "#D55E00", "#009E73"
SKY, PURPLE, WHITE = "#56B4E9", "#CC79A7", "#FFFFFF"
INK, GREY, HATCH = "#333333", "#EBEBEB", "#D9A920"
DARK = "#111111"
"""For text on light colours, which stay light where the page is dark."""
_THEMED = {GREY: "var(--grid)", INK: "var(--ink)"}
"""Colours that follow the theme of a page; what is white on paper has the colour of the page."""
# Lines through a square of 7 by 7 that goes on in every direction, and what the hatching is called.
_LINES = {"/": "M-1 1L1 -1M0 7L7 0M6 8L8 6", "\\": "M6 -1L8 1M0 0L7 7M-1 6L1 8", "-": "M0 3.5H7", "|": "M3.5 0V7"}
_LINES |= {"+": _LINES["-"] + _LINES["|"], "x": _LINES["/"] + _LINES["\\"]}
_HATCHINGS = {"/": "up", "\\": "down", "-": "flat", "|": "upright", "+": "grid", "x": "cross"}


class Look(NamedTuple):
    """How an area is filled: its colour, its hatching and the colour of that, and the colour of text on it."""

    face: str
    hatch: str = ""
    edge: str = WHITE
    text: str = DARK

    @property
    def paper(self) -> str:
        """The colour of the area on a page, below the hatching."""
        return "var(--paper)" if self.face == WHITE else _THEMED.get(self.face, self.face)

    @property
    def pattern(self) -> tuple[str, str, str]:
        """The name of the hatching on a page, the colour of its lines, and the lines as an SVG path."""
        colours = f"{self.face.lstrip('#').lower()}-{self.edge.lstrip('#').lower()}"
        kind = self.hatch[0]
        return f"{_HATCHINGS[kind]}-{colours}", _THEMED.get(self.edge, self.edge), _LINES[kind]

    @property
    def fill(self) -> str:
        return f"url(#{self.pattern[0]})" if self.hatch else self.paper


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

SPENT_LOOKS = {
    "at the matrix units' peak": SPAN_LOOKS["forward"],
    "contractions below the peak": SPAN_LOOKS["recompute"],
    "other computation": SPAN_LOOKS["update"],
    "exchange between tiles": SPAN_LOOKS["backward"],
    "synchronisation of tiles": OTHER_LOOK,
    "copies between IPUs": SPAN_LOOKS["copy"],
    "host and streaming memory": SPAN_LOOKS["stream in"],
    "waiting for other IPUs": SPAN_LOOKS["wait"],
}
"""For the parts of `findings.cycles_spent`."""
_ALL_LOOKS = (*SPAN_LOOKS.values(), *FAMILY_LOOKS.values(), *MEMORY_LOOKS.values(), OTHER_LOOK)
HATCHED = tuple({look.fill: look for look in _ALL_LOOKS if look.hatch}.values())
"""Every hatching once."""


def looks_json() -> Markup:
    def on_page(look: Look) -> dict[str, str]:
        text = "var(--ink)" if look.face == WHITE else _THEMED.get(look.text, look.text)
        return {"fill": look.fill, "face": look.paper, "text": text}

    tables = {"spans": SPAN_LOOKS, "families": FAMILY_LOOKS, "memory": MEMORY_LOOKS}
    looks = {kind: {name: on_page(look) for name, look in table.items()} for kind, table in tables.items()}
    return Markup(json.dumps({**looks, "other": on_page(OTHER_LOOK)}, separators=(",", ":")))
