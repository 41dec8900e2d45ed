"""Lesson 16: Numerics, layer by layer: find the layers that half precision silences, and mend each of them."""

from __future__ import annotations

from ipu_course.lesson import Lesson
from ipu_course.lessons.numerics_layer_by_layer.exercises import CHOOSE, MEND, ROUND, UNIT_TEST, WINDOW_BY_LAYER
from ipu_course.lessons.numerics_layer_by_layer.explorer import LAYER_RANGES
from ipu_course.lessons.numerics_layer_by_layer.faults_found import faults_found, show_faults
from ipu_course.lessons.numerics_layer_by_layer.layer_values import half_ulp, range_shares
from ipu_course.lessons.numerics_layer_by_layer.mending_check import mended
from ipu_course.lessons.numerics_layer_by_layer.planted_faults import in_half
from ipu_course.lessons.numerics_layer_by_layer.range_figure import range_figure
from ipu_course.lessons.numerics_layer_by_layer.scaling_check import scaling_for
from ipu_course.lessons.numerics_layer_by_layer.sensor_variants import SensibleUnits, mended_but_unit
from ipu_course.lessons.numerics_layer_by_layer.standstill import (
    lost_updates,
    movement_rows,
    outcome_rows,
    show_losses,
    show_movement,
)
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import (
    LAYERS,
    LEARNING_RATE,
    TwoSensors,
    calls,
    train,
    training_options,
)

__all__ = [
    "LAYERS",
    "LEARNING_RATE",
    "SensibleUnits",
    "TwoSensors",
    "calls",
    "faults_found",
    "half_ulp",
    "in_half",
    "lesson",
    "lost_updates",
    "mended",
    "mended_but_unit",
    "movement_rows",
    "outcome_rows",
    "range_figure",
    "range_shares",
    "scaling_for",
    "show_faults",
    "show_losses",
    "show_movement",
    "train",
    "training_options",
]

lesson = Lesson("16", exercises=(WINDOW_BY_LAYER, CHOOSE, MEND, ROUND, UNIT_TEST), explorers=(LAYER_RANGES,))
