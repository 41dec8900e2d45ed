"""Lesson 03: Device iterations: let the loop run on the device."""

from __future__ import annotations

from ipu_course.call_parts import show_epoch_parts
from ipu_course.lesson import Lesson
from ipu_course.lessons.device_iterations.call_anatomy import show_call
from ipu_course.lessons.device_iterations.exercises import GOOD_CALL, IN_TIME, MEAN_LOSS, SCHEDULE, rate_at
from ipu_course.lessons.device_iterations.explorer import DEVICE_ITERATIONS, RESNET, SMALL
from ipu_course.lessons.device_iterations.long_calls import show_long_calls
from ipu_course.lessons.device_iterations.programs import modelled_programs
from ipu_course.lessons.device_iterations.round_trips_figure import round_trips

__all__ = [
    "RESNET",
    "SMALL",
    "lesson",
    "modelled_programs",
    "rate_at",
    "round_trips",
    "show_call",
    "show_epoch_parts",
    "show_long_calls",
]

lesson = Lesson("03", exercises=(SCHEDULE, MEAN_LOSS, IN_TIME, GOOD_CALL), explorers=(DEVICE_ITERATIONS,))
