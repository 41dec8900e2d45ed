"""Lesson 15: The host path: feed the IPU, compile once, and know your malloc."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.the_host_path.allocators import show_allocators
from ipu_course.lessons.the_host_path.compilations import Scaled, count_compilations, programs_in, small_land_cover
from ipu_course.lessons.the_host_path.compile_times import show_compile_times
from ipu_course.lessons.the_host_path.exercises import ALLOCATOR, IO_TILES, KNOBS, ONE_GRAPH, SERVICE
from ipu_course.lessons.the_host_path.explorer import PATHS
from ipu_course.lessons.the_host_path.land_cover import TUNED, HostPath, profile_path, step_milliseconds
from ipu_course.lessons.the_host_path.replicas import show_replicas
from ipu_course.lessons.the_host_path.step_lanes import show_lanes

__all__ = [
    "TUNED",
    "HostPath",
    "Scaled",
    "count_compilations",
    "lesson",
    "profile_path",
    "programs_in",
    "show_allocators",
    "show_compile_times",
    "show_lanes",
    "show_replicas",
    "small_land_cover",
    "step_milliseconds",
]

lesson = Lesson("15", exercises=(IO_TILES, KNOBS, SERVICE, ONE_GRAPH, ALLOCATOR), explorers=(PATHS,))
