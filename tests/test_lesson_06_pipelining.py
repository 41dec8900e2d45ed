"""Lesson 06: the exercises tell right from wrong and why, and the notebook keeps to the form of a lesson."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

import poptorch
from ipu_course.checks import UNANSWERED
from ipu_course.exercises.pipelining import check_busy_call, check_two_stages
from notebook_build.assemble import assemble, exercises_of
from notebook_build.exercise import Exercise
from notebook_build.lesson import lessons

(LESSON,) = lessons(wanted=("06",))
TWO_STAGES, BUSY_CALL = exercises_of(LESSON)
RIGHT_STAGES = 'poptorch.PipelinedExecution(Stage("B1", "B2").ipu(0), Stage("B3", "B4").ipu(1))'

# Exercise 1: what a learner writes for strategy and accumulation, and the hint that names the mistake.
WRONG_STAGES = {
    "four stages": ('poptorch.PipelinedExecution("B1", "B2", "B3", "B4")', 3, "still one stage per block"),
    "one stage": ('poptorch.PipelinedExecution(Stage("B1", "B2", "B3", "B4"))', 3, "These are 1 stage(s)"),
    "sharded": (RIGHT_STAGES.replace("Pipelined", "Sharded"), 3, "runs one IPU at a time"),
    "interleaved blocks": (
        'poptorch.PipelinedExecution(Stage("B1", "B3").ipu(0), Stage("B2", "B4").ipu(1))',
        3,
        "back and forth",
    ),
    "ends and middle": (
        'poptorch.PipelinedExecution(Stage("B1", "B4").ipu(0), Stage("B2", "B3").ipu(1))',
        3,
        "back and forth",
    ),
    "three and one": (
        'poptorch.PipelinedExecution(Stage("B1", "B2", "B3").ipu(0), Stage("B4").ipu(1))',
        3,
        "One stage has three blocks",
    ),
    "one IPU": (RIGHT_STAGES.replace("ipu(1)", "ipu(0)"), 3, "Both stages are on IPU 0"),
    "a gap": (RIGHT_STAGES.replace("ipu(1)", "ipu(2)"), 3, "are on the IPUs 0 and 2"),
    "no IPUs": ('poptorch.PipelinedExecution(["B1", "B2"], ["B3", "B4"])', 3, "Say on which IPU"),
    "a block left out": (
        'poptorch.PipelinedExecution(Stage("B1", "B2").ipu(0), Stage("B3").ipu(1))',
        3,
        "Not every block is in a stage",
    ),
    "automatic stages": ("poptorch.PipelinedExecution()", 3, "Not every block is in a stage"),
    "a stage, no strategy": ('Stage("B1", "B2")', 3, "is to be a poptorch.PipelinedExecution"),
    "minimum of four stages": (RIGHT_STAGES, 7, "7 is the minimum for four of them"),
    "2 N": (RIGHT_STAGES, 4, "counts the last stage twice"),
    "N": (RIGHT_STAGES, 2, "PopTorch refuses 2"),
    "no accumulation": (RIGHT_STAGES, 1, "PopTorch refuses 1"),
    "too many": (RIGHT_STAGES, 10, "10 works, but a smaller accumulation does too"),
    "no number": (RIGHT_STAGES, "'3'", "accumulation is a whole number"),
}

# Exercise 2: accumulation and device iterations. 24 / (24 + 6) = 80 %, 40 x 24 x 5 = 4,800.
WRONG_CALLS = {
    "the lesson's": (10, 12, "busy 62.5 % of the time"),
    "one below": (23, 5, "busy 79.3 % of the time"),
    "forwards only": (12, 10, "the way forwards only"),
    "2 N steps": (32, 4, "8 = 2 N"),
    "a whole call": (120, 1, "number of micro-batches in a whole call"),
    "one above": (25, 5, "not the smallest"),
    "iterations as micro-batches": (24, 120, "120 counts micro-batches"),
    "iterations without micro-batch": (24, 200, "leaves out the micro-batch"),
    "the lesson's iterations": (24, 10, "40 x 24 x 10 = 9,600 images"),
    "a fraction": (24, 4.8, "device_iterations is a whole number"),
}


def run(exercise: Exercise, answer: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the exercise's cell with an answer in place of its region and return what it prints."""
    names: dict[str, Any] = {
        "poptorch": poptorch,
        "Stage": poptorch.Stage,
        "check_two_stages": check_two_stages,
        "check_busy_call": check_busy_call,
    }
    exec(exercise.before + answer + exercise.after, names)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("exercise", [TWO_STAGES, BUSY_CALL], ids=["1", "2"])
