"""The learner's answers to a quiz, before the lessons and after them."""

from __future__ import annotations

from typing import List, Tuple

from ipu_course.progress import Progress, QuizAnswer
from ipu_course.quiz.questions import LETTERS, Question, questions

Table = Tuple[str, List[Tuple[str, str, str]]]


def quiz_tables(progress: Progress) -> list[Table]:
    """Return a caption and rows for each quiz that was answered; answers to questions that are gone are left out."""
    tables = []
    for quiz in dict.fromkeys(answer.quiz for answer in progress.quiz_answers):
        answers = {answer.question: answer for answer in progress.quiz_answers if answer.quiz == quiz}
        rows = [_row(each, answers[each.key]) for each in _known(quiz) if each.key in answers]
        if rows:
            tables.append((f"What you thought about {quiz}", rows))
    return tables


def _known(quiz: str) -> tuple[Question, ...]:
    try:
        return questions(quiz)
    except ValueError:  # the records are of a course with other quizzes
        return ()


def _row(question: Question, answer: QuizAnswer) -> tuple[str, str, str]:
    """Return a question with both answers; whether they are right is told only after the lessons."""
    told = bool(answer.after)
    return question.question, _words(question, answer.before, told), _words(question, answer.after, told)


def _words(question: Question, letter: str, told: bool) -> str:
    if not letter or letter not in LETTERS:
        return "none"
    verdict = f" ({'right' if letter == question.right else 'not right'})" if told else ""
    return f"{question.option(letter)}{verdict}"
