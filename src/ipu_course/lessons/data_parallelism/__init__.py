"""Lesson 10: Data parallelism: many replicas, many processes."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.data_parallelism.exercises import COUNTS, INSTANCE, LIMITS, MISTAKES, RING
from ipu_course.lessons.data_parallelism.explorer import SCALING
from ipu_course.lessons.data_parallelism.poprun_run import run_poprun
from ipu_course.lessons.data_parallelism.ring_figure import bytes_sent, ring_all_reduce, ring_steps
from ipu_course.lessons.data_parallelism.scaling import show_scaling

__all__ = ["bytes_sent", "lesson", "ring_all_reduce", "ring_steps", "run_poprun", "show_scaling"]

lesson = Lesson("10", exercises=(RING, COUNTS, MISTAKES, INSTANCE, LIMITS), explorers=(SCALING,))
