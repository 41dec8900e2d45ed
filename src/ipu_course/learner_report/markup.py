"""Pieces of HTML. Every text that comes from outside goes through ``text`` here."""

from __future__ import annotations

import html
from typing import Iterable, Sequence

GENERATOR = "ipu_course report"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def text(words: object) -> str:
    """``words`` so that a browser shows them and nothing else."""
    return html.escape(visible(str(words)), quote=True)


def visible(words: str) -> str:
    """``words`` with the characters that no page may hold replaced by their codes."""
    return "".join(c if _is_allowed(c) else f"\\x{ord(c):02x}" for c in words)


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of plain words."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{text(words)}</p>"


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading; ``parts`` are HTML already."""
    body = "\n".join(part for part in parts if part)
    opening = f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">'
    return f"{opening}{text(title)}</h2>\n{body}\n</section>"


def card(title: str, value: str, details: str) -> str:
    """One fact of the summary."""
    return (
        f'<div class="card"><dt>{text(title)}</dt><dd class="value">{text(value)}</dd>'
        f'<dd class="details">{text(details)}</dd></div>'
    )


def items(pieces: Iterable[str]) -> str:
    """A list of plain words."""
    return "<ul>" + "".join(f"<li>{text(each)}</li>" for each in pieces) + "</ul>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, numbers: Sequence[int] = (), kind: str = ""
) -> str:
    """A table of plain words; the first cell of a row is its heading, columns in ``numbers`` stand to the right."""
    kinds = [' class="number"' if place in numbers else "" for place in range(len(head))]
    titles = "".join(f'<th scope="col"{kind}>{text(title)}</th>' for title, kind in zip(head, kinds))
    body = "\n".join(_row(row, kinds) for row in rows)
    of_kind = f' class="{kind}"' if kind else ""
    # The box can be scrolled with the keyboard where a window is too narrow for the table.
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0">'
        f"<table{of_kind}>"
        f"<caption>{text(caption)}</caption>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def page(title: str, style: str, body: str) -> str:
    """A whole page that needs nothing else and may load nothing."""
    return (
        '<!DOCTYPE html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="{GENERATOR}">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def is_own_page(start: str) -> bool:
    """Whether a file that starts so is a page made by ``page``."""
    return start.startswith("<!DOCTYPE html>") and f'<meta name="generator" content="{GENERATOR}">' in start


def _row(row: Sequence[str], kinds: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(rest, kinds[1:]))
    return f'<tr><th scope="row"{kinds[0]}>{text(first)}</th>{cells}</tr>'


def _is_allowed(character: str) -> bool:
    code = ord(character)
    return character in "\n\t" or not (
        code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    )
