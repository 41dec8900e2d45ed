"""The learner's copy of the notebooks: what is in it, that nothing is overwritten, and how JupyterLab opens it."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ipu_course.lesson_folders import notebook_folder
from ipu_course.programs.command_line import main
from ipu_course.programs.lab import command
from ipu_course.programs.lab.copies import START_TAG, make_copies, reset_copy, usual_folder
from ipu_course.programs.lab.set_up_cell import WHEELS, set_up_cell
from notebook_build.lesson import NOTEBOOKS
from notebook_build.lint_text import LINK

NAME = "02_small.ipynb"


def write_lesson(notebooks: Path, text: str, name: str = NAME) -> Path:
    """Write a lesson that has been run, with a link to a picture in docs/."""
    cells = [
        new_markdown_cell(f"# {text}\n\nSee ![a curve](../docs/curve.png) and [docs](../docs/page.md#part)."),
        new_code_cell("print(6)", execution_count=1, outputs=[new_output("stream", text="6\n")]),
    ]
    nbformat.write(new_notebook(cells=cells, nbformat_minor=5), notebooks / name)
    return notebooks / name


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """The notebooks of a clone with one lesson."""
    folder = tmp_path / "clone" / "notebooks"
    (folder.parent / "docs").mkdir(parents=True)
    folder.mkdir()
    (folder.parent / "docs" / "curve.png").write_bytes(b"a picture")
    (folder.parent / "docs" / "page.md").write_text("# A page\n")
    write_lesson(folder, "Small")
    return folder


@pytest.fixture
def in_clone(notebooks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The clone of that lesson as the working directory of a learner whose package was installed from it."""
    monkeypatch.chdir(notebooks.parent)
    monkeypatch.setattr("ipu_course.lesson_folders.notebook_folder", lambda: notebooks)
    return notebooks.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class TestCopies:
    def test_every_lesson_is_copied_whole_but_for_outputs_with_the_progress_first(self, tmp_path: Path) -> None:
        made = make_copies(NOTEBOOKS, tmp_path / "mine").made
        assert [path.name for path in made] == sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
        for path in made:
            copy, lesson = (nbformat.read(folder / path.name, as_version=4) for folder in (path.parent, NOTEBOOKS))
            nbformat.validate(copy)
            first, *others = copy.cells
            assert first.metadata.tags == [START_TAG]
            assert first.source == f'from ipu_course import learner_copy\n\nlearner_copy.start("{path.name[:2]}")'
            assert [(cell.cell_type, cell.id) for cell in others] == [
                (cell.cell_type, cell.id) for cell in lesson.cells
            ]
            assert [cell.source for cell in others if cell.cell_type == "code"] == [
                cell.source for cell in lesson.cells if cell.cell_type == "code"
            ]
            assert not [cell for cell in others if cell.get("outputs") or cell.get("execution_count")]

    def test_whatever_a_lesson_links_to_is_there_in_its_copy(self, notebooks: Path, tmp_path: Path) -> None:
        write_lesson(notebooks, "Nothing", "03_other.ipynb")
        for source in (NOTEBOOKS, notebooks):
            folder = tmp_path / source.parent.name
            for path in make_copies(source, folder).made:
                cells = nbformat.read(path, as_version=4).cells
                text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
                targets = [target.partition("#")[0] for _, _, target in LINK.findall(text) if "://" not in target]
                assert [target for target in targets if not (folder / target).exists()] == []
                assert not [target for target in targets if target.startswith("..")], "JupyterLab shows one folder"
        assert (tmp_path / "clone" / "linked" / "docs" / "curve.png").read_bytes() == b"a picture"

    def test_a_second_start_changes_nothing(self, notebooks: Path, tmp_path: Path) -> None:
        folder = tmp_path / "mine"
        make_copies(notebooks, folder)
        (folder / NAME).write_text((folder / NAME).read_text().replace("print(6)", "print(7)  # mine"))
        (folder / "notes.txt").write_text("mine, too")
        before = contents(folder)
        changes = make_copies(notebooks, folder)
        assert (changes.made, changes.newer) == ((), ())
        assert contents(folder) == before

    def test_a_lesson_that_was_only_run_again_is_not_newer(self, notebooks: Path, tmp_path: Path) -> None:
        make_copies(notebooks, tmp_path / "mine")
        lesson = notebooks / NAME
        lesson.write_text(lesson.read_text().replace('"execution_count": 1', '"execution_count": 5'))
        assert make_copies(notebooks, tmp_path / "mine").newer == ()

    def test_a_newer_lesson_is_put_beside_the_copy_once(self, notebooks: Path, tmp_path: Path) -> None:
        folder = tmp_path / "mine"
        make_copies(notebooks, folder)
        before = (folder / NAME).read_bytes()
        for number, text in ((1, "Larger"), (2, "Largest")):
            write_lesson(notebooks, text)
            (newer,) = make_copies(notebooks, folder).newer
            assert newer.name == f"02_small.new-{number}.ipynb"
            assert f"# {text}" in newer.read_text()
            assert make_copies(notebooks, folder).newer == ()
        assert (folder / NAME).read_bytes() == before

    @pytest.mark.parametrize("damage", ["", "{}", '{"cells": []}', "[" * 10_000])
    def test_a_damaged_copy_stays_and_gets_the_lesson_beside_it(
        self, notebooks: Path, tmp_path: Path, damage: str
    ) -> None:
        folder = tmp_path / "mine"
        make_copies(notebooks, folder)
        (folder / NAME).write_text(damage)
        assert [path.name for path in make_copies(notebooks, folder).newer] == ["02_small.new-1.ipynb"]
        assert (folder / NAME).read_text() == damage

    def test_a_reset_keeps_every_old_copy(self, notebooks: Path, tmp_path: Path) -> None:
        folder = tmp_path / "mine"
        fresh, old = reset_copy("02", notebooks, folder)
        assert old is None
        content = fresh.read_bytes()
        for number in (1, 2):
            fresh.write_text(f"edit {number}")
            _, old = reset_copy("02_small", notebooks, folder)
            assert old == folder / f"02_small.old-{number}.ipynb"
            assert old.read_text() == f"edit {number}"
            assert fresh.read_bytes() == content

    def test_a_copy_that_cannot_be_written_leaves_no_half_a_file(
        self, notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            make_copies(notebooks, tmp_path / "mine")
        assert not [name for name in contents(tmp_path / "mine") if "02" in name]

    @pytest.mark.parametrize(("call", "failing"), [("fsync", 1), ("replace", 1), ("replace", 2), ("replace", 3)])
    def test_a_reset_that_cannot_be_finished_leaves_the_copy_where_it_is(
        self, notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failing: int
    ) -> None:
        folder, calls, original = tmp_path / "mine", itertools.count(1), getattr(os, call)
        reset_copy("02", notebooks, folder)
        (folder / NAME).write_text("my own work")

        def full(*arguments: Any) -> None:
            if next(calls) == failing:
                raise OSError(28, "No space left on device")
            original(*arguments)

        monkeypatch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            reset_copy("02", notebooks, folder)
        assert (folder / NAME).read_text() == "my own work"
        assert not [name for name in contents(folder) if "old" in name or "part" in name]

    def test_the_usual_folder_is_in_the_clone_or_where_you_are(
        self, notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for here, parent in ((notebooks.parent / "docs", notebooks.parent), (tmp_path, tmp_path)):
            monkeypatch.chdir(here)
            assert usual_folder(notebooks) == parent / "my_course"

    def test_git_ignores_the_usual_folder(self, project: Path) -> None:
        assert "/my_course/" in (project / ".gitignore").read_text().splitlines()


class TestCommand:
    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
        """What would have taken this process's place."""
        calls: list[tuple[list[str], dict[str, str]]] = []
        monkeypatch.setattr(os, "execve", lambda _, arguments, environment: calls.append((arguments, environment)))
        return calls

    def test_it_opens_jupyterlab_on_the_copy(
        self, in_clone: Path, started: list[tuple[list[str], dict[str, str]]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["lab", "--no-browser", "--port", "8890", "--", "--LabApp.news_url=None"]) == 0
        ((arguments, environment),) = started
        assert arguments[:3] == [sys.executable, "-m", "jupyterlab"]
        assert f"--ServerApp.root_dir={in_clone / 'my_course'}" in arguments
        assert {"--no-browser", "--ServerApp.port=8890", "--LabApp.news_url=None"} <= set(arguments)
        assert environment["JUPYTER_PREFER_ENV_PATH"] == "1"
        assert capsys.readouterr().out.startswith("Copied 1 lesson, without outputs, to your folder ")
        assert main(["lab"]) == 0
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(("user", "told"), [(0, True), (1000, False)])
    def test_jupyterlab_is_told_to_run_as_root_only_then(
        self, user: int, told: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        assert ("--allow-root" in command.jupyterlab_command(tmp_path, None, False, [])) == told

    def test_a_newer_lesson_is_told_in_one_line(
        self, in_clone: Path, started: list[object], capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["lab"])
        write_lesson(in_clone / "notebooks", "Larger")
        capsys.readouterr()
        main(["lab"])
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("Lesson 02 is newer than your copy. Your copy stays; the new lesson is ")
        assert line.endswith("my_course/02_small.new-1.ipynb.")

    def test_a_reset_says_where_both_are_and_opens_nothing(
        self, in_clone: Path, started: list[object], capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(2):
            assert main(["lab", "--reset", "02"]) == 0
        assert "Your old copy is " in capsys.readouterr().out
        assert not started

    def test_a_copy_alone_opens_nothing(
        self, in_clone: Path, started: list[object], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["lab", "--copy-only"]) == 0
        assert (in_clone / "my_course" / NAME).exists()
        assert not started

    def test_a_copy_for_a_hosted_notebook_begins_by_installing_the_course(
        self, in_clone: Path, started: list[object]
    ) -> None:
        wheels = in_clone / "my wheels"
        wheels.mkdir()
        for name in WHEELS:
            (wheels / name).touch()
        assert main(["lab", "--hosted", "my wheels"]) == 0
        assert not started
        set_up, start, *_ = nbformat.read(in_clone / "my_course" / NAME, as_version=4).cells
        _, install, progress = set_up.source.splitlines()
        assert shlex.split(install)[:5] == ["%pip", "install", "--quiet", "--find-links", str(wheels)]
        assert shlex.split(install)[5:] == [f"{wheels / WHEELS[0]}[programs]", str(wheels / WHEELS[1])]
        assert progress == f"%env IPU_COURSE_PROGRESS={in_clone / 'my_course' / 'progress.json'}"
        assert start.source.startswith("from ipu_course import learner_copy")
        assert main(["lab", "--copy-only"]) == 0
        assert len(contents(in_clone / "my_course")) == 1, "the cell makes no newer lesson of it"
        assert main(["lab", "--hosted", "my wheels", "--reset", "02"]) == 0
        assert nbformat.read(in_clone / "my_course" / NAME, as_version=4).cells[0].source == set_up.source

    def test_a_copy_in_colabs_drive_asks_for_the_drive_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "is_file", lambda _: True)
        _, *lines = set_up_cell(Path("/content/drive/MyDrive/ipu"), Path("/content/drive/MyDrive/mine")).splitlines()
        assert lines[-4:-2] == ['    drive.mount("/content/drive")', ""]
        compile("\n".join(lines[:-2]), "cell", "exec")
        assert lines[-1] == "%env IPU_COURSE_PROGRESS=/content/drive/MyDrive/mine/progress.json"

    def test_what_cannot_be_done_is_one_line(
        self, in_clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (in_clone / "file").write_text("")
        for arguments, words in (
            (["--folder", "file/mine"], "choose another folder with --folder"),
            (["--folder", "file"], "cannot be written (File exists)"),
            (["--folder", "notebooks"], "holds the course's own notebooks"),
            (["--reset", "77"], "there is no single lesson '77' to reset; name one by its number: 02"),
            (["--hosted", "docs"], f"docs has no {WHEELS[0]} and no {WHEELS[1]}; name the folder"),
            (["--port", "70000"], "the largest is 65535"),
        ):
            assert main(["lab", *arguments]) == 2
            assert words in capsys.readouterr().err
        monkeypatch.setattr(command, "find_spec", lambda _: None)
        assert main(["lab"]) == 2
        assert "JupyterLab is not installed for " in capsys.readouterr().err
        assert (in_clone / "my_course" / NAME).exists(), "the copy is of use to other editors"
        (in_clone / "notebooks" / NAME).write_text("{")
        assert main(["lab"]) == 2
        assert "fetch it again with 'git checkout notebooks'" in capsys.readouterr().err
        monkeypatch.setattr("ipu_course.lesson_folders.notebook_folder", lambda: None)
        assert main(["lab"]) == 2
        assert "the course's notebooks were not found" in capsys.readouterr().err

    def test_the_notebooks_are_found_from_anywhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert notebook_folder() == NOTEBOOKS


@pytest.mark.parametrize(("option", "code"), [("--version", 0), ("--ServerApp.port=none", 1)])
def test_the_exit_code_is_jupyterlabs(tmp_path: Path, option: str, code: int) -> None:
    arguments = ["lab", "--folder", str(tmp_path / "mine"), "--", option]
    done = subprocess.run([sys.executable, "-m", "ipu_course", *arguments], capture_output=True, check=False)
    assert done.returncode == code


@pytest.mark.slow
def test_ctrl_c_and_a_yes_end_it_without_an_error(tmp_path: Path) -> None:
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    arguments = ["lab", "--folder", str(tmp_path / "mine"), "--no-browser", "--", "--ServerApp.port=0"]
    with subprocess.Popen(
        [sys.executable, "-m", "ipu_course", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        started = tmp_path / f"jpserver-{process.pid}.json"
        while not started.exists() and process.poll() is None:
            time.sleep(0.1)
        assert json.loads(started.read_text())["root_dir"] == str(tmp_path / "mine")
        assert process.stdin is not None
        process.stdin.write("y\n")  # JupyterLab asks whether to stop
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
