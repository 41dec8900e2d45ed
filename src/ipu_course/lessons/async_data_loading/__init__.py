"""Lesson 05: Asynchronous data loading: load while the IPUs work."""

from ipu_course.call_parts import call_parts
from ipu_course.lesson import Lesson
from ipu_course.lessons.async_data_loading import calls_timed
from ipu_course.lessons.async_data_loading.exercises import BUFFER, CALL_ENDS, KEEP, TRACES
from ipu_course.lessons.async_data_loading.explorer import LOADING
from ipu_course.lessons.async_data_loading.safe_script import run_scripts
from ipu_course.lessons.async_data_loading.slow_images import SlowImages
from ipu_course.lessons.async_data_loading.traces import three_traces, traces_figure

__all__ = [
    "SlowImages",
    "call_parts",
    "calls_timed",
    "lesson",
    "run_scripts",
    "three_traces",
    "traces_figure",
]

lesson = Lesson("05", exercises=(TRACES, KEEP, CALL_ENDS, BUFFER), explorers=(LOADING,))
