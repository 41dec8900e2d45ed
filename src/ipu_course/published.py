"""Published figures of a lesson, fetched by key so that a notebook's source gives none of them away."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

FILE_NAME = "published.json"
KINDS = ("published", "derived")


@dataclass(frozen=True)
class PublishedFigure:
    """A figure that somebody published, or that follows from published ones (``kind`` is then "derived").

    ``text`` is the figure with its unit, and ``source`` names the reference, such as "[1]".
    """

    value: float
    text: str
    kind: str
    source: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {' or '.join(KINDS)}, not {self.kind!r}")

    @property
    def line(self) -> str:
        """The figure as learners read it: its kind, the figure with its unit, and the source."""
        return f"{self.kind}: {self.text} {self.source}"


def published_figure(folder: Path, key: str) -> PublishedFigure:
    """Return the figure called ``key`` in the ``published.json`` of a lesson's ``folder``.

    Raises ``ValueError`` for a key that the file does not have.
    """
    figures = published_figures(folder)
    if key not in figures:
        nearest = get_close_matches(key, figures, n=1, cutoff=0) or ["none at all"]
        raise ValueError(f"{folder.name}/{FILE_NAME} has no figure {key!r}; the nearest is {nearest[0]!r}")
    return figures[key]


def published_figures(folder: Path) -> dict[str, PublishedFigure]:
    """Return all published figures of a lesson by key; none where the lesson has no file of them.

    Raises ``ValueError`` for a file that breaks a rule.
    """
    file = folder / FILE_NAME
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {key: PublishedFigure(**entry) for key, entry in content.items()}
    except (TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"{folder.name}/{FILE_NAME}: {problem}") from problem
