"""Lesson 08: Optimiser state: on the chip or off it."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.optimiser_offload.copies import copies_share, show_accumulations, show_price, show_update
from ipu_course.lessons.optimiser_offload.exercises import PLACE, PRICE, RARE, SHARED
from ipu_course.lessons.optimiser_offload.explorer import OFFLOAD
from ipu_course.lessons.optimiser_offload.parts import show_parts
from ipu_course.lessons.optimiser_offload.places import place_table, show_places
from ipu_course.lessons.optimiser_offload.program import resnet101
from ipu_course.lessons.optimiser_offload.replicas import show_sharding
from ipu_course.lessons.optimiser_offload.states import show_states

__all__ = [
    "copies_share",
    "lesson",
    "place_table",
    "resnet101",
    "show_accumulations",
    "show_parts",
    "show_places",
    "show_price",
    "show_sharding",
    "show_states",
    "show_update",
]

lesson = Lesson("08", exercises=(PRICE, PLACE, RARE, SHARED), explorers=(OFFLOAD,))
