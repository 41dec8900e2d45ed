"""What every figure is drawn on: the style, the sizes, and the pieces that several have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ipu_model.report.looks import GREY, INK, Look

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
PLOT_POINTS = (WIDTH_INCHES - 1.2) * 72
"""About how many points an axis is wide, for deciding whether a text has room."""
CHARACTER_POINTS = 4.9
"""About how wide a character of the small size is."""
SMALL = 8
_KEYS_A_ROW = 5
_LAST_LETTER = 0x500  # of Latin, Greek and Cyrillic
_LONGEST_NAME = 44
_NOTE_SHARE = 0.11  # of the height of axes, for a line of text above a point


@contextlib.contextmanager
def in_style() -> Iterator[None]:
    """Let matplotlib draw in the style of the figures, for a block or a function; the caller's own comes back after."""
    # A dollar sign in a name begins no formula.
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        yield


def words(text: object) -> str:
    line = " ".join(str(text).split())
    known = "".join(c if ord(c) < _LAST_LETTER and c.isprintable() else "?" for c in line)
    return known if len(known) <= _LONGEST_NAME else f"{known[: _LONGEST_NAME - 3]}..."


def new_figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH_INCHES, height), layout="constrained")


def area(look: Look, line: float = 0.6) -> dict[str, Any]:
    return {"facecolor": look.face, "edgecolor": look.edge, "hatch": look.hatch, "linewidth": line}


def plate(look: Look) -> dict[str, Any] | None:
    """Return the box for dark text on a hatched area, in the lighter of its two colours; plain areas need none."""

    def lightness(colour: str) -> float:  # on grey paper, from 0 to 1 (weights of Rec. 709)
        red, green, blue = to_rgb(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    if not look.hatch:
        return None
    return {"facecolor": max(look.face, look.edge, key=lightness), "edgecolor": "none", "pad": 1.2}


def write_inside(axes: Axes, at: tuple[float, float], text: str, look: Look, **more: Any) -> None:
    axes.text(*at, text, ha="center", va="center", color=look.text, bbox=plate(look), **more)


def key(name: str, look: Look) -> Patch:
    return Rectangle((0.0, 0.0), 1, 1, label=name, **{**area(look), "edgecolor": look.edge if look.hatch else INK})


def legend_below(figure: Figure, keys: Iterable[Any], columns: int = _KEYS_A_ROW) -> None:
    entries = list(keys)
    if entries:
        rows = -(-len(entries) // columns)
        even = -(-len(entries) // rows)
        figure.legend(handles=entries, loc="outside lower center", ncol=even, frameon=False, fontsize=9)


def only_grid(axes: Axes, axis: Any) -> None:
    axes.grid(axis=axis, color=GREY)
    axes.set_axisbelow(True)


def without_frame(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def border(axes: Axes, at: float, width: float) -> None:
    axes.axvline(at, color="white", linewidth=width)
    axes.axvline(at, color=INK, linestyle=":", linewidth=1)


def note_point(axes: Axes, point: tuple[float, float], text: str, line: float) -> None:
    """Write `text` beside and above a point, clear of the horizontal line at `line`."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    at = line if point[1] <= line < point[1] + _NOTE_SHARE * (high - low) else point[1]
    goes_right = point[0] < left + 0.62 * (right - left)
    words: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "fontsize": 9}
    side = "left" if goes_right else "right"
    axes.annotate(text, (point[0], at), (8 if goes_right else -8, 3), ha=side, **words)


def nothing_here(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
