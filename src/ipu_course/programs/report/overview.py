"""What the records say as a whole: the state of each lesson, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from ipu_course.lesson_folders import LessonFolder, lesson_folders
from ipu_course.progress import ExerciseRecord, PredictionRecord, Progress

CLOSE_FACTOR = 2.0


@dataclass(frozen=True)
class LessonState:
    """One lesson and what was answered in it."""

    lesson: LessonFolder
    predictions: tuple[PredictionRecord, ...]
    exercises: tuple[ExerciseRecord, ...]

    @property
    def solved(self) -> int:
        """How many exercises are solved."""
        return sum(record.correct for record in self.exercises)

    @property
    def exercise_count(self) -> int:
        """How many exercises there are, or were when they were tried."""
        return max(self.lesson.exercises, len(self.exercises))

    @property
    def begun(self) -> bool:
        """Whether anything was answered."""
        return bool(self.predictions or self.exercises)

    @property
    def done(self) -> bool:
        """Whether all exercises are solved; where there are none, whether it was begun."""
        return self.begun and self.solved >= self.lesson.exercises

    @property
    def words(self) -> str:
        """The state in a word or two."""
        return "done" if self.done else "begun" if self.begun else "not begun"


def states(progress: Progress) -> tuple[LessonState, ...]:
    """Return all lessons of the course in order, then those that only the records know."""
    known = {lesson.number for lesson in lesson_folders()}
    entries: Iterable[PredictionRecord | ExerciseRecord] = (*progress.predictions, *progress.exercises)
    others = sorted({entry.lesson for entry in entries} - known)
    lessons = (*lesson_folders(), *(LessonFolder(number, "", f"Lesson {number}", 0) for number in others))
    return tuple(
        LessonState(
            lesson,
            tuple(each for each in progress.predictions if each.lesson == lesson.number),
            tuple(each for each in progress.exercises if each.lesson == lesson.number),
        )
        for lesson in lessons
    )


def close_guesses(progress: Progress) -> int:
    """Count the first guesses that are within a factor of 2 of their results."""
    factors = [prediction.factor_off for prediction in progress.predictions]
    return sum(factor is not None and factor <= CLOSE_FACTOR for factor in factors)


def next_steps(progress: Progress) -> tuple[str, ...]:
    """Say what to do next: what was begun first, then the next lesson."""
    all_states = states(progress)
    steps = [
        f"Lesson {state.lesson.number}, {state.lesson.title}: {_left(state)}."
        for state in all_states
        if state.begun and not state.done
    ]
    fresh = _next_lesson(all_states)
    if fresh is not None:
        steps.append(f"Begin lesson {fresh.number}, {fresh.title}: {fresh.notebook} in your copy of the notebooks.")
    if not steps:
        steps.append("You have finished every lesson. Try a model of your own: python -m ipu_course train --help.")
    return tuple(steps)


def _next_lesson(all_states: tuple[LessonState, ...]) -> LessonFolder | None:
    """Return the lesson after the last one begun, else the first one left out."""
    last = max((place for place, state in enumerate(all_states) if state.begun), default=-1)
    fresh = [place for place, state in enumerate(all_states) if not state.begun]
    later = [place for place in fresh if place > last]
    return all_states[(later or fresh)[0]].lesson if fresh else None


def _left(state: LessonState) -> str:
    tried = [record.exercise for record in state.exercises if not record.correct]
    untried = max(0, state.lesson.exercises - len(state.exercises))
    parts = [f"you have not solved {name} yet" for name in tried]
    if untried:
        parts.append(f"{untried} {'exercise is' if untried == 1 else 'exercises are'} left to try")
    return "; ".join(parts)
