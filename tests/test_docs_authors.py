"""The page for authors: its new lesson, written down as the page lists it, builds, checks its answers and is linked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from ipu_course.lesson_folders import lesson_folders

FILE = re.compile(r"^`([\w.]+)`\n\n```\w+\n(.*?)^```$", re.M | re.S)
TARGET = re.compile(r"(?:^|`)make ([a-z-]+)", re.M)


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).resolve().parents[1] / "docs" / "authors.md").read_text(encoding="utf-8")


def test_the_lesson_on_the_page_is_a_whole_one(page: str, project: Path, tmp_path: Path) -> None:
    """It is put into a copy of the course, as its author would put it into a clone, after the last lesson."""
    number = f"{len(lesson_folders()):02d}"
    page = page.replace("18_counting_tiles", f"{number}_counting_tiles").replace('Lesson("18"', f'Lesson("{number}"')
    source = f"{number}_counting_tiles"
    package, notebooks = tmp_path / "src" / "ipu_course", tmp_path / "notebooks"
    shutil.copytree(project / "src" / "ipu_course", package, ignore=shutil.ignore_patterns("__pycache__"))
    notebooks.mkdir()
    shutil.copy(project / "notebooks" / "00_start_here.ipynb", notebooks)
    files = dict(FILE.findall(page))
    assert set(files) == {
        f"{source}.py", "__init__.py", "exercises.py", "tiles_figure.py", "explorer.py", "answers.toml"
    }  # fmt: skip
    folder = package / "lessons" / "counting_tiles"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "src"), str(project / "tools"), os.environ.get("PYTHONPATH", "")])

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "notebook_build", *arguments, "--notebooks", str(notebooks)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert f"{source}: 10 cells" in run("build", number)
    assert "FAULT" not in run("try", number)
    # A lesson this small lacks length and sections, and nothing else; the code is laid out as `make lint` wants it.
    lacking = ("cells, not", "words, not", "exercises, not", "the last sections are not")
    assert [
        line for line in run("check", number, code=1).splitlines() if not any(part in line for part in lacking)
    ] == []
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(project / "pyproject.toml"), str(folder)]
        linted = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert linted.returncode == 0, linted.stdout + linted.stderr
    built = nbformat.read(notebooks / f"{source}.ipynb", as_version=4)
    assert "(00_start_here.ipynb)" in built.cells[0].source
    assert run("pull", number) == f"{source}: nothing to take back: the notebook is what the source says\n"


def test_every_target_and_file_that_the_page_names_exists(page: str, project: Path) -> None:
    makefile = (project / "Makefile").read_text(encoding="utf-8")
    targets = set(TARGET.findall(page))
    assert {"notebooks", "pull-notebook", "try-answers", "check-notebooks"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []
    links = re.findall(r"\]\((\.\./[^)]+|[\w.]+\.md)\)", page)
    assert links
    assert [link for link in links if not (project / "docs" / link.partition("#")[0]).exists()] == []
