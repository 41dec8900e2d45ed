"""Lesson 13: Out of memory: read the error, find the cause, mend the program."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.out_of_memory.broken import A, profile_all
from ipu_course.lessons.out_of_memory.decision_figure import decision_figure
from ipu_course.lessons.out_of_memory.exercises import EQUAL, JOIN, RECOMPUTE, SPLIT, WALK
from ipu_course.lessons.out_of_memory.explorer import CAUSES
from ipu_course.lessons.out_of_memory.remedies import (
    fit_in_half_precision,
    print_sentences,
    show_half_precision,
    show_programs,
    show_settings,
)

__all__ = [
    "A",
    "decision_figure",
    "fit_in_half_precision",
    "lesson",
    "print_sentences",
    "profile_all",
    "show_half_precision",
    "show_programs",
    "show_settings",
]

lesson = Lesson("13", exercises=(WALK, RECOMPUTE, JOIN, EQUAL, SPLIT), explorers=(CAUSES,))
