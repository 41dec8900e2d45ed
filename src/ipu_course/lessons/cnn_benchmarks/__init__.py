"""Lesson 09: CNN benchmarks: read a table of throughputs."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.cnn_benchmarks.batches import modelled, modelled_batches, show_batches, show_steps
from ipu_course.lessons.cnn_benchmarks.command_lines import command_line_rows
from ipu_course.lessons.cnn_benchmarks.exercises import BUDGET, LINES_OF_THE_PAGE, MEASURE, OPTIONS
from ipu_course.lessons.cnn_benchmarks.explorer import BENCHMARK
from ipu_course.lessons.cnn_benchmarks.limits import show_limits
from ipu_course.lessons.cnn_benchmarks.machines import pod16_rows, show_machines
from ipu_course.lessons.cnn_benchmarks.published_rows import as_printed, show_scored_blind, with_settings

__all__ = [
    "as_printed",
    "command_line_rows",
    "lesson",
    "modelled",
    "modelled_batches",
    "pod16_rows",
    "show_batches",
    "show_limits",
    "show_machines",
    "show_scored_blind",
    "show_steps",
    "with_settings",
]

lesson = Lesson("09", exercises=(MEASURE, OPTIONS, BUDGET, LINES_OF_THE_PAGE), explorers=(BENCHMARK,))
