"""Lesson 07: sharded debugging, finding faults that print no error."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.sharded_debugging.exercises import COMPARISON, OVERFLOW, PLACEMENT, first_wrong
from ipu_course.lessons.sharded_debugging.explorer import SCANNER
from ipu_course.lessons.sharded_debugging.network import BLOCKS, DigitNetwork, UnitScale
from ipu_course.lessons.sharded_debugging.placement import resnet_on_four_ipus, show_ipus, somebodys_placement
from ipu_course.lessons.sharded_debugging.scanners import show_cure
from ipu_course.lessons.sharded_debugging.sharding import show_sharding, update_times
from ipu_course.lessons.sharded_debugging.stage_differences import plain_outputs, show_differences

__all__ = [
    "BLOCKS",
    "DigitNetwork",
    "UnitScale",
    "first_wrong",
    "lesson",
    "plain_outputs",
    "resnet_on_four_ipus",
    "show_cure",
    "show_differences",
    "show_ipus",
    "show_sharding",
    "somebodys_placement",
    "update_times",
]

lesson = Lesson("07", exercises=(COMPARISON, OVERFLOW, PLACEMENT), explorers=(SCANNER,))
