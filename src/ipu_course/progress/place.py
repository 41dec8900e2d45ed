"""Where the progress file lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "IPU_COURSE_PROGRESS"


def progress_file() -> Path:
    """The file that ``IPU_COURSE_PROGRESS`` names, else one in the user's data folder.

    A relative path is taken from the working directory. Raises ``RuntimeError`` when the user has no home folder.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    path = Path(chosen).expanduser() if chosen else _data_folder() / "ipu-course" / "progress.json"
    # A link stays a link: it is its target that gets replaced.
    return Path(os.path.realpath(path))


def _data_folder() -> Path:
    if sys.platform == "win32":
        return _folder_of("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return _folder_of("XDG_DATA_HOME") or Path.home() / ".local" / "share"


def _folder_of(variable: str) -> Path | None:
    # The XDG standard: a relative path in such a variable is to be ignored.
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else None
