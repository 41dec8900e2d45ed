"""Captions of a lesson, fetched by key so that the cell that reveals a prediction does not say its result before."""

from __future__ import annotations

from pathlib import Path

from ipu_course.lesson_data import broken, entry_of, read_table

FILE_NAME = "takeaways.json"


def takeaway_of(folder: Path, key: str) -> str:
    """Return the caption called ``key`` in the ``takeaways.json`` of a lesson's ``folder``.

    Raises ``ValueError`` for a key that the file does not have, and for a file that is no table of texts.
    """
    file = folder / FILE_NAME
    takeaways: dict[str, str] = {}
    for name, text in read_table(file).items():
        if not isinstance(text, str) or not text:
            raise broken(file, f"{name!r} has no text")
        takeaways[name] = text
    return entry_of(takeaways, file, "caption", key)
