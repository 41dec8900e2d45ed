"""Pieces of HTML. Every text that comes from outside goes through `text` here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Number:
    """A cell with a number: how it reads, and the value that a table is sorted by."""

    shown: str
    value: float


Cell = str | Number
_IS_NUMBER = ' class="number"'


def text(words: object) -> str:
    """Return `words` so that a browser shows them and nothing else; characters that no page may hold are named."""
    return html.escape("".join(c if _is_allowed(c) else f"\\x{ord(c):02x}" for c in str(words)), quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str, *, sortable: bool = False) -> str:
    """Return a table with a caption; first cells of rows are headings, numbers stand to the right."""
    lines = list(rows)
    kind = ' class="sortable"' if sortable else ""
    body = "\n".join(map(_row, lines))
    are_numbers = [
        any(isinstance(row[place], Number) for row in lines if place < len(row)) for place in range(len(head))
    ]
    titles = "".join(
        f'<th scope="col"{_IS_NUMBER * (place > 0 and is_number)}>{text(title)}</th>'
        for place, (title, is_number) in enumerate(zip(head, are_numbers))
    )
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table{kind}>'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def card(title: str, value: str, details: str, kind: str = "", more: str = "") -> str:
    """Return one card; `kind` is "good" or "bad" for verdicts, and `more` is HTML already."""
    words = f'<p class="details">{text(details)}</p>' if details else ""
    return f'<div class="card {kind}"><h3>{text(title)}</h3><p class="value">{text(value)}</p>{words}{more}</div>'


def section(name: str, title: str, *parts: str) -> str:
    """Return a section with a heading; empty parts are left out."""
    body = "\n".join(part for part in parts if part)
    opening = f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">'
    return f"{opening}{text(title)}</h2>\n{body}\n</section>"


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph of plain words; nothing for no words."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{text(words)}</p>" if words else ""


def code(words: str) -> str:
    """Return words that are typed as they stand."""
    return f"<code>{text(words)}</code>"


def items(pieces: Iterable[str]) -> str:
    """Return a list; its items are HTML already."""
    return "<ul>" + "".join(f"<li>{each}</li>" for each in pieces) + "</ul>"


def beside(*tables: str) -> str:
    """Return tables that stand beside one another where there is room."""
    return f'<div class="beside">{"".join(tables)}</div>'


def picture(svg: str | None, caption: str) -> str:
    """Return a figure with its caption; only the caption where there is no picture."""
    if svg is None:
        return paragraph(caption, "caption")
    return f'<figure><div class="scroll" tabindex="0">{svg}</div><figcaption>{text(caption)}</figcaption></figure>'


def folded(summary: str, body: str) -> str:
    """Return something that a reader opens."""
    return f"<details><summary>{text(summary)}</summary>\n{body}\n</details>"


def page(title: str, body: str) -> str:
    """Return a whole page that needs nothing else and may load nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{_data('report.css')}</style>\n</head>\n<body>\n{body}\n"
        f"<script>\n{_data('report.js')}</script>\n</body>\n</html>\n"
    )


def _row(row: Sequence[Cell]) -> str:
    first, *rest = row
    name = first.shown if isinstance(first, Number) else first
    return f'<tr><th scope="row">{text(name)}</th>' + "".join(map(_cell, rest)) + "</tr>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Number):
        return f'<td{_IS_NUMBER} data-value="{cell.value:.12g}">{text(cell.shown)}</td>'
    return f"<td>{text(cell)}</td>"


def _is_allowed(character: str) -> bool:
    code = ord(character)
    return character in "\n\t" or not (
        code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    )


def _data(name: str) -> str:
    return (files("ipu_model") / "data" / name).read_text(encoding="utf-8")
