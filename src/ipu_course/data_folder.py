"""Where the course's ``data/`` folder is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, TypeVar

from ipu_course.course_files import bring_back, course_folders
from ipu_course.errors import DataError

T = TypeVar("T")

FOLDER_VARIABLE = "IPU_COURSE_DATA"


def data_file(name: str) -> Path:
    """Find a file of the course's ``data/`` folder.

    Looks in the folder that the environment variable ``IPU_COURSE_DATA`` names. When that is not set: in the
    installed wheel or in the clone that this package was installed from (``pip install -e``), then in the ``data/``
    folders beside the working directory and above it.

    Raises ``DataError`` when the file is in none of them.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(chosen)] if chosen else [each / "data" for each in course_folders()]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    if chosen:
        raise DataError(
            f"{FOLDER_VARIABLE} is set to {chosen!r}, but that folder has no file {name!r}. Point it at the "
            "data/ folder of a clone of the course, or unset it inside a clone."
        )
    raise DataError(
        f"The course's data file {name!r} was not found: the package was copied without its data. Run inside a "
        "clone of the course, install it from its wheel or from a clone with 'pip install -e .', or set "
        f"{FOLDER_VARIABLE} to the data/ folder of a clone."
    )


def from_json(name: str, build: Callable[[Any], T]) -> T:
    """Return what ``build`` makes of the content of a JSON file of the ``data/`` folder.

    Raises ``DataError`` when the file is missing, or when it or what ``build`` looks for in it is damaged.
    """
    path = data_file(name)
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as problem:
        raise DataError(f"The data file {name!r} is damaged ({problem}): {bring_back(f'data/{name}')}.") from problem
