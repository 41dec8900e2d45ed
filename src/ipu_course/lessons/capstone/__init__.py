"""Lesson 17: Capstone: fit a transformer, make it fast, and defend it."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.capstone.budget import new_budget, show_ladder
from ipu_course.lessons.capstone.comparison_of_plans import show_plans_compared, show_published
from ipu_course.lessons.capstone.exercises import COSTS, LOADER, PLAN, REPORT, SENT
from ipu_course.lessons.capstone.explorer import PRICES
from ipu_course.lessons.capstone.first_look import show_as_it_is
from ipu_course.lessons.capstone.photographs import full_size_cnn, show_slow_program, waiting_percent
from ipu_course.lessons.capstone.plan_results import all_plans
from ipu_course.lessons.capstone.plans_figure import show_every_plan
from ipu_course.lessons.capstone.pods import plan_to_scale, show_replicas
from ipu_course.lessons.capstone.report import write_report
from ipu_course.lessons.capstone.small import show_small, train_small
from ipu_course.lessons.capstone.transformer import SIZES

__all__ = [
    "SIZES",
    "all_plans",
    "full_size_cnn",
    "lesson",
    "new_budget",
    "plan_to_scale",
    "show_as_it_is",
    "show_every_plan",
    "show_ladder",
    "show_plans_compared",
    "show_published",
    "show_replicas",
    "show_slow_program",
    "show_small",
    "train_small",
    "waiting_percent",
    "write_report",
]

lesson = Lesson("17", exercises=(PLAN, COSTS, SENT, LOADER, REPORT), explorers=(PRICES,))
