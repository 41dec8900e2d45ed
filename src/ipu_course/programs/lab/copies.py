"""The learner's own copies of the notebooks: made without outputs, never overwritten, renewed on request."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

from ipu_course.errors import CourseError
from ipu_course.progress.store import free_name, move_aside
from ipu_course.whole_files import read_whole, write_whole

Notebook = Dict[str, Any]  # a notebook as JSON

FOLDER_NAME = "my_course"
MOST_BYTES = 1 << 29  # of a notebook
MADE_FROM = "ipu_course"  # the entry of a copy's metadata that says which lesson it was made from
START_TAG = "learner-copy"  # of the cells that only copies have
LINKED_FOLDER = "linked"  # where the files go that a lesson links to outside the folder of the notebooks
_START_CELL = """from ipu_course import learner_copy

learner_copy.start("{number}")"""
_LESSON_NAME = re.compile(r"\d\d_[a-z0-9_]+\.ipynb")
_OUTSIDE_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")


@dataclass(frozen=True)
class Changes:
    """What a start changed in the learner's folder: copies made for the first time, and newer lessons put beside."""

    made: tuple[Path, ...]
    newer: tuple[Path, ...]


def usual_folder(notebooks: Path) -> Path:
    """Return the learner's folder: in the clone if you work in it, else in the working directory."""
    clone, here = notebooks.resolve().parent, Path.cwd()
    return (clone if clone == here or clone in here.parents else here) / FOLDER_NAME


def make_copies(notebooks: Path, folder: Path, set_up: str | None = None) -> Changes:
    """Copy each lesson that ``folder`` does not have, and put each one that is newer than its copy beside that.

    Each file that this writes begins with a cell ``set_up``, if there is one. Raises ``CourseError`` for the folder of
    the notebooks itself, ``OSError`` when a file cannot be read or written.
    """
    if folder.resolve() == notebooks.resolve():
        raise CourseError(f"{folder} holds the course's own notebooks; choose another folder for your copy")
    folder.mkdir(parents=True, exist_ok=True)
    made, newer = [], []
    for source in lessons_in(notebooks):
        lesson = read(source)
        copy = folder / source.name
        if not copy.exists():
            made.append(copy)
            write_copy(lesson, source, copy, set_up)
        elif digest(lesson) not in made_from(copy):
            beside = free_name(copy, "new")
            newer.append(beside)
            write_copy(lesson, source, beside, set_up)
    return Changes(tuple(made), tuple(newer))


def reset_copy(name: str, notebooks: Path, folder: Path, set_up: str | None = None) -> tuple[Path, Path | None]:
    """Make a fresh copy of the lesson that ``name`` begins, and return its path and that of the old copy, renamed.

    Raises ``CourseError`` for a name that no lesson or more than one has, ``OSError`` when files cannot be written.
    """
    known = lessons_in(notebooks)
    found = [source for source in known if source.stem.startswith(name)]
    if len(found) != 1 or not name:
        numbers = ", ".join(source.stem[:2] for source in known)
        raise CourseError(f"there is no single lesson {name!r} to reset; name one by its number: {numbers}")
    (source,) = found
    lesson, copy = read(source), folder / source.name
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(copy):
        write_copy(lesson, source, copy, set_up)
        return copy, None
    fresh = free_name(copy, "new")
    write_copy(lesson, source, fresh, set_up)  # where the disk is full, the learner's copy keeps its name
    old = move_aside(copy, "old")
    try:
        os.replace(fresh, copy)
    except BaseException:
        os.replace(old, copy)
        raise
    return copy, old


def lessons_in(notebooks: Path) -> list[Path]:
    """Return the notebooks of the lessons, in reading order."""
    return sorted(path for path in notebooks.iterdir() if _LESSON_NAME.fullmatch(path.name))


def read(path: Path) -> Notebook:
    """Read a notebook. Raises ``ValueError`` for a file that is none."""
    try:
        notebook = json.loads(read_whole(path, MOST_BYTES))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path} is not a notebook ({problem})") from problem
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError(f"{path} is not a notebook")
    return notebook


def digest(lesson: Notebook) -> str:
    """Return a hash of a lesson's cells, which running them does not change."""
    cells = [[cell["cell_type"], text_of(cell), cell["metadata"].get("tags", [])] for cell in lesson["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def made_from(copy: Path) -> set[str]:
    """Return the hashes of the lessons that a copy and the newer ones beside it were made from."""
    known = set()
    for path in (copy, *copy.parent.glob(f"{copy.stem}.new-*.ipynb")):
        try:
            known.add(str(read(path)["metadata"][MADE_FROM]["made_from"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whatever the learner made of that file, it is not known to be the present lesson
    return known


def write_copy(lesson: Notebook, source: Path, target: Path, set_up: str | None) -> None:
    """Write the learner's copy of ``lesson``, which was read from ``source``, as a whole file or not at all."""
    text = json.dumps(as_copy(lesson, source, target.parent, set_up), indent=1, ensure_ascii=False) + "\n"
    write_whole(target, text, source.stat().st_mode & 0o666 | 0o600)


def as_copy(lesson: Notebook, source: Path, folder: Path, set_up: str | None) -> Notebook:
    """Return a lesson as its learners get it: no outputs, first the cell with their progress, links that resolve."""
    cells = [dict(cell) for cell in lesson["cells"]]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(execution_count=None, outputs=[])
        else:
            cell["source"] = with_links(text_of(cell), source.parent, folder).splitlines(keepends=True)
    first = [_code_cell(START_TAG, _START_CELL.format(number=source.stem[:2]))]
    if set_up is not None:
        first.insert(0, _code_cell("set-up", set_up))
    origin = {"lesson": source.stem[:2], "made_from": digest(lesson)}
    return {**lesson, "cells": [*first, *cells], "metadata": {**lesson["metadata"], MADE_FROM: origin}}


def _code_cell(name: str, source: str) -> dict[str, Any]:
    """Return a cell of code that only copies have; ``name`` is its id."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {"tags": [START_TAG]},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def with_links(text: str, notebooks: Path, folder: Path) -> str:
    """Return a cell's text with each file that it links to above ``notebooks`` copied into the learner's folder."""

    def carried(link: re.Match[str]) -> str:
        linked = notebooks.parent / link[1]
        if not linked.is_file():
            return link[0]
        target = folder / LINKED_FOLDER / link[1]
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, linked.read_bytes())
        return f"]({LINKED_FOLDER}/{link[1]}"

    return _OUTSIDE_LINK.sub(carried, text)


def text_of(cell: dict[str, Any]) -> str:
    """Return what a cell holds; a notebook's file may have it as one text or as lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)
