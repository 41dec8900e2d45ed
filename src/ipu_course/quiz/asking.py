"""Quizzes in a notebook: the learner writes a letter for each question in place of the dots."""

from __future__ import annotations

import re
import textwrap

from ipu_course.progress import note_quiz, read_progress
from ipu_course.quiz.questions import LETTERS, Question, questions

WIDTH = 100


def before(quiz: str, answers: object) -> None:
    """Print the questions, or the answers once there are any; none is called right or wrong before the lessons.

    ``answers`` is a text with a letter for each question, such as "a b c d a b", or ``...`` for none yet. Raises
    ``ValueError`` for a quiz that there is not.
    """
    asked = questions(quiz)
    chosen = _chosen(asked, answers)
    for number, question in enumerate(asked, start=1):
        _print(f"{number}. ", question.question)
        for letter in LETTERS if chosen is None else chosen[number - 1]:
            _print("   ", question.option(letter))
        if chosen is not None:
            note_quiz(quiz, question.key, before=chosen[number - 1])
    print(_how_to_answer(asked, answers) if chosen is None else "Your answers are noted. You will meet them again.")


def after(quiz: str, answers: object) -> None:
    """Print the questions, or once there are answers: what changed, what is right and why, and where it is taught.

    Arguments and errors are those of ``before``.
    """
    asked = questions(quiz)
    chosen = _chosen(asked, answers)
    if chosen is None:
        before(quiz, answers)
        return
    known = read_progress().quiz_answers
    first = {each.question: each.before for each in known if each.quiz == quiz}
    for number, (question, letter) in enumerate(zip(asked, chosen), start=1):
        note_quiz(quiz, question.key, after=letter)
        _print(f"{number}. ", question.question)
        if first.get(question.key):
            _print("   before: ", question.option(first[question.key]))
        _print("   now:    ", question.option(letter))
        if letter != question.right:
            _print("   right:  ", question.option(question.right))
        _print("   why:    ", f"{question.why} (Lesson {question.lesson}.)")
    print(_outcome(asked, first, chosen))


def _chosen(asked: tuple[Question, ...], answers: object) -> str | None:
    """Return a letter for each question, or ``None`` where the answers are open or cannot be read."""
    letters = re.sub(r"[\s,;]", "", answers).lower() if isinstance(answers, str) else ""
    return letters if len(letters) == len(asked) and set(letters) <= set(LETTERS) else None


def _how_to_answer(asked: tuple[Question, ...], answers: object) -> str:
    example = " ".join((LETTERS * len(asked))[: len(asked)])
    if answers is ...:
        return f'Write your letters in place of the dots, such as "{example}", and run this cell again.'
    return f'You wrote {answers!r}. Write {len(asked)} letters from a to d, such as "{example}".'


def _outcome(asked: tuple[Question, ...], first: dict[str, str], chosen: str) -> str:
    right = sum(letter == question.right for question, letter in zip(asked, chosen))
    told = f"Right now: {right} of {len(asked)}."
    answered = [(question, letter) for question, letter in zip(asked, chosen) if first.get(question.key)]
    if not answered:
        return told
    right_before = sum(first[question.key] == question.right for question, _ in answered)
    changed = sum(first[question.key] != letter for question, letter in answered)
    questions_changed = f"{changed} question{'' if changed == 1 else 's'}"
    return f"Right before: {right_before} of {len(asked)}. {told} You changed your mind on {questions_changed}."


def _print(lead: str, text: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)))
