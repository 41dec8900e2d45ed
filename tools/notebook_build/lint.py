"""Does a lesson keep to the form that all lessons share? The limits are in limits.py."""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode

from notebook_build.assemble import assemble
from notebook_build.exercise import solved
from notebook_build.lesson import LessonSource
from notebook_build.limits import CELLS, MORE_CELLS
from notebook_build.lint_code import code_findings
from notebook_build.lint_outputs import picture_findings, published_findings
from notebook_build.lint_text import text_findings


def lint(lesson: LessonSource) -> list[str]:
    """Return where a lesson departs from the form, one finding a line; outputs count if there is a notebook."""
    cells = assemble(lesson).cells
    found = MORE_CELLS.get(lesson.name[:2], CELLS).complaint(len(cells), "cells")
    found += text_findings(cells, lesson)
    found += code_findings(cells, lesson)
    found += code_findings(assemble(lesson, solved).cells, lesson)
    if lesson.notebook.exists():
        found += output_findings(nbformat.read(lesson.notebook, as_version=nbformat.NO_CONVERT))
    return list(dict.fromkeys(found))


def output_findings(saved: NotebookNode) -> list[str]:
    """Return what the saved outputs lack."""
    return [*picture_findings(saved.cells), *published_findings(saved.cells)]
