"""How things look in every figure of the course: each meaning has one colour and one hatching.

Colours are from Okabe and Ito's palette. Neighbours differ in lightness, so that they stay apart in grey, and the
hatching says the same once more. The reports of the IPU Model use the same looks, which a test compares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ipu_course.figures.style import BLUE, GREEN, GREY, HATCH, INK, ORANGE, PALE_SLATE, SLATE, YELLOW

SKY, PURPLE, WHITE, BLACK = "#56B4E9", "#CC79A7", "#FFFFFF", "#111111"


class Look(NamedTuple):
    """How an area is filled: its colour, its hatching, the colour of its edge and hatching, and that of text on it."""

    face: str
    hatch: str = ""
    edge: str = WHITE
    text: str = BLACK

    def area(self, line: float = 0.6) -> dict[str, Any]:
        """Return the settings of a matplotlib patch; ``line`` is the width of its outline in points."""
        return {"facecolor": self.face, "edgecolor": self.edge, "hatch": self.hatch, "linewidth": line}


# What happens over time.
FORWARD = COMPUTE = Look(BLUE, text=WHITE)
RECOMPUTE = Look(SKY, "\\\\\\\\", BLUE)
BACKWARD = Look(YELLOW, "////", HATCH)
UPDATE = Look(ORANGE, text=WHITE)
WAIT = Look(GREY, text=INK)
SYNC = Look(WHITE, "xxxx", INK)
EXCHANGE = Look(WHITE, "||||", PURPLE)
LINK = Look(PURPLE)
LOAD = Look(GREEN, "----", WHITE)
CALL = Look(WHITE, "++++", GREEN)

# What memory holds.
WEIGHTS = Look(BLUE, text=WHITE)
OPTIMISER_STATE = Look(SKY, "\\\\\\\\", BLUE)
ACTIVATIONS = Look(YELLOW, "////", HATCH)
CODE = Look(GREY, text=INK)
TEMPORARY = Look(ORANGE, text=WHITE)
OTHER = Look(GREEN, text=WHITE)

# What hardware is made of.
CHIP = Look("#F7F7F7", edge=INK)
MEMORY = Look("#FFF4D6", edge=INK)
HOST = Look("#E3F3EC", edge=GREEN)

# What figures compare: programs, settings, modelled and published results. These looks have no meaning of their own.
COMPARED = (Look(SLATE, text=WHITE), Look(PALE_SLATE, "....", SLATE), Look(WHITE, edge=SLATE))
