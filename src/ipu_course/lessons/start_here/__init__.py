"""Lesson 00: Start here: meet the IPU."""

from __future__ import annotations

from ipu_course.datasets import colour_shapes
from ipu_course.lesson import Lesson
from ipu_course.lessons.start_here.bulk_synchronous_figure import bulk_synchronous
from ipu_course.lessons.start_here.exercises import FULLEST_TILE, PORT, SPREAD_EVENLY
from ipu_course.lessons.start_here.explorer import PICTURES
from ipu_course.lessons.start_here.hardware_drawings import chip, ipu_system
from ipu_course.lessons.start_here.story import show_story
from ipu_course.models import ClassifierWithLoss, SmallNetwork
from ipu_course.programs.doctor import doctor

__all__ = [
    "ClassifierWithLoss",
    "SmallNetwork",
    "bulk_synchronous",
    "chip",
    "colour_shapes",
    "doctor",
    "ipu_system",
    "lesson",
    "show_story",
]

lesson = Lesson("00", exercises=(SPREAD_EVENLY, PORT, FULLEST_TILE), explorers=(PICTURES,))
