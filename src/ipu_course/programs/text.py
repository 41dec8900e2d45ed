"""Text for terminals: aligned tables, wrapped notes, and numbers with their nouns."""

from __future__ import annotations

import textwrap
from typing import Container, Sequence

WIDTH = 110


def aligned(rows: Sequence[Sequence[str]], left: Container[int], heads: int = 1) -> str:
    """Return rows as aligned columns with a rule below the first ``heads`` rows.

    The columns numbered in ``left`` are texts, which start at the left; all others are numbers and end at the right.
    """
    if len(rows) <= heads:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    lines.insert(heads, "-" * max(len(line.rstrip()) for line in lines))
    return "\n".join(line.rstrip() for line in lines)


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return the text in lines of at most 110 characters; those after the first are indented by two more."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun: "1 call", "2 calls"."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"
