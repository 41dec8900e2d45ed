"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1, indent: int = 2) -> list[str]:
    """Return the rows of a table as lines: the first `left` columns flush left, the others flush right.

    Rows may be shorter than the longest one.
    """
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows)))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return lines
