"""Lesson 15's explorer: every setting has a picture, or says why its program does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_course import engine
from ipu_course.lessons.the_host_path.explorer import PATHS, path_view
from ipu_course.lessons.the_host_path.land_cover import BYTES, SCORES, HostPath, profile_path


@pytest.mark.parametrize("setting", list(PATHS.states())[::3], ids=str)
def test_a_setting_has_a_picture_or_a_reason(setting: dict[str, Any]) -> None:
    view = PATHS.view(None, **setting)
    profile = profile_path(HostPath(**setting))
    assert view.rows[0]["fits"] == engine.fits_in_a_word(profile)
    if engine.may_run(profile):
        assert view.figure is not None
        assert "A step takes" in view.takeaway
    else:
        assert view.figure is None
        assert "too few" in view.text


def test_there_are_thirty_states() -> None:
    assert len(list(PATHS.states())) == 30


def test_what_the_exercise_asks_can_be_read() -> None:
    def step(depth: int, tiles: int, results: str) -> float:
        return float(str(path_view(None, depth, tiles, results).rows[0]["step"]).split()[0])

    assert step(1, 0, SCORES) - step(3, 0, SCORES) == pytest.approx(1.36, abs=0.011)
    assert step(1, 64, BYTES) - step(3, 64, BYTES) == pytest.approx(0.63, abs=0.011)
