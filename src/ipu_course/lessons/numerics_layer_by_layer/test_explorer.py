"""Lesson 16's explorer says which end of the range a layer leaves."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_course.lessons.numerics_layer_by_layer.explorer import LAYER_RANGES, layer_view
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    ACTIVATION_GRADIENTS,
    GRADIENTS,
    LARGEST_HALF,
    QUANTITIES,
    LayerValues,
    range_shares,
)
from ipu_course.lessons.numerics_layer_by_layer.range_figure import range_figure
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import LAYERS


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_setting_has_a_picture_its_shares_and_a_caption(record: LayerValues, quantity: str) -> None:
    for state in (each for each in LAYER_RANGES.states() if each["quantity"] == quantity):
        view = layer_view(record, **state)
        assert view.figure is not None
        assert state["layer"] in view.description
        assert _said(record, state) in view.takeaway


def _said(record: LayerValues, state: dict[str, Any]) -> str:
    if state["quantity"] not in GRADIENTS:
        return "stay where they are"
    tensor, exponent = record[state["layer"], state["quantity"]], state["exponent"]
    if float(tensor.abs().max()) * 2.0**exponent > LARGEST_HALF:
        return "overflow"
    lost = range_shares(tensor, exponent).zero
    if lost > 0.99:
        return "nearly all"
    return "in a hundred becomes zero" if lost >= 0.01 else "none overflows"


def test_the_first_view_is_the_prediction_s_and_gives_no_other_answer_away(record: LayerValues) -> None:
    view = LAYER_RANGES.view(record, **{name: control.default for name, control in LAYER_RANGES.controls.items()})
    assert view.rows[0]["layer"] == "upper"
    assert view.rows[0]["quantity"] == ACTIVATION_GRADIENTS


def test_the_drawing_describes_all_panels(record: LayerValues) -> None:
    description = range_figure(record).description
    assert all(f"{layer}, {quantity}: " in description for layer in LAYERS for quantity in QUANTITIES)
    assert "upper, activation gradients: all become zero" in description
