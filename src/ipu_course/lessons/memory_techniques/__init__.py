"""Lesson 12: memory techniques, each with its price."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.memory_techniques.choices import captured
from ipu_course.lessons.memory_techniques.exercises import CHECKPOINTS, GRADIENT, PROGRAM, SWEEP
from ipu_course.lessons.memory_techniques.explorer import PROPORTION
from ipu_course.lessons.memory_techniques.language_model import (
    LanguageModel,
    course_options,
    modelled_training,
)
from ipu_course.lessons.memory_techniques.outlining import more_code_kib, show_code
from ipu_course.lessons.memory_techniques.over_time import show_hills
from ipu_course.lessons.memory_techniques.own_activation import register_activation, show_own_activation
from ipu_course.lessons.memory_techniques.schemes import show_schemes, two_ipus
from ipu_course.lessons.memory_techniques.slices import show_slices
from ipu_course.lessons.memory_techniques.sweep import show_partials, show_sweep
from ipu_course.lessons.memory_techniques.techniques import fit_alone, plain_program, show_alone
from ipu_course.lessons.memory_techniques.tradeoff_figure import show_sets, show_trade_off

__all__ = [
    "LanguageModel",
    "captured",
    "course_options",
    "fit_alone",
    "lesson",
    "modelled_training",
    "more_code_kib",
    "plain_program",
    "register_activation",
    "show_alone",
    "show_code",
    "show_hills",
    "show_own_activation",
    "show_partials",
    "show_schemes",
    "show_sets",
    "show_slices",
    "show_sweep",
    "show_trade_off",
    "two_ipus",
]

lesson = Lesson("12", exercises=(SWEEP, CHECKPOINTS, GRADIENT, PROGRAM), explorers=(PROPORTION,))
