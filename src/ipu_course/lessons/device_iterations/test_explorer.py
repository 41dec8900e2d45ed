"""Lesson 03's explorer: every setting gives curves or a reason, and the host's costs do what they should."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from ipu_course import engine
from ipu_course.lessons.device_iterations.explorer import DEVICE_ITERATIONS, PIXELS, RESNET, SMALL, iterations_view
from ipu_course.models import SmallNetwork


@lru_cache(maxsize=1)
def programs() -> dict[str, engine.ModelledModule]:
    """A small network under all names, over two IPUs in place of ResNet-101: that needs two device iterations."""
    options = poptorch.Options()
    options.deviceIterations(2)
    over_two = SmallNetwork(width=4)
    over_two.head = poptorch.BeginBlock(over_two.head, ipu_id=1)  # type: ignore[assignment]  # a Linear all the same
    batch = (torch.zeros(8, 3, 32, 32),)
    one = engine.modelled_module(SmallNetwork(width=4), batch, poptorch.Options())
    return {SMALL: one, PIXELS: one, RESNET: engine.modelled_module(over_two, batch, options)}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(DEVICE_ITERATIONS.states())))
def test_every_setting_has_curves_or_a_reason(setting: dict[str, object]) -> None:
    view = DEVICE_ITERATIONS.view(programs(), **setting)
    refused = setting["program"] == RESNET and setting["iterations"] == 1
    assert (view.figure is None) == refused
    assert ("PopTorch refuses this" in view.text) == refused
    if not refused:
        assert view.rows[0]["images per call"] == f"{8 * setting['iterations']:,}"  # type: ignore[operator]


def rate(iterations: int, call: int, image: int) -> float:
    """Images a second that the view's table shows."""
    row = iterations_view(programs(), SMALL, iterations, call, image, "all").rows[0]
    return float(str(row["images per second"]).replace(",", ""))


def test_iterations_help_when_calls_are_dear_and_hardly_when_images_are() -> None:
    # 10 ms a call are paid once for 128 iterations; 800 µs an image are paid for each of 1,024 images.
    assert rate(128, 10, 0) > 50 * rate(1, 10, 0)
    assert rate(128, 0, 800) < 1.25 * rate(1, 0, 800)
    assert rate(128, 0, 800) < 1e6 / 800


@pytest.mark.parametrize("iterations", [1, 128])
def test_all_outputs_never_make_a_program_faster(iterations: int) -> None:
    final, everything = (
        iterations_view(programs(), SMALL, iterations, 0, 0, mode).rows[0]["images per second"]
        for mode in ("final", "all")
    )
    assert float(str(everything).replace(",", "")) <= float(str(final).replace(",", ""))
