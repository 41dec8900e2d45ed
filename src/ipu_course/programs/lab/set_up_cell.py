"""The cell that installs the course at the top of a copy, for hosted notebooks whose sessions start afresh."""

from __future__ import annotations

from pathlib import Path

from ipu_course import __version__
from ipu_course.errors import CourseError

WHEELS = (f"ipu_course-{__version__}-py3-none-any.whl", f"ipu_model-{__version__}-py3-none-any.whl")
COLABS_DRIVE = "/content/drive"  # where Colab's own function puts the learner's files of Google Drive
_MOUNT = f"""from pathlib import Path

if not Path("{COLABS_DRIVE}/MyDrive").is_dir():
    from google.colab import drive

    drive.mount("{COLABS_DRIVE}")
"""


def set_up_cell(wheels: Path, folder: Path) -> str:
    """Return a cell that installs the course from the two files in ``wheels`` and keeps the progress in ``folder``.

    Other wheels in that folder are used, too, such as a build of torch for CPUs. Raises ``CourseError`` if the two
    files are not there.
    """
    wheels, folder = wheels.expanduser().resolve(), folder.resolve()
    missing = [name for name in WHEELS if not (wheels / name).is_file()]
    if missing:
        raise CourseError(f"{wheels} has no {' and no '.join(missing)}; name the folder with the course's two wheels")
    course, model = (wheels / name for name in WHEELS)
    lines = [
        "# Install the course if this session lacks it. Then restart the session if the next cell asks for it.",
        _MOUNT if COLABS_DRIVE in (str(wheels), *map(str, wheels.parents)) else "",
        f'%pip install --quiet --find-links "{wheels}" "{course}[programs]" "{model}"',
        f"%env IPU_COURSE_PROGRESS={folder / 'progress.json'}",
    ]
    return "\n".join(line for line in lines if line)
