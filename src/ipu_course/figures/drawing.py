"""A drawing: a figure with the words that say what it shows."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure and its description, which is the alternative text and carries the numbers."""

    figure: Figure
    description: str
