"""Is the data folder complete, and which optional data sets are at hand?"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ipu_course.data_folder import FOLDER_VARIABLE
from ipu_course.doctor.finding import Finding, ok, problem
from ipu_course.doctor.folders import course_folder

SHIPPED = re.compile(r"^## `([^`]+)`", re.MULTILINE)  # data/README.md has a section for each file it ships
MNIST_MARK, CIFAR10_MARK = "MNIST/raw/train-images-idx3-ubyte", "cifar-10-batches-py/data_batch_1"
DOWNLOAD_FOLDERS = ("", "mnist_data", "cifar10_data", "notebooks/mnist_data", "notebooks/cifar10_data")


def check_data() -> Finding:
    """The files that data/README.md lists. That they can be read is tried by the probe."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return judge_data(Path(chosen) if chosen else course_folder("data"))


def judge_data(folder: Path | None) -> Finding:
    """``folder``: the data folder, None when there is none."""
    why = "the lessons train on these files, and nothing is fetched at run time"
    cure = f"git checkout data/, in the course's folder; or set {FOLDER_VARIABLE} to the data/ folder of a clone"
    if folder is None or not (folder / "README.md").is_file():
        return problem(f"no data folder{'' if folder is None else f' at {folder}'}", why, cure)
    listed = SHIPPED.findall((folder / "README.md").read_text(encoding="utf-8", errors="replace"))
    absent = [name for name in listed if not (folder / name).is_file() or (folder / name).stat().st_size == 0]
    if absent or not listed:
        return problem(f"{folder} lacks {', '.join(absent) or 'everything'}", why, cure)
    return ok(f"all {len(listed)} files that data/README.md lists are here")


def check_optional_data() -> Finding:
    """MNIST and CIFAR-10, which the learner may have brought."""
    places = [Path.cwd() / name for name in DOWNLOAD_FOLDERS]
    data = course_folder("data")
    return judge_optional_data([*places, *([] if data is None else [data])])


def judge_optional_data(places: list[Path]) -> Finding:
    """Never a problem: the bundled data stand in."""
    found = [
        name
        for name, mark in (("MNIST", MNIST_MARK), ("CIFAR-10", CIFAR10_MARK))
        if any((place / mark).is_file() for place in places)
    ]
    return ok(f"{' and '.join(found)} found" if found else "no MNIST, no CIFAR-10: the bundled data stand in")
