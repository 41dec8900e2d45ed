"""The first cell of a learner's copy: what is done, what comes next and how long it takes."""

from __future__ import annotations

import pytest

from ipu_course.lesson import Lesson, wait_for_guesses
from ipu_course.lesson_folders import lesson_folders
from ipu_course.programs.lab.first_cell import _duration, progress_lines
from ipu_course.programs.report.overview import states
from ipu_course.progress import ExerciseRecord, Progress, note_check

# As it stands in copies that learners have had for long: it must go on working.
FIRST_CELL = 'from ipu_course import learner_copy\n\nlearner_copy.start("00")'
LESSONS = {lesson.number: lesson for lesson in lesson_folders()}


def solved(number: str, count: int | None = None) -> tuple[ExerciseRecord, ...]:
    """The records of a lesson of which ``count`` exercises, or all, are solved."""
    exercises = range(1, (LESSONS[number].exercises if count is None else count) + 1)
    return tuple(ExerciseRecord(number, f"Exercise {each}", 1, 1) for each in exercises)


def lines(number: str, *records: tuple[ExerciseRecord, ...]) -> list[str]:
    progress = Progress(exercises=tuple(record for each in records for record in each))
    return progress_lines(number, list(states(progress)), progress)


def test_who_begins_reads_the_plan_and_the_whole_time() -> None:
    first, second, third = lines("00")
    plan = LESSONS["00"]
    assert first == f"Lesson 00: plan {plan.minutes} minutes, {plan.exercise_minutes} of them for the exercises."
    assert second.startswith(f"Done so far: no lesson yet. Next comes lesson 01, {LESSONS['01'].title} (")
    hours = sum(lesson.minutes for lesson in LESSONS.values()) // 60
    assert third.startswith(f"What is left of the course takes about {hours} hours")


def test_a_lesson_half_done_counts_what_is_solved_and_takes_less_time() -> None:
    begun = lines("02", solved("00"), solved("01"), solved("02", 1))
    assert begun[0].endswith(f"You have solved 1 of {LESSONS['02'].exercises} exercises.")
    assert begun[1].startswith("Done so far: lessons 00 and 01. Next comes lesson 03")


def test_what_was_left_out_comes_after_the_last_lesson() -> None:
    *others, last = LESSONS
    records = [solved(number) for number in others if number != "04"]
    assert "Next comes lesson 04" in lines(last, *records)[1]
    assert lines(last, *records, solved("04"))[1].endswith("This is the last one.")


def test_who_has_finished_is_told_so_and_has_no_time_left() -> None:
    finished = lines("05", *map(solved, LESSONS))
    assert finished[0] == "Lesson 05: you have solved all of its exercises."
    assert finished[1].endswith("You have finished the course.")
    assert len(finished) == 2


@pytest.mark.parametrize(
    ("minutes", "words"), [(3, "5 minutes"), (55, "55 minutes"), (58, "1 hour"), (130, "2 hours 10 minutes")]
)
def test_time_is_rounded_up_to_five_minutes(minutes: int, words: str) -> None:
    assert _duration(minutes) == words


def test_the_cell_prints_its_lines(records: object, capsys: pytest.CaptureFixture[str]) -> None:
    note_check("00", "Exercise 1", True)
    try:
        exec(FIRST_CELL)
    finally:
        wait_for_guesses(False)
    assert capsys.readouterr().out.startswith("Lesson 00: ")


def test_after_the_cell_a_result_waits_for_a_guess(records: object, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exec(FIRST_CELL)
        Lesson("00").predict("tiles", ...).reveal(1472)
        assert "1472" not in capsys.readouterr().out.replace(",", "")
        Lesson("00").predict("tiles", 1000).reveal(1472)
        assert "1,472" in capsys.readouterr().out
    finally:
        wait_for_guesses(False)


def test_every_lesson_plans_its_minutes() -> None:
    assert all(lesson.minutes > lesson.exercise_minutes > 0 for lesson in LESSONS.values())