class TestEachExercise:
    def test_the_starter_is_not_attempted_yet(self, exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(exercise, exercise.starter, capsys) == f"Exercise {exercise.number}: {UNANSWERED}"

    def test_the_solution_is_right(self, exercise: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(exercise, exercise.solution, capsys).startswith(f"Exercise {exercise.number}: correct.")


@pytest.mark.parametrize("mistake", WRONG_STAGES)
def test_wrong_stages_get_their_hint(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    strategy, accumulation, hint = WRONG_STAGES[mistake]
    said = run(TWO_STAGES, f"strategy = {strategy}\naccumulation = {accumulation}", capsys)
    assert said.startswith("Exercise 1: not yet.")
    assert hint in said


@pytest.mark.parametrize("mistake", WRONG_CALLS)
def test_a_wrong_call_gets_its_hint(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    accumulation, iterations, hint = WRONG_CALLS[mistake]
    said = run(BUSY_CALL, f"accumulation = {accumulation}\ndevice_iterations = {iterations}", capsys)
    assert said.startswith("Exercise 2: not yet.")
    assert hint in said


def test_a_half_finished_exercise_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(BUSY_CALL, "accumulation = 24\ndevice_iterations = ...", capsys)
    assert said == "Exercise 2: still to fill in: device_iterations"


class TestForm:
    """The course guide's rules for one lesson."""

    @pytest.fixture
    def notebook(self) -> NotebookNode:
        return assemble(LESSON)

    def test_it_has_20_to_35_cells(self, notebook: NotebookNode) -> None:
        assert 20 <= len(notebook.cells) <= 35

    def test_it_has_800_to_1500_words(self, notebook: NotebookNode) -> None:
        prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        words = re.findall(r"\w[\w'.,-]*", re.sub(r"```.*?```|</?\w+>", "", prose, flags=re.DOTALL))
        assert 800 <= len(words) <= 1500

    def test_no_code_cell_is_longer_than_15_lines(self, notebook: NotebookNode) -> None:
        lengths = [len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code"]
        assert max(lengths) <= 15

    def test_headings_go_down_one_level_at_a_time_from_the_only_h1(self, notebook: NotebookNode) -> None:
        prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        levels = [len(marks) for marks in re.findall(r"^(#+) ", prose, flags=re.MULTILINE)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(below <= above + 1 for above, below in zip(levels, levels[1:]))

    def test_it_ends_as_every_lesson_does(self, notebook: NotebookNode) -> None:
        headings = re.findall(r"^## (.+)$", notebook.cells[-1].source, flags=re.MULTILINE)
        assert headings == ["Summary", "On real hardware", "What transfers", "References"]
        assert "**Next:**" in notebook.cells[-1].source

    def test_every_saved_picture_has_an_alternative_text(self) -> None:
        saved = nbformat.read(LESSON.notebook, as_version=4)
        outputs = [output for cell in saved.cells for output in cell.get("outputs", ())]
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        assert len(pictures) == 3
        for picture in pictures:
            alternative = picture.metadata["image/png"]["alt"]
            assert len(alternative.split()) >= 10
            assert picture.data["text/plain"] == alternative
