"""Published figures of a lesson, fetched by key so that a notebook's source gives none of them away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ipu_course.lesson_data import broken, entry_of, read_table

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
    return entry_of(published_figures(folder), folder / FILE_NAME, "figure", key)


def published_figures(folder: Path) -> dict[str, PublishedFigure]:
    """Return all published figures of a lesson by key; none where the lesson has no file of them.

    Raises ``ValueError`` for a file that breaks a rule.
    """
    file = folder / FILE_NAME
    figures: dict[str, PublishedFigure] = {}
    for key, entry in read_table(file).items():
        if not isinstance(entry, dict):
            raise broken(file, f"{key!r} is no table of value, text, kind and source")
        try:
            figures[key] = PublishedFigure(**entry)
        except (TypeError, ValueError) as problem:
            raise broken(file, problem) from problem
    return figures
