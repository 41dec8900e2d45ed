"""What every matplotlib figure shares: the font, the sizes, the lines. `report.looks` has how areas are filled."""

from __future__ import annotations

from typing import Any

from ipu_model.report.looks import BLUE, GREEN, INK, ORANGE

LINE_STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, ":", "^"))
# Any: matplotlib types the settings as one Literal of all their names, and older versions as plain strings.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.8,
}
WIDTH_INCHES = 9.5
DOTS_PER_INCH = 160
