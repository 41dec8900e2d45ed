"""Lesson 11: Where memory goes: take the fullest tile apart."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.where_memory_goes.exercises import ALWAYS_LIVE, FREED, KEPT, MAP
from ipu_course.lessons.where_memory_goes.explorer import MEMORY
from ipu_course.lessons.where_memory_goes.hill import kept_on_each_tile, show_hill
from ipu_course.lessons.where_memory_goes.tables import code_kib, show_always_live, show_code, show_gradients
from ipu_course.lessons.where_memory_goes.tiles_figure import show_parameter_tiles
from ipu_course.lessons.where_memory_goes.training_graph import show_training_graph
from ipu_course.tile_over_time import hill_of

__all__ = [
    "code_kib",
    "hill_of",
    "kept_on_each_tile",
    "lesson",
    "show_always_live",
    "show_code",
    "show_gradients",
    "show_hill",
    "show_parameter_tiles",
    "show_training_graph",
]

lesson = Lesson("11", exercises=(ALWAYS_LIVE, KEPT, FREED, MAP), explorers=(MEMORY,))
