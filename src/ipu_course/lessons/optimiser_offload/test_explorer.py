"""Lesson 08's explorer: every setting of its knobs gives a figure, whose parts are those of the profile."""

from __future__ import annotations

import itertools

import pytest
from offload_support import ELEMENTS, one_weight

from ipu_course import engine
from ipu_course.lessons.optimiser_offload.explorer import (
    ACCUMULATIONS,
    ADAMW,
    FULL,
    HALF,
    MOMENTUM,
    PARTS,
    TYPES,
    explore_offload,
    offload_view,
)


@pytest.fixture(scope="module")
def modelled() -> engine.ModelledModule:
    return one_weight()


SETTINGS = list(itertools.product((False, True), (ACCUMULATIONS[0], ACCUMULATIONS[-1]), (ADAMW, MOMENTUM), TYPES))


@pytest.mark.parametrize(("off_chip", "accumulation", "optimiser", "state"), SETTINGS)
def test_every_setting_has_a_figure(
    modelled: engine.ModelledModule, off_chip: bool, accumulation: int, optimiser: str, state: str
) -> None:
    view = offload_view(modelled, off_chip, accumulation, optimiser, state)
    assert view.figure is not None
    assert len(view.rows) == 1
    if not off_chip:
        assert view.rows[0]["longer than on chip by"] == view.rows[0]["copies of state"] == "0%"


@pytest.mark.parametrize(
    ("optimiser", "state", "size"), [(ADAMW, HALF, 6), (ADAMW, FULL, 8), (MOMENTUM, HALF, 2), (MOMENTUM, FULL, 4)]
)
def test_state_has_the_bytes_that_its_types_say(
    modelled: engine.ModelledModule, optimiser: str, state: str, size: int
) -> None:
    """AdamW: moments of 2 or 4 bytes and of 4; momentum: one velocity."""
    from ipu_course.lessons.optimiser_offload.explorer import _specification

    profile = modelled.profile(optimizer=_specification(optimiser, state), optimiser_off_chip=True)
    assert profile.memory.off_chip_bytes == size * ELEMENTS


def test_the_parts_are_the_whole_time(modelled: engine.ModelledModule) -> None:
    profile = modelled.profile(optimiser_off_chip=True)
    shares = [share for names in PARTS.values() for share in names]
    assert sorted(shares) == sorted(profile.shares)


def test_without_a_model_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    explore_offload(None)
    assert capsys.readouterr().out.strip() == engine.NOT_HERE


def test_a_small_accumulation_shows_what_the_copies_cost(modelled: engine.ModelledModule) -> None:
    (row,) = offload_view(modelled, True, ACCUMULATIONS[0], ADAMW, FULL).rows
    assert "0%" not in (row["longer than on chip by"], row["copies of state"])
