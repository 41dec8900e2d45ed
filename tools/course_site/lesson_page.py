"""From a notebook with saved outputs to the page of a lesson."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Mapping

from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_site.explorer_html import explorer_html
from course_site.links import Links
from course_site.recorded import RecordedExplorer

REVEALS = re.compile(r"\.reveal\(|quiz\.after\(")
EXPLORES = re.compile(r"\blesson\.explore\(")
HIDDEN = {"code_prompt_show": "Show the result", "code_prompt_hide": "Hide the result"}


def lesson_page(
    notebook: NotebookNode, file: Path, links: Links, explorers: Mapping[str, RecordedExplorer]
) -> NotebookNode:
    """Return the notebook as the site shows it.

    Results of predictions are hidden until someone asks for them, and explorers, by the number of their place, move
    without a kernel. ``file`` is the notebook's place in the repository, from which its links start.
    """
    page: NotebookNode = copy.deepcopy(notebook)
    numbers = iter(sorted(explorers, key=int))
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = links.rewritten(cell.source, file)
            continue
        if REVEALS.search(cell.source):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-output"]
            cell.metadata["mystnb"] = dict(HIDDEN)
        if EXPLORES.search(cell.source):
            number = next(numbers, None)
            if number is not None:
                _put_in(cell, explorer_html(f"{file.stem}/{number}", explorers[number]))
    return page


def _put_in(cell: NotebookNode, explorer: str) -> None:
    """Replace the explorer's four outputs (controls, picture, caption, table) with one that moves."""
    controls = [place for place, output in enumerate(cell.outputs) if _words(output).startswith("Controls:")]
    place = controls[0] if controls else len(cell.outputs)
    output = new_output("display_data", data={"text/html": explorer, "text/plain": "an explorer"})
    cell.outputs = [*cell.outputs[:place], output, *cell.outputs[place + 4 :]]


def _words(output: NotebookNode) -> str:
    return str(output.get("data", {}).get("text/plain", ""))
