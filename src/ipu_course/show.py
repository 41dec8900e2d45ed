"""Show figures, tables and profiles in a notebook, each figure with its point and a description."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Union

from matplotlib.figure import Figure

from ipu_course import engine
from ipu_course.figures import Drawing
from ipu_course.figures.bars import bars_figure
from ipu_course.figures.shown import caption, display_raw, picture
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile

__all__ = [
    "cycles",
    "drawing",
    "escaped",
    "figure",
    "host_and_device",
    "memory",
    "memory_per_tile",
    "table",
    "table_html",
    "table_text",
    "timeline",
]

KIB = 1024
Profiles = Union["Profile", None, Mapping[str, "Profile | None"]]


def figure(drawn: Figure, takeaway: str, description: str) -> None:
    """Show a figure with its point, ``takeaway``, as the caption.

    ``description`` says with numbers what the figure shows, as its alternative text.
    """
    if drawn is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    display_raw(*picture(drawn, description))
    display_raw(*caption(takeaway))


def drawing(drawn: Drawing, takeaway: str) -> None:
    """Show a drawing of ``ipu_course.figures`` with its point, ``takeaway``, as the caption."""
    figure(drawn.figure, takeaway, drawn.description)


def memory(profiles: Profiles, takeaway: str) -> None:
    """Show the fullest tile of each program by category, in KiB: bars and a table, for up to 3 programs."""
    given: Mapping[str, Any] = profiles if isinstance(profiles, Mapping) else {"this program": profiles}
    named = {name: profile for name, profile in given.items() if profile}
    if not named:
        print(engine.NOT_HERE)
        return
    fullest = {name: max(profile.memory, key=lambda ipu: ipu.max_tile_bytes) for name, profile in named.items()}
    kib = {name: {key: size / KIB for key, size in ipu.bytes_by_category.items()} for name, ipu in fullest.items()}
    limit = next(iter(named.values())).memory.tile_bytes / KIB
    words = "; ".join(
        f"{name} {ipu.max_tile_bytes / KIB:.0f} KiB in all, most of it {_two_largest(kib[name])}"
        for name, ipu in fullest.items()
    )
    figure(_memory_figure(kib), takeaway,
           f"KiB of the fullest tile by category, modelled: {words}. A tile has {limit:.0f} KiB.")  # fmt: skip
    rows = [
        {
            "program": name,
            "fullest tile": f"{ipu.max_tile_bytes / KIB:.0f} KiB",
            "of": f"{limit:.0f} KiB",
            "fits": engine.fits_in_a_word(named[name]),
        }
        for name, ipu in fullest.items()
    ]
    table(rows, index="program")


def _memory_figure(kib: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the categories that have at least 1 KiB somewhere, the largest first."""
    largest = {key: max(sizes.get(key, 0.0) for sizes in kib.values()) for sizes in kib.values() for key in sizes}
    order = sorted((key for key, size in largest.items() if size >= 1), key=lambda key: -largest[key])
    values = {name: [sizes.get(key, 0.0) for key in order] for name, sizes in kib.items()}
    return bars_figure(
        order, values, "KiB on the fullest tile", "What fills the fullest tile (modelled)", form="{:.0f}"
    )


def _two_largest(sizes: Mapping[str, float]) -> str:
    return " and ".join(sorted(sizes, key=lambda key: -sizes[key])[:2])


def memory_per_tile(profile: Profile | None, takeaway: str) -> None:
    """Show how full every tile is."""
    _show("memory per tile", profile, takeaway)


def timeline(profile: Profile | None, takeaway: str) -> None:
    """Show what every IPU does during a call."""
    _show("timeline", profile, takeaway)


def host_and_device(profile: Profile | None, takeaway: str) -> None:
    """Show when host and device work during a call."""
    _show("host and device", profile, takeaway)


def cycles(profile: Profile | None, takeaway: str) -> None:
    """Show what the tiles' cycles are spent on."""
    _show("cycles", profile, takeaway)


def _show(kind: str, profile: Profile | None, takeaway: str) -> None:
    if not profile:
        print(engine.NOT_HERE)
        return
    drawn, words = engine.figure(kind, profile)
    figure(drawn, takeaway, f"{words[:-1]} (modelled)." if words.endswith(".") else f"{words} (modelled)")


def table(rows: Sequence[Mapping[str, object]], index: str | None = None) -> None:
    """Show rows as a table; ``index`` names the column whose cells are row headings. Without rows, print why."""
    if not rows:
        print("The table has no rows." if engine.is_available() else engine.NOT_HERE)
        return
    display_raw({"text/html": table_html(rows, index), "text/plain": table_text(rows)}, {})


def table_html(rows: Sequence[Mapping[str, object]], index: str | None = None) -> str:
    """Return the rows as an HTML table whose headings carry their scope, or nothing for no rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(_cell(row.get(name, ''), name == index) for name in columns)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def escaped(text: object) -> str:
    """Return the text with its HTML characters escaped."""
    return html.escape(str(text))


def _cell(value: object, heading: bool) -> str:
    text = escaped(value)
    return f'<th scope="row">{text}</th>' if heading else f"<td>{text}</td>"


def table_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as text in aligned columns, or nothing for no rows."""
    if not rows:
        return ""
    lines = [[str(name) for name in rows[0]], *([str(row.get(name, "")) for name in rows[0]] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)
