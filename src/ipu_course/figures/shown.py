"""Outputs of a notebook: pictures with their descriptions, captions, and how to display them."""

from __future__ import annotations

import io
from typing import Any, Dict, Tuple

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from matplotlib.figure import Figure

from ipu_course.figures.style import DOTS_PER_INCH, in_style

SHOWN_PIXELS_AN_INCH = 100

Output = Tuple[Dict[str, Any], Dict[str, Any]]
"""Data and metadata of a notebook's output."""


def picture(figure: Figure, description: str) -> Output:
    """Return the figure as an output; ``description`` is its alternative text."""
    image = {"alt": description, "width": round(SHOWN_PIXELS_AN_INCH * figure.get_figwidth())}
    return {"image/png": png(figure), "text/plain": description}, {"image/png": image}


def caption(takeaway: str) -> Output:
    """Return the line below a figure as an output."""
    return {"text/markdown": f"*{takeaway}*", "text/plain": takeaway}, {}


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG in the course's resolution."""
    with in_style():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
    return buffer.getvalue()


class _NoHandle:
    """Stands for a display handle where nothing can be renewed."""

    def update(self, data: dict[str, Any], **_: Any) -> None:
        """Print the words of what would be shown."""
        print(data["text/plain"])


def display_raw(data: dict[str, Any], metadata: dict[str, Any], **arguments: Any) -> Any:
    """Display a notebook's output as it is; ``arguments`` are IPython's. Outside IPython its words are printed."""
    if not InteractiveShell.initialized():
        print(data["text/plain"])
        return _NoHandle()
    return display(data, metadata=metadata, raw=True, **arguments)  # type: ignore[no-untyped-call]  # IPython's
