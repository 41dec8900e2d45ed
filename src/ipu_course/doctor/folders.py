"""Where the course's own folders are, whether it runs in its clone or beside one."""

from __future__ import annotations

from pathlib import Path


def course_folder(name: str) -> Path | None:
    """The course's folder of that name: in the clone of this package, else in or above the working directory."""
    clone = Path(__file__).resolve().parents[3]
    here = Path.cwd()
    for folder in (clone, here, *here.parents):
        if (folder / name).is_dir():
            return folder / name
    return None
