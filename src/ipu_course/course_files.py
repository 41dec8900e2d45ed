"""Where the folders ``data/`` and ``notebooks/`` are: inside the installed wheel, or in a clone of the course."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
BUNDLED = PACKAGE / "bundled"  # made by setup.py for the wheel; a clone has none


def is_wheel() -> bool:
    """Tell whether this package was installed from a wheel, which has the course's files inside."""
    return BUNDLED.is_dir()


def course_folders() -> list[Path]:
    """Return the folders that may hold ``data/`` and ``notebooks/``, the likeliest first.

    First comes the wheel's own folder, or the clone that this package was installed from (``pip install -e``), then
    the working directory and the folders above it.
    """
    here = Path.cwd()
    return [BUNDLED if is_wheel() else PACKAGE.parents[1], here, *here.parents]


def bring_back(name: str) -> str:
    """Say how to have a file or folder of the course, such as ``data/digits.npz``, as it was."""
    return "install ipu-course again from its wheel" if is_wheel() else f"fetch it again with 'git checkout {name}'"
