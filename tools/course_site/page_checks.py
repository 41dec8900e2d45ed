"""What every page of the built site must have: links that lead somewhere, one title, headings in order, no network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

HEADING = re.compile(r"^h[1-6]$")
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}
"""Elements that a browser loads without being asked, and the attribute with the address."""
STYLE_LOADS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


@dataclass(frozen=True)
class BuiltPage:
    """A page of the site: its file, its elements, and the anchors that links may name."""

    file: Path
    elements: BeautifulSoup
    anchors: Counter[str]


def problems(site: Path) -> list[str]:
    """Return what is wrong with the pages and styles in the folder ``site``, one sentence each."""
    site = site.resolve()
    pages = {file: _read(file) for file in sorted(site.rglob("*.html"))}
    found = [
        f"{page.file.relative_to(site)}: {words}"
        for page in pages.values()
        for words in [*_headings(page), *_anchors(page), *_loads(page), *_links(page, pages)]
    ]
    for style in sorted(site.rglob("*.css")):
        addresses = STYLE_LOADS.findall(style.read_text(encoding="utf-8"))
        found += [f"{style.relative_to(site)}: the style loads {address}" for address in addresses]
    return found


def _read(file: Path) -> BuiltPage:
    elements = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
    return BuiltPage(file, elements, Counter(str(element["id"]) for element in elements.find_all(id=True)))


def _headings(page: BuiltPage) -> Iterator[str]:
    headings = page.elements.find_all(HEADING)
    levels = [int(heading.name[1]) for heading in headings]
    if levels.count(1) != 1:
        yield f"the page has {levels.count(1)} headings of level 1"
    for before, level, heading in zip([0, *levels], levels, headings):
        if level > before + 1:
            yield f"the heading {heading.get_text()!r} has level {level} after level {before}"


def _anchors(page: BuiltPage) -> Iterator[str]:
    return (f"{count} elements have the id {name!r}" for name, count in page.anchors.items() if count > 1)


def _loads(page: BuiltPage) -> Iterator[str]:
    for element in page.elements.find_all(list(LOADS)):
        address = str(element.get(LOADS[element.name]) or "")
        if _is_elsewhere(address):
            yield f"the page loads {address}"


def _links(page: BuiltPage, pages: dict[Path, BuiltPage]) -> Iterator[str]:
    for address in _local_addresses(page.elements):
        parts = urlsplit(address)
        target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
        if not target.is_file():
            yield f"{address} is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{address} names an anchor that the page does not have"


def _local_addresses(elements: BeautifulSoup) -> Iterator[str]:
    for element in elements.find_all(
        lambda each: isinstance(each, Tag) and (each.has_attr("href") or each.has_attr("src"))
    ):
        address = str(element.get("href") or element.get("src") or "")
        if address and not urlsplit(address).scheme and not _is_elsewhere(address):
            yield address


def _is_elsewhere(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https")
