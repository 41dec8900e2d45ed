"""Lesson 08's explorer: every setting of its controls gives a figure, whose parts are those of the profile."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_support import ELEMENTS, one_weight

from ipu_course import engine
from ipu_course.lessons.optimiser_offload.explorer import (
    ACCUMULATIONS,
    ADAMW,
    MOMENTUM,
    OFFLOAD,
    PARTS,
    PLAIN,
    _specification,
    offload_view,
)


@lru_cache(maxsize=1)
def modelled() -> engine.ModelledModule:
    return one_weight()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(OFFLOAD.states())))
def test_every_setting_has_a_figure(setting: dict[str, object]) -> None:
    view = OFFLOAD.view(modelled(), **setting)
    assert view.figure is not None
    (row,) = view.rows
    if not setting["off_chip"] or setting["optimiser"] == PLAIN:
        assert row["longer than on the chip by"] == row["copies' share of the time"] == "0.0%"


@pytest.mark.parametrize(("optimiser", "size"), [(ADAMW, 8), (MOMENTUM, 4), (PLAIN, 0)])
def test_state_has_the_bytes_of_its_tensors(optimiser: str, size: int) -> None:
    """AdamW keeps two moments of 4 bytes, momentum one velocity, and plain SGD nothing."""
    profile = modelled().profile(optimizer=_specification(optimiser), optimiser_off_chip=True)
    assert profile.memory.off_chip_bytes == size * ELEMENTS


def test_the_parts_are_the_whole_time() -> None:
    profile = modelled().profile(optimiser_off_chip=True)
    shares = [share for names in PARTS.values() for share in names]
    assert sorted(shares) == sorted(profile.shares)


def test_a_small_accumulation_shows_what_the_copies_cost() -> None:
    (row,) = offload_view(modelled(), ACCUMULATIONS[0], ADAMW, True).rows
    assert "0.0%" not in (row["longer than on the chip by"], row["copies' share of the time"])
