"""Trying every answer to a lesson's exercises: what is run, and that each kind of fault is found.

Rules: tools/notebook_build/answers.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_output
from notebooks_support import places, write_lesson

from notebook_build.__main__ import main
from notebook_build.errors import SourceError
from notebook_build.lesson import LessonSource
from notebook_build.trial import WRONG, Attempt, Trial, assemble_trial, run_trial
from notebook_build.verdicts import corpus_faults, faults
from notebook_build.wrong_answers import TriedAnswer, asks_the_model, file_of, read_answers

SOURCE = """\
# %%
from ipu_course.exercises import Exercise
from ipu_course.lesson import Lesson

def hint(area):
    if area == 7:
        return "That is the sum of the sides."
    return None if area == 12 else f"{area} square metres, and 12 are asked for."

lesson = Lesson("03", exercises=(
    Exercise(("width", "height"), lambda width, height: hint(width * height), "3 x 4 = 12."),
    Exercise(("area",), hint, "It is 12."),
))

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: width = ...
### STARTER: height = ...
width, height = 3, 4
### END SOLUTION
lesson.check(1, width, height)

# %% [markdown] tags=["hint"]
# Multiply.

# %% [markdown] tags=["solution"]
# Three times four.

# %% tags=["exercise"]
def area():
    ### BEGIN SOLUTION
    ### STARTER: return ...
    return width * height
    ### END SOLUTION

lesson.check(2, area())

# %% [markdown] tags=["hint"]
# Multiply.

# %% [markdown] tags=["solution"]
# Width times height.
"""


def wrong(name: str, answer: str, hint: str) -> str:
    return f"[[exercise.wrong]]\nname = '{name}'\nanswer = '''\n{answer}\n'''\nhint = '{hint}'\n"


GOOD = "\n".join(
    [
        "[[exercise]]\nnumber = 1\n",
        wrong("sum", "width, height = 1, 7", "sum of the sides"),
        wrong("a square", "width, height = 3, 3", "9 square metres"),
        wrong("too large", "width = 5\nheight = 5", "25 square metres"),
        "[[exercise.right]]\nname = 'flat'\nanswer = 'width, height = 12, 1'\n",
        "[[exercise]]\nnumber = 2\n",
        wrong("sum", "return width + height", "sum of the sides"),
        wrong("twice", "return width * width", "9 square metres"),
        "[[exercise.wrong]]\nname = 'another width'\nsetup = 'other = 5'\n",
        "answer = '''\nreturn other * height'''\nhint = '20 square metres'\n",
    ]
)
# Exercise 1: one fault each. Exercise 2: too few wrong answers.
BAD = "\n".join(
    [
        "[[exercise]]\nnumber = 1\n",
        wrong("accepted", "width, height = 2, 6", "square metres, and 12 are"),
        wrong("another hint", "width, height = 1, 7", "12 are asked for."),
        wrong("raises", "width = 1 / 0\nheight = 1", "divides by zero"),
        wrong("no number", "width, height = None, 1", "The check could not use your answer"),
        wrong("short excerpt", "width, height = 5, 5", "25"),
        wrong("square", "width, height = 3, 3", "9 square metres"),
        "[[exercise.right]]\nname = 'turned down'\nanswer = 'width, height = 3, 5'\n",
        "[[exercise]]\nnumber = 2\n",
        wrong("sum", "return width + height", "That is the sum"),
    ]
)


def lesson_with(folder: Path, answers: str, source: str = SOURCE) -> LessonSource:
    """Write a lesson and its answers below `folder`."""
    lesson = write_lesson(folder / "notebooks", source)
    file_of(lesson).parent.mkdir(parents=True, exist_ok=True)
    file_of(lesson).write_text(answers, encoding="utf-8")
    return lesson


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return run_trial(lesson_with(tmp_path_factory.mktemp("good"), GOOD))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The faults of BAD, in a lesson whose first solution is wrong and whose last cell raises."""
    source = SOURCE.replace("width, height = 3, 4", "width, height = 3, 2") + "\n# %%\nopen('no such file')\n"
    return list(faults(run_trial(lesson_with(tmp_path_factory.mktemp("bad"), BAD, source))))


# --- what is run


def test_all_answers_come_before_the_solution(good: Trial) -> None:
    assert [attempt.name for attempt in good.attempts] == [
        "Exercise 1, starter",
        "Exercise 1, half answered",
        "Exercise 1, wrong: sum",
        "Exercise 1, wrong: a square",
        "Exercise 1, wrong: too large",
        "Exercise 1, also right: flat",
        "Exercise 1, solved",
        "Exercise 2, starter",
        "Exercise 2, wrong: sum",
        "Exercise 2, wrong: twice",
        "Exercise 2, wrong: another width",
        "Exercise 2, solved",
    ]


def test_each_answer_gets_its_verdict(good: Trial) -> None:
    verdicts = {attempt.name: attempt.verdict for attempt in good.attempts}
    assert verdicts["Exercise 1, starter"] == "not attempted yet"
    assert verdicts["Exercise 1, half answered"] == "still to fill in: height"
    assert verdicts["Exercise 1, wrong: sum"] == "not yet. That is the sum of the sides."
    assert verdicts["Exercise 1, also right: flat"] == "correct. 3 x 4 = 12."
    assert list(faults(good)) == []


def test_the_next_exercise_sees_the_solution_of_the_last(good: Trial) -> None:
    """Not the answers tried before it: 12 x 1 would give 144 when squared."""
    assert "9 square metres" in good.of(2, WRONG)[1].verdict


