"""Lesson 02: Gradient accumulation: many micro-batches, one weight update."""

from __future__ import annotations

from ipu_course.call_parts import show_epoch_parts
from ipu_course.lesson import Lesson
from ipu_course.lessons.gradient_accumulation.exercises import ACCUMULATE, BUSY, ENOUGH, SUM
from ipu_course.lessons.gradient_accumulation.explorer import ACCUMULATION
from ipu_course.lessons.gradient_accumulation.large_batches import percent_apart
from ipu_course.lessons.gradient_accumulation.rates import show_rates, show_stages

__all__ = ["lesson", "percent_apart", "show_epoch_parts", "show_rates", "show_stages"]

lesson = Lesson("02", exercises=(ACCUMULATE, BUSY, ENOUGH, SUM), explorers=(ACCUMULATION,))
