"""How parts of profiles look, in figures and on pages: colours that stay apart without colour vision and in grey.

Colours are from Okabe and Ito's palette. Neighbours differ in lightness too, and hatching says the same once more:
only hatching of straight lines, as dots make a vector picture ten times as large.
"""

from __future__ import annotations

from typing import NamedTuple

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
"""For kinds and phases that are not known."""

PHASE_LOOKS = {
    "OnTileExecute": Look(BLUE, text=WHITE),
    "DoExchange": Look(WHITE, "||||", PURPLE),
    "GlobalExchange": Look(PURPLE, "||||", WHITE),
    "StreamCopyBegin": Look(WHITE, "----", GREEN),
    "StreamCopyMid": Look(GREEN, text=WHITE),
    "StreamCopyEnd": Look(WHITE, "////", GREEN),
    "InternalSync": Look(WHITE, "xxxx", INK),
    "ExternalSync": Look(GREY, text=INK),
}
MEMORY_LOOKS = {
    "parameters": Look(BLUE, text=WHITE),
    "code": Look(GREY, text=INK),
    "activations": Look(YELLOW, "////", HATCH),
    "temporary data": Look(ORANGE, text=WHITE),
    "other": Look(GREEN, text=WHITE),
}
"""For groups of categories on top of each other: dark and light in turn."""
IPU_LOOKS = (Look(BLUE), Look(YELLOW), Look(GREEN), Look(ORANGE))
"""For bars of up to four IPUs side by side."""
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
