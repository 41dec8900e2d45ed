"""Captions of a lesson, fetched by key so that the cell that reveals a prediction does not say its result before."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

FILE_NAME = "takeaways.json"


def takeaway_of(folder: Path, key: str) -> str:
    """Return the caption called ``key`` in the ``takeaways.json`` of a lesson's ``folder``.

    Raises ``ValueError`` for a key that the file does not have.
    """
    takeaways = takeaways_of(folder)
    if key not in takeaways:
        nearest = get_close_matches(key, takeaways, n=1, cutoff=0) or ["none at all"]
        raise ValueError(f"{folder.name}/{FILE_NAME} has no caption {key!r}; the nearest is {nearest[0]!r}")
    return takeaways[key]


def takeaways_of(folder: Path) -> dict[str, str]:
    """Return all captions of a lesson by key; none where the lesson has no file of them.

    Raises ``ValueError`` for a file that is no table of texts.
    """
    file = folder / FILE_NAME
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{folder.name}/{FILE_NAME}: {problem}") from problem
    if not isinstance(content, dict) or not all(isinstance(text, str) and text for text in content.values()):
        raise ValueError(f"{folder.name}/{FILE_NAME} gives each key one text")
    return content
