"""Lesson 04: 8-bit I/O: send bytes, normalise on the device."""

from ipu_course.lesson import Lesson
from ipu_course.lessons.eight_bit_io.exercises import BOUND, BYTE_PATH, HOST_SPEED, HUNT
from ipu_course.lessons.eight_bit_io.explorer import IO
from ipu_course.lessons.eight_bit_io.image_types import parts_by_image_type, programs_by_image_type
from ipu_course.lessons.eight_bit_io.input_paths_figure import InputPath, show_input_paths
from ipu_course.lessons.eight_bit_io.pictures import measured_host, pictures, workshop_loader

__all__ = [
    "InputPath",
    "lesson",
    "measured_host",
    "parts_by_image_type",
    "pictures",
    "programs_by_image_type",
    "show_input_paths",
    "workshop_loader",
]

lesson = Lesson("04", exercises=(BYTE_PATH, HUNT, BOUND, HOST_SPEED), explorers=(IO,))
