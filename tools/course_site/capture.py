"""Run lessons, and record what their explorers show."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nbformat.v4 import new_code_cell

from course_site.in_kernel import LINE
from notebook_build.assemble import assemble
from notebook_build.execute import execute
from notebook_build.lesson import NOTEBOOKS, LessonSource

TOOLS = Path(__file__).resolve().parents[1]


def capture_explorers(lessons: list[LessonSource], folder: Path, most: int, processes: int) -> None:
    """Write the explorers of each lesson to ``folder``/NN_topic/1, 2 and so on; ``processes`` run at a time."""
    with ThreadPoolExecutor(processes) as pool:
        for lesson in pool.map(lambda each: _capture(each, folder, most), lessons):
            print(f"  {lesson.name}: explorers recorded", flush=True)


def _capture(lesson: LessonSource, folder: Path, most: int) -> LessonSource:
    notebook = assemble(lesson)
    first = new_code_cell(LINE.format(folder=str(folder / lesson.name), most=most))
    notebook.cells.insert(0, first)
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    execute(notebook, NOTEBOOKS, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    return lesson


def usual_processes() -> int:
    """Return how many lessons to run at a time: one for each core that this process may use, but four at most."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, 4)
