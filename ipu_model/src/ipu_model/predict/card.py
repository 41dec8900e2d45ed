"""A profile in brief: one line for a prompt, and a card for notebooks.

The card takes its colours from the page around it, so that it reads in light and dark themes, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import shorten

from ipu_model.predict.verdict import Verdict

# Readable with white letters on them, and on light and dark pages.
_COLOURS = {Verdict.FITS: "#23784a", Verdict.CLOSE: "#9a6200", Verdict.DOES_NOT_FIT: "#b3372a"}
_MOST_CHARACTERS = 180
_MOST_DRAWN = 1.5
"""The share of a tile at which the bar of memory ends; a full tile is at two thirds of it."""


@dataclass(frozen=True)
class Brief:
    """What a profile says in brief.

    `memory_share` is what the fullest tile needs of its memory; rates are samples a second, and `low` and `high` are
    the ends of the model's band around the device's.
    """

    name: str
    setting: str
    verdict: Verdict
    memory_share: float
    end_to_end: float
    device: float
    low: float
    high: float
    limited_by: str
    notes: Sequence[str] = ()


def line_of(brief: Brief) -> str:
    """Return one line: what was modelled, whether it fits, how fast it is and what limits it."""
    line = (
        f"Profile({brief.name}: {brief.setting}; {brief.verdict} (fullest tile at {brief.memory_share:.1%}); "
        f"{_rate(brief.end_to_end)} samples/s modelled, limited by {brief.limited_by})"
    )
    return "".join(c if c.isprintable() else "?" for c in line)


def card_of(brief: Brief) -> str:
    """Return the card as a piece of HTML; every text in it is escaped."""
    rows = [
        ("end to end", f"{_rate(brief.end_to_end)} samples/s"),
        ("device alone", f"{_rate(brief.device)} samples/s ({_rate(brief.low)} to {_rate(brief.high)})"),
        ("limited by", brief.limited_by),
    ]
    lines = "".join(
        f'<span style="opacity:.75">{escape(name)}</span><span>{escape(value)}</span>' for name, value in rows
    )
    notes = "".join(
        f'<div style="margin-top:.4em;opacity:.85">{escape(_shortened(note))}</div>' for note in brief.notes
    )
    return (
        f'<div style="{_CARD}"><div><b>{escape(brief.name)}</b> '
        f'<span style="opacity:.75">{escape(brief.setting)}</span></div>{_memory(brief)}'
        f'<div style="display:grid;grid-template-columns:max-content auto;column-gap:.9em">{lines}</div>'
        f'{notes}<div style="margin-top:.4em;opacity:.65;font-size:.85em">All numbers are modelled, none is measured.'
        "</div></div>"
    )


_CARD = (
    "display:inline-block;max-width:44em;padding:.7em 1em;border:1px solid rgba(128,128,128,.5);border-radius:.5em;"
    "font-family:system-ui,sans-serif;font-size:.95em;line-height:1.45;color:inherit;text-align:left"
)


def _memory(brief: Brief) -> str:
    """Return the verdict, and a bar of what the fullest tile needs with a mark where the tile is full."""
    colour, share = _COLOURS[brief.verdict], f"fullest tile at {brief.memory_share:.1%}"
    filled, full = (100 * min(part, _MOST_DRAWN) / _MOST_DRAWN for part in (brief.memory_share, 1.0))
    return (
        '<div style="display:flex;align-items:center;gap:.7em;margin:.5em 0;flex-wrap:wrap">'
        f'<span style="background:{colour};color:#fff;border-radius:.3em;padding:.1em .6em;font-weight:600">'
        f"{escape(str(brief.verdict))}</span>"
        f'<span role="img" aria-label="{escape(share)}" style="position:relative;flex:1;min-width:10em;height:.8em;'
        'border-radius:.2em;background:rgba(128,128,128,.25);overflow:hidden">'
        f'<span style="position:absolute;left:0;top:0;bottom:0;width:{filled:.2f}%;background:{colour}"></span>'
        f'<span style="position:absolute;left:{full:.2f}%;top:0;bottom:0;border-left:2px solid currentColor"></span>'
        f"</span><span>{escape(share)}</span></div>"
    )


def _shortened(note: str) -> str:
    """Return the beginning of a note, whole sentences if one is short enough; reports have all of it."""
    end = note.rfind(". ", 0, _MOST_CHARACTERS)
    if len(note) > _MOST_CHARACTERS and end > 0:
        return note[: end + 1]
    return shorten(note, _MOST_CHARACTERS, placeholder=" ...")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
