"""Lesson 03's explorer: every setting gives curves or a reason, and the host's costs do what they should."""

from __future__ import annotations

from functools import lru_cache

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from ipu_course import engine
from ipu_course.lessons.device_iterations.explorer import (
    CALL_MILLISECONDS,
    IMAGE_MICROSECONDS,
    ITERATIONS,
    MODES,
    NO_RATES,
    explore_device_iterations,
    iterations_view,
)
from ipu_course.models import SmallNetwork

ONE, TWO = "one IPU", "two IPUs"


@lru_cache(maxsize=1)
def programs() -> dict[str, engine.ModelledModule | None]:
    """A small network on one IPU, and the same over two: its pipeline needs two device iterations."""
    options = poptorch.Options()
    options.deviceIterations(2)
    over_two = SmallNetwork(width=4)
    over_two.head = poptorch.BeginBlock(over_two.head, ipu_id=1)  # type: ignore[assignment]  # a Linear all the same
    batch = (torch.zeros(8, 3, 32, 32),)
    return {
        ONE: engine.modelled_module(SmallNetwork(width=4), batch, poptorch.Options()),
        TWO: engine.modelled_module(over_two, batch, options),
    }


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([ONE, TWO]),
    st.sampled_from(ITERATIONS),
    st.sampled_from(CALL_MILLISECONDS),
    st.sampled_from(IMAGE_MICROSECONDS),
    st.sampled_from(list(MODES.values())),
)
def test_every_setting_has_curves_or_a_reason(program: str, iterations: int, call: int, image: int, mode: str) -> None:
    view = iterations_view(programs(), program, iterations, call, image, mode)
    refused = program == TWO and iterations == 1
    assert (view.figure is None) == refused
    assert ("PopTorch refuses this" in view.text) == refused
    if not refused:
        assert view.rows[0]["images in a call"] == f"{8 * iterations:,}"


def rate(iterations: int, call: int, image: int) -> float:
    """Images a second that the view's table shows."""
    row = iterations_view(programs(), ONE, iterations, call, image, "all").rows[0]
    return float(str(row["images a second"]).replace(",", ""))


def test_iterations_help_when_calls_are_dear_and_hardly_when_images_are() -> None:
    # 10 ms a call are paid once for 128 iterations; 800 µs an image are paid for each of 1,024 images.
    assert rate(128, 10, 0) > 50 * rate(1, 10, 0)
    assert rate(128, 0, 800) < 1.25 * rate(1, 0, 800)
    assert rate(128, 0, 800) < 1e6 / 800


def test_without_an_ipu_model_the_view_says_so() -> None:
    view = iterations_view({ONE: None}, ONE, 16, 1, 0, "final")
    assert view.figure is None
    assert view.text == NO_RATES


def test_an_explorer_without_programs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one program"):
        explore_device_iterations({})


def test_figures_are_of_nobody_s_pyplot() -> None:
    iterations_view(programs(), ONE, 16, 1, 0, "final")
    assert not plt.get_fignums()
