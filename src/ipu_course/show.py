"""Show figures, tables and profiles in a notebook, each figure with its point and a description."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Mapping, Protocol, Sequence, Union

from matplotlib.figure import Figure

from ipu_course import engine, figures
from ipu_course.figures.bars import bars_figure
from ipu_course.figures.shown import display_raw, picture
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile

__all__ = [
    "caption",
    "cycles",
    "drawing",
    "escaped",
    "figure",
    "host_and_device",
    "liveness",
    "memory",
    "memory_per_tile",
    "table",
    "table_html",
    "table_text",
    "timeline",
]

KIB = 1024
Profiles = Union["Profile", None, Mapping[str, "Profile | None"]]


class Drawn(Protocol):
    """A concept drawing of ``ipu_course.figures``."""

    @property
    def figure(self) -> Figure:
        """What is drawn."""

    @property
    def description(self) -> str:
        """What it shows, in words."""


def figure(drawn: Figure, takeaway: str, description: str | None = None) -> None:
    """Show a figure with its point, ``takeaway``, as the caption.

    ``description`` says with numbers what the figure shows, as its alternative text.
    """
    if drawn is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    if description is None:  # a lesson of the first form, whose caption is the description
        figures.show(drawn, takeaway)
        return
    display_raw(*picture(drawn, description))
    display_raw(*caption(takeaway))


def caption(takeaway: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the line below a figure as data and metadata of a notebook's output."""
    return {"text/markdown": f"*{takeaway}*", "text/plain": takeaway}, {}


def drawing(drawn: Drawn, takeaway: str) -> None:
    """Show a concept drawing with its point, ``takeaway``, as the caption."""
    figure(drawn.figure, takeaway, drawn.description)


def memory(profiles: Profiles, takeaway: str | None = None) -> None:
    """Show the fullest tile of each program, by category, in KiB: bars and a table, for up to 3 programs."""
    named = _named(profiles)
    if not named:
        return
    fullest = {name: max(profile.memory, key=lambda ipu: ipu.max_tile_bytes) for name, profile in named.items()}
    sizes = {name: dict(ipu.bytes_by_category) for name, ipu in fullest.items()}
    largest = {key: max(each.get(key, 0.0) for each in sizes.values()) for each in sizes.values() for key in each}
    order = sorted((key for key, size in largest.items() if size >= KIB), key=lambda key: -largest[key])
    kib = {name: [each.get(key, 0.0) / KIB for key in order] for name, each in sizes.items()}
    limit = next(iter(named.values())).memory.tile_bytes / KIB
    words = "; ".join(
        f"{name} {ipu.max_tile_bytes / KIB:.0f} KiB in all, most of it {order_of(sizes[name])}"
        for name, ipu in fullest.items()
    )
    drawn = bars_figure(order, kib, "KiB on the fullest tile", "What fills the fullest tile (modelled)", form="{:.0f}")
    described = f"KiB of the fullest tile by category, modelled: {words}. A tile has {limit:.0f} KiB."
    figure(drawn, takeaway or described, described if takeaway else None)
    rows: list[dict[str, object]] = []
    for name, ipu in fullest.items():
        fits = engine.fits_in_a_word(named[name])
        total = ipu.max_tile_bytes / KIB
        rows.append({"program": name, "fullest tile": f"{total:.0f} KiB", "of": f"{limit:.0f} KiB", "fits": fits})
    table(rows, index="program")


def order_of(sizes: Mapping[str, float]) -> str:
    """Name the two largest categories."""
    largest = sorted(sizes, key=lambda key: -sizes[key])[:2]
    return " and ".join(largest)


def memory_per_tile(profile: Profile | None, takeaway: str | None = None) -> None:
    """Show how full every tile is."""
    _show("memory per tile", profile, takeaway)


def liveness(profile: Profile | None, takeaway: str | None = None) -> None:
    """Show how much not-always-live memory the program holds while it runs."""
    _show("liveness", profile, takeaway)


def timeline(profile: Profile | None, takeaway: str | None = None) -> None:
    """Show what every IPU does during a call."""
    _show("timeline", profile, takeaway)


def host_and_device(profile: Profile | None, takeaway: str | None = None) -> None:
    """Show when host and device work during a call."""
    _show("host and device", profile, takeaway)


def cycles(profile: Profile | None, takeaway: str | None = None) -> None:
    """Show what the tiles' cycles are spent on."""
    _show("cycles", profile, takeaway)


def table(rows: Sequence[Mapping[str, object]], index: str | None = None) -> None:
    """Show rows as a table; ``index`` names the column whose cells are row headings. Without rows, print why."""
    if not rows:
        print("The table has no rows." if engine.is_available() else engine.NOT_HERE)
        return
    display_raw({"text/html": table_html(rows, index), "text/plain": table_text(rows)}, {})


def table_html(rows: Sequence[Mapping[str, object]], index: str | None = None) -> str:
    """Return the rows as an HTML table whose headings carry their scope."""
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    lines = []
    for row in rows:
        cells = "".join(_cell(row.get(name, ""), name == index) for name in columns)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def escaped(text: object) -> str:
    """Return the text with its HTML characters escaped."""
    return html.escape(str(text))


def _cell(value: object, heading: bool) -> str:
    text = escaped(value)
    return f'<th scope="row">{text}</th>' if heading else f"<td>{text}</td>"


def table_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as text in aligned columns."""
    if not rows:
        return ""
    lines = [[str(name) for name in rows[0]], *([str(row.get(name, "")) for name in rows[0]] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def _named(profiles: Profiles) -> dict[str, Profile]:
    """Return the profiles that exist by name, and print that the model is missing when there is none."""
    given: Mapping[str, Any] = profiles if isinstance(profiles, Mapping) else {"this program": profiles}
    named = {name: profile for name, profile in given.items() if profile}
    if not named:
        print(engine.NOT_HERE)
    return named


def _show(kind: str, profile: Profile | None, takeaway: str | None) -> None:
    if not profile:
        print(engine.NOT_HERE)
        return
    drawn, words = engine.figure(kind, profile)
    described = f"{words} (modelled)" if not words.endswith(".") else f"{words[:-1]} (modelled)."
    figure(drawn, takeaway or described, described if takeaway else None)
