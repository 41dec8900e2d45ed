"""Format numbers and tables as plain text, with units and without meaningless digits."""

from __future__ import annotations

from collections.abc import Sequence

KIB = 1024
MIB = 1024 * 1024


def whole(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Return a number with about four digits: 12,345, 123.4, 1.234."""
    size = abs(value)
    if size >= 1000 or value == 0:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 10 else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:,.1f} %"


def change(before: float, after: float) -> str:
    """Return a change in per cent, as a factor if it is ten times or a tenth, or as "same", "new" or "gone"."""
    if before == after:
        return "same"
    if before == 0:
        return "new"
    if after == 0:
        return "gone"
    factor = after / before
    if factor >= 10:
        return f"x {short(factor)}"
    if 0 < factor <= 1 / 10:
        return f"x 1/{short(before / after)}"
    return f"{100 * (factor - 1):+,.1f} %"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: µs, ms, s or min."""
    if abs(seconds) >= 90:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes:,} min {rest:02} s"
    unit, factor = time_unit(abs(seconds))
    return f"{short(seconds * factor)} {unit}" if seconds else "0 s"


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit for an axis that is `seconds` long, and how many of it a second has."""
    if seconds >= 1:
        return "s", 1.0
    return ("ms", 1e3) if seconds * 1e3 >= 1 else ("µs", 1e6)


def size(count: float) -> str:
    for unit, factor in (("GiB", KIB * MIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} B"


def rate(per_second: float, unit: str) -> str:
    """Return a rate in the unit with K, M, G or T before it, as in "31.2 TFLOP/s"."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(per_second) >= factor:
            return f"{per_second / factor:,.1f} {prefix}{unit}"
    return f"{per_second:,.1f} {unit}"


def counted(count: int, thing: str) -> str:
    """Return a number of things: "1 note", "3 notes"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def plain(text: str) -> str:
    """Return a text on one line in ASCII; what has no plain spelling is written as an escape sequence."""
    spelled = text.replace("µ", "u").replace("×", "x").replace("±", "+-").replace("–", "-")
    one_line = " ".join(spelled.split())
    printable = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in one_line)
    return printable.encode("ascii", "backslashreplace").decode("ascii")


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1, indent: int = 2) -> list[str]:
    """Return a table's lines, the first `left` columns flush left, the others right; rows may be short."""
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows)))]
    cells = ((*map(str.ljust, row[:left], widths), *map(str.rjust, row[left:], widths[left:])) for row in rows)
    return [(" " * indent + "  ".join(row)).rstrip() for row in cells]
