"""The quiz before and after the lessons: it gives nothing away at first, and says what changed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course import quiz
from ipu_course.lesson_folders import lesson_folders
from ipu_course.progress import QuizAnswer, read_progress
from ipu_course.quiz.questions import FOLDER, LETTERS, questions
from ipu_course.schedule import pipelined

QUIZZES = sorted(path.stem for path in FOLDER.glob("*.json"))
ASKED = questions("speed")
RIGHT = "".join(question.right for question in ASKED)
WRONG = "".join(next(letter for letter in LETTERS if letter != right) for right in RIGHT)


@pytest.mark.parametrize("name", QUIZZES)
def test_each_question_has_four_different_options_a_right_one_and_a_lesson(name: str) -> None:
    asked = questions(name)
    assert 5 <= len(asked) <= 6
    assert len({question.key for question in asked}) == len(asked)
    for question in asked:
        assert len(set(question.options)) == len(LETTERS)
        assert question.right in LETTERS
        assert question.lesson in {lesson.number for lesson in lesson_folders()}
    assert len({question.right for question in asked}) > 1, "the letter must not give the answer away"


def test_the_pipelines_answer_is_what_the_schedule_says() -> None:
    (question,) = [question for question in ASKED if question.key == "pipeline"]
    busy = pipelined(4, 10).busy_share(backward=2.0)
    assert f"{busy:.0%}".replace("%", " %") in question.why


def test_unanswered_it_asks_and_notes_nothing(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiz.before("speed", ...)
    asked = capsys.readouterr().out
    quiz.after("speed", ...)
    assert capsys.readouterr().out == asked
    assert asked.count("   a) ") == len(ASKED)
    assert 'such as "a b c d a b"' in asked
    assert not records.exists()


def test_before_the_lessons_right_and_wrong_answers_read_alike(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for letters in (RIGHT, WRONG):
        quiz.before("speed", letters)
        printed = capsys.readouterr().out
        assert "right" not in printed.lower().replace("right now", "")
        assert not any(question.why[:30] in printed for question in ASKED)
    answers = read_progress().quiz_answers
    assert [each.before for each in answers] == list(RIGHT), "the first answers stay"


def test_after_the_lessons_it_says_what_changed_and_why(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiz.before("speed", WRONG)
    capsys.readouterr()
    quiz.after("speed", RIGHT[:-1] + WRONG[-1])
    printed = capsys.readouterr().out
    count = len(ASKED)
    counts = f"Right before: 0 of {count}. Right now: {count - 1} of {count}."
    assert printed.endswith(f"{counts} You changed your mind on {count - 1} questions.\n")
    assert printed.count("   right:  ") == 1
    assert printed.count("   why:    ") == count
    last = ASKED[-1]
    assert read_progress().quiz_answers[-1] == QuizAnswer("speed", last.key, WRONG[-1], WRONG[-1])


def test_who_answered_only_at_the_end_is_told_what_is_right(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiz.after("speed", RIGHT)
    assert capsys.readouterr().out.endswith(f"Right now: {len(ASKED)} of {len(ASKED)}.\n")


@given(st.text(max_size=12) | st.integers() | st.none() | st.lists(st.text(max_size=2)))
def test_no_answer_raises(answers: object) -> None:
    quiz.before("speed", answers)


@pytest.mark.parametrize("answers", ["a, b, c, d, a, b", "A B C D A B", "abcdab"])
def test_letters_may_be_written_in_several_ways(
    records: Path, answers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quiz.before("speed", answers)
    assert "Your answers are noted" in capsys.readouterr().out


def test_an_unknown_quiz_is_named() -> None:
    with pytest.raises(ValueError, match="there is no quiz 'taste'; there is 'memory', 'speed'"):
        quiz.before("taste", ...)
