"""Lesson 01: Half precision."""

from __future__ import annotations

from ipu_course.datasets import colour_shapes
from ipu_course.lesson import Lesson
from ipu_course.lessons.half_precision.camera import CameraDigits
from ipu_course.lessons.half_precision.exercises import DIAGNOSIS, REPAIR, WINDOW
from ipu_course.lessons.half_precision.explorer import LOSS_SCALING
from ipu_course.lessons.half_precision.gradient_sizes import gradient_sizes
from ipu_course.lessons.half_precision.steady_updates import SteadyUpdates
from ipu_course.lessons.half_precision.trial import try_out
from ipu_course.lessons.half_precision.views import show_fit, show_losses, show_paths, show_rates
from ipu_course.models import ClassifierWithLoss, Digits

__all__ = [
    "CameraDigits",
    "ClassifierWithLoss",
    "Digits",
    "SteadyUpdates",
    "colour_shapes",
    "gradient_sizes",
    "lesson",
    "show_fit",
    "show_losses",
    "show_paths",
    "show_rates",
    "try_out",
]

lesson = Lesson("01", exercises=(WINDOW, DIAGNOSIS, REPAIR), explorers=(LOSS_SCALING,))
