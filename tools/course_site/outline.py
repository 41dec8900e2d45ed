"""What the site consists of: lessons, documents by heading, and the reference."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Sequence

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("outline.toml")


@dataclass(frozen=True)
class SitePart:
    """Documents under one ``heading``, as paths in the repository."""

    heading: str
    pages: Sequence[str]


@dataclass(frozen=True)
class ReferencePage:
    """A page of the reference: its title, and the modules whose docstrings it shows."""

    title: str
    modules: Sequence[str]

    @property
    def name(self) -> str:
        """The page's file name without its ending."""
        return self.modules[0].replace(".", "_")


@dataclass(frozen=True)
class Outline:
    """The whole site."""

    notebooks: Sequence[str]
    parts: Sequence[SitePart]
    reference: Sequence[ReferencePage]

    @property
    def documents(self) -> list[str]:
        """Every Markdown document that is a page, as a path in the repository."""
        return [page for part in self.parts for page in part.pages]


def read_outline(notebooks: Sequence[str], file: Path = FILE, root: Path = ROOT) -> Outline:
    """Return the outline in ``file`` with these ``notebooks``. Raises ``FileNotFoundError`` for a missing page."""
    content = _toml.loads(file.read_text(encoding="utf-8"))
    parts = [SitePart(part["heading"], _expanded(part["pages"], root)) for part in content["part"]]
    reference = [ReferencePage(page["title"], page["modules"]) for page in content["reference"]]
    return Outline(notebooks, parts, reference)


def _expanded(pages: Sequence[str], root: Path) -> list[str]:
    found: list[str] = []
    for page in pages:
        if "*" in page:
            found += sorted(file.relative_to(root).as_posix() for file in root.glob(page))
        elif (root / page).is_file():
            found.append(page)
        else:
            raise FileNotFoundError(f"{FILE.name} names {page}, and there is no such file")
    return found