def test_an_answer_gets_the_regions_indentation_and_its_setup_comes_first(good: Trial) -> None:
    cell = good.of(2, WRONG)[2].cell.source
    assert cell.startswith("other = 5\ndef area():\n    return other * height\n\nlesson.check(")


def test_the_command_prints_a_table_and_the_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesson = lesson_with(tmp_path, GOOD.replace("9 square metres", "8 square metres"))
    assert main(["try", "03", *places(lesson.notebook.parent)]) == 1
    printed = capsys.readouterr()
    assert "  ok     Exercise 1, starter               not attempted yet\n" in printed.out
    assert "  FAULT  Exercise 1, wrong: a square       not yet. 9 square metres" in printed.out
    assert "Exercise 1, wrong: a square: is not met by '8 square metres'" in printed.err


# --- which faults are found


@pytest.mark.parametrize(
    "fault",
    [
        "Exercise 1, wrong: accepted: says 'correct. 3 x 4 = 12.' instead of 'not yet. '",
        "Exercise 1, wrong: another hint: is not met by '12 are asked for.', but by 'not yet. That is the sum",
        "Exercise 1, wrong: raises: raises ZeroDivisionError: division by zero",
        "Exercise 1, wrong: no number: makes the check itself fail",
        "Exercise 1, also right: turned down: says 'not yet. 15 square metres",
        "Exercise 1, solved: says 'not yet. 6 square metres",
        "Exercise 1: the excerpt '25' is so short that it may be found anywhere",
        "Exercise 1: the excerpt '12 are asked for.' does not tell",
        "Exercise 2, wrong: sum: is not met by 'That is the sum'",
        "Exercise 2: 1 wrong answers in small_lesson/answers.toml, and at least 3 are asked for",
        "the cell that begins \"open('no such file')\" raises FileNotFoundError",
    ],
)
def test_a_fault_is_found(found: list[str], fault: str) -> None:
    assert any(line.startswith(fault) for line in found), "\n".join(found)


def attempt(name: str, hint: str, said: str) -> Attempt:
    output = new_output("stream", name="stdout", text=f"Exercise 1: not yet. {said}\n")
    return Attempt(1, WRONG, new_code_cell("", outputs=[output]), TriedAnswer(name, "x = 1", hint))


def test_wrong_answers_need_three_different_hints(good: Trial) -> None:
    said = ["Too many IPUs.", "Too many IPUs.", "Too few stages."]
    attempts = [attempt(f"number {each}", text[:8], text) for each, text in enumerate(said)]
    (fault,) = corpus_faults(attempts, good)
    assert fault.endswith("get 2 different hints, and at least 3 are asked for")


def test_two_mistakes_share_a_hint_only_if_the_file_gives_both_the_same_excerpt(good: Trial) -> None:
    shared = "Too many IPUs: there are four."
    attempts = [
        attempt("one", "Too many IPUs", shared),
        attempt("another", "there are four", shared),
        attempt("third", "few stages", "Too few stages."),
        attempt("fourth", "no stage", "There is no stage."),
    ]
    assert list(corpus_faults(attempts, good)) == [
        "the excerpt 'Too many IPUs' does not tell 'Exercise 1, wrong: one' from 'Exercise 1, wrong: another'",
        "the excerpt 'there are four' does not tell 'Exercise 1, wrong: another' from 'Exercise 1, wrong: one'",
    ]
    assert list(corpus_faults([attempt("one", "Too many", shared), *attempts[2:]], good)) == []
    assert list(corpus_faults([*attempts[2:], attempts[0], attempt("same", "Too many IPUs", shared)], good)) == []


def test_a_lesson_without_a_file_of_answers_has_too_few(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path / "notebooks", SOURCE)
    assert read_answers(lesson) == {}
    found = list(faults(assemble_trial(lesson)))
    assert "Exercise 1: 0 wrong answers in small_lesson/answers.toml, and at least 3 are asked for" in found


def test_answers_to_an_exercise_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"small_lesson/answers.toml: the lesson has no exercise 3"):
        assemble_trial(lesson_with(tmp_path, GOOD.replace("number = 2", "number = 3")))


def test_a_lesson_asks_the_model_if_one_of_its_exercises_does(tmp_path: Path) -> None:
    assert not asks_the_model(lesson_with(tmp_path, GOOD))
    lesson = lesson_with(tmp_path, GOOD.replace("number = 2", "number = 2\nmodelled = true"))
    assert asks_the_model(lesson)
    assert sorted(read_answers(lesson)) == [1, 2]


# --- what a file of answers may not say

ONE = "[[exercise]]\nnumber = 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("number = 1", "it holds [[exercise]] tables and nothing else"),
        ("[[exercise]\n", "small_lesson/answers.toml: "),
        ("[[exercise]]\nnumber = '1'\n", "every [[exercise]] has a number of its own"),
        (ONE + ONE, "every [[exercise]] has a number of its own"),
        (ONE + "modelled = 'yes'\n", "exercise 1: modelled is true or false"),
        (ONE + "[[exercise.wrog]]\n", "exercise 1: it has a number, [[exercise.wrong]] and [[exercise.right]] tables"),
        (ONE + wrong("a", "x = 1", "some hint") * 2, "exercise 1: two answers are called a"),
        (ONE + wrong("a", "", "some hint"), "exercise 1: name, answer, hint and setup are texts, and none is empty"),
        (ONE + "[[exercise.wrong]]\nname = 'a'\nanswer = 'x'\n", "a wrong answer has answer, hint, name, and maybe"),
        (ONE + "[[exercise.right]]\nname = 'a'\nanswer = 'x'\nhint = 'y'\n", "a right answer has answer, name, and"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        read_answers(lesson_with(tmp_path, text))
    assert message in str(caught.value)
