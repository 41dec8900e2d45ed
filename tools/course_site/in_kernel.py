"""Record explorers inside a notebook's kernel, where the programs that they show are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course_site.recorded import record
from ipu_course.explorers import Explorer, ShownExplorer

LINE = "from course_site.in_kernel import record_all; record_all({folder!r}, {most})"


def record_all(folder: str, most: int) -> None:
    """From now on, record each explorer that this kernel shows in ``folder``/1, ``folder``/2 and so on."""
    show = Explorer.show
    shown: list[Explorer] = []

    def show_and_record(self: Explorer, *subjects: object, **settings: Any) -> ShownExplorer:
        result = show(self, *subjects, **settings)
        shown.append(self)
        record(self.starting_with(settings), subjects, Path(folder) / str(len(shown)), most)
        return result

    Explorer.show = show_and_record  # type: ignore[method-assign]  # the lesson calls it, and must not know of pages
