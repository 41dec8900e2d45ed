"""Lesson 05: Asynchronous data loading: load while the IPUs work."""

from ipu_course.call_parts import call_parts
from ipu_course.lesson import Lesson
from ipu_course.lessons.async_data_loading.calls_timed import time_calls
from ipu_course.lessons.async_data_loading.exercises import BUFFER, CALL_ENDS, KEEP, TRACES
from ipu_course.lessons.async_data_loading.explorer import LOADING
from ipu_course.lessons.async_data_loading.measured_loaders import MeasuredLoader, show_loaders
from ipu_course.lessons.async_data_loading.safe_script import run_scripts
from ipu_course.lessons.async_data_loading.slow_images import SlowImages
from ipu_course.lessons.async_data_loading.traces import show_traces, three_traces

__all__ = [
    "MeasuredLoader",
    "SlowImages",
    "call_parts",
    "lesson",
    "run_scripts",
    "show_loaders",
    "show_traces",
    "three_traces",
    "time_calls",
]

lesson = Lesson("05", exercises=(TRACES, KEEP, CALL_ENDS, BUFFER), explorers=(LOADING,))
