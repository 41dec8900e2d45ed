"""Where the progress file lies."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "IPU_COURSE_PROGRESS"


def progress_file() -> Path:
    """The file that ``IPU_COURSE_PROGRESS`` names, else one in the user's data folder.

    A relative path is taken from the working directory. Raises ``RuntimeError`` when the user has no home folder.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    path = Path(chosen).expanduser() if chosen else _data_folder() / "progress.json"
    # A link stays a link: it is its target that gets replaced.
    return Path(os.path.realpath(path))


def _data_folder() -> Path:
    folder = Path(platformdirs.user_data_dir("ipu-course", appauthor=False))
    if not folder.is_absolute():  # without a home folder "~" stays as it is
        raise RuntimeError("the user has no home folder")
    return folder
