"""Lay out the pages for Sphinx, in the folders that they have in the repository."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Mapping, Sequence

import nbformat

from course_site.explorer_html import states_script
from course_site.lesson_page import lesson_page
from course_site.links import Links
from course_site.outline import ROOT, Outline, ReferencePage
from course_site.recorded import RecordedExplorer, read_explorer

HERE = Path(__file__).parent
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")


def lay_out(outline: Outline, recorded: Path, target: Path, address: str = "") -> None:
    """Write everything that Sphinx reads into ``target``; ``recorded`` holds the explorers of the lessons."""
    links = Links(frozenset([*outline.notebooks, *outline.documents, "README.md"]), address)
    shutil.copytree(HERE / "static", target / "_static", dirs_exist_ok=True)
    shutil.copytree(HERE / "templates", target / "_templates", dirs_exist_ok=True)
    shutil.copy(HERE / "conf.py", target)
    for notebook in outline.notebooks:
        _lay_out_lesson(Path(notebook), recorded, target, links)
    for document in outline.documents:
        _lay_out_document(ROOT / document, Path(document), target, links)
    _lay_out_document(HERE / "pages" / "index.md", Path("index.md"), target, links)
    for page in outline.reference:
        _write(target / "reference" / f"{page.name}.md", reference_text(page))
    with (target / "index.md").open("a", encoding="utf-8") as index:
        index.write(contents(outline))


def contents(outline: Outline) -> str:
    """Return the site's tables of contents."""
    parts = [("The lessons", outline.notebooks), *((part.heading, part.pages) for part in outline.parts)]
    parts.append(("Reference", [f"reference/{page.name}.md" for page in outline.reference]))
    return "\n".join(
        "```{toctree}\n:hidden:\n:maxdepth: 1\n:caption: " + heading + "\n\n" + "\n".join(pages) + "\n```\n"
        for heading, pages in parts
        if pages
    )


def reference_text(page: ReferencePage) -> str:
    """Return a page of the reference."""
    modules = "\n".join(
        f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n" for module in page.modules
    )
    return f"# {page.title}\n\n{modules}"


def _lay_out_lesson(file: Path, recorded: Path, target: Path, links: Links) -> None:
    explorers: Mapping[str, RecordedExplorer] = {
        folder.name: read_explorer(folder / "explorer.json") for folder in sorted((recorded / file.stem).glob("[0-9]*"))
    }
    notebook = nbformat.read(ROOT / file, as_version=4)
    page = lesson_page(notebook, file, links, explorers)
    _number_title(page.cells, file)
    _write(target / file, nbformat.writes(page))
    for number, explorer in explorers.items():
        _lay_out_states(f"{file.stem}/{number}", explorer, recorded, target)


def _number_title(cells: Sequence[nbformat.NotebookNode], file: Path) -> None:
    """Put the lesson's number in front of its title, as the contents list titles alone."""
    cells[0].source = re.sub(r"^# ", f"# {file.name[:2]} ", cells[0].source, count=1)


def _lay_out_states(name: str, explorer: RecordedExplorer, recorded: Path, target: Path) -> None:
    folder = target / "_static" / "explorers" / name
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "states.js", states_script(name, explorer))
    for state in explorer.states.values():
        if state.picture:
            shutil.copy(recorded / name / state.picture, folder)


def _lay_out_document(source: Path, place: Path, target: Path, links: Links) -> None:
    text = source.read_text(encoding="utf-8")
    _write(target / place, links.rewritten(text, place))
    for picture in PICTURE.findall(text):
        file = ROOT / place.parent / picture
        if "://" not in picture and file.is_file():
            (target / place.parent / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target / place.parent / picture)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
