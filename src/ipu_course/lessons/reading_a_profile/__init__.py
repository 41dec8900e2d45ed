"""Lesson 14: Reading a profile: from a program to the part that limits it."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.reading_a_profile.exercises import MEND, NAME, OWN, READ, WRITE
from ipu_course.lessons.reading_a_profile.explorer import TRACES
from ipu_course.lessons.reading_a_profile.mended import compare_c, mend_all, show_mended, show_roofline
from ipu_course.lessons.reading_a_profile.published_trace import exchange_percentage, show_phases, workshop_profile
from ipu_course.lessons.reading_a_profile.replicas_shown import efficiency_percentage, scaled_records, show_replicas
from ipu_course.lessons.reading_a_profile.slow_programs import show_programs, slow_programs
from ipu_course.lessons.reading_a_profile.steps_figure import show_steps
from ipu_course.lessons.reading_a_profile.written_report import show_files, start_program

__all__ = [
    "compare_c",
    "efficiency_percentage",
    "exchange_percentage",
    "lesson",
    "mend_all",
    "scaled_records",
    "show_files",
    "show_mended",
    "show_phases",
    "show_programs",
    "show_replicas",
    "show_roofline",
    "show_steps",
    "slow_programs",
    "start_program",
    "workshop_profile",
]

lesson = Lesson("14", exercises=(WRITE, READ, NAME, MEND, OWN), explorers=(TRACES,))
