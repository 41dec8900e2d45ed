"""Lesson 06: pipelining, one network on several IPUs."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.pipelining_mnist.balance import percentage_between, show_cuts, show_stages
from ipu_course.lessons.pipelining_mnist.exercises import HOST, PLACEMENT, STASHES, WHEN
from ipu_course.lessons.pipelining_mnist.explorer import SCHEDULES
from ipu_course.lessons.pipelining_mnist.learner_schedule import show_schedule
from ipu_course.lessons.pipelining_mnist.placements import captured_resnet, show_all_placements, show_placement
from ipu_course.lessons.pipelining_mnist.program_run import run_program
from ipu_course.lessons.pipelining_mnist.strategies import show_strategies
from ipu_course.lessons.pipelining_mnist.utilisation_figure import utilisation
from ipu_course.programs.mnist.model import ConvLayer

__all__ = [
    "ConvLayer",
    "captured_resnet",
    "lesson",
    "percentage_between",
    "run_program",
    "show_all_placements",
    "show_cuts",
    "show_placement",
    "show_schedule",
    "show_stages",
    "show_strategies",
    "utilisation",
]

lesson = Lesson("06", exercises=(WHEN, STASHES, HOST, PLACEMENT), explorers=(SCHEDULES,))
