"""Lesson 06's explorer: every setting of its knobs gives a chart or a reason, and says what the schedule says."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pytest

from ipu_course.lessons.pipelining_mnist.explorer import SCHEDULES, SHARDED, schedule_view


@pytest.mark.parametrize("setting", list(SCHEDULES.states())[::3])
def test_a_setting_has_a_chart_or_a_reason(setting: dict[str, Any]) -> None:
    view = schedule_view(**setting)
    least = 2 * setting["stages"] - 1
    allowed = setting["kind"] == SHARDED or setting["accumulation"] >= least
    assert (view.figure is not None) == allowed
    assert allowed or f"= {least}" in view.text
    assert len(view.rows) == (setting["stages"] if allowed else 0)


def test_the_default_is_the_tutorial_s_schedule() -> None:
    view = schedule_view(4, 10, "grouped")
    # 10 + 2 x 3 steps; 10 / (10 + 3) of the time; 10 / 16 of the steps; 2 (3 - s) + 1 micro-batches in stage s.
    assert view.text.startswith("The update takes 16 pipeline steps.")
    assert "busy for 76.9% of the time" in view.text
    assert "counted in steps, it is 62.5%" in view.text
    assert [row["micro-batches in its stash"] for row in view.rows] == [7, 5, 3, 0]


def test_interleaving_keeps_about_half_and_takes_longer() -> None:
    view = schedule_view(4, 10, "interleaved")
    assert [row["micro-batches in its stash"] for row in view.rows] == [4, 3, 2, 0]
    # Passes wait for the neighbours' backward passes: busy for less of the time than grouped, 76.9 %.
    assert float(view.text.partition("busy for ")[2].partition("%")[0]) < 76.9


def test_figures_do_not_touch_pyplot_state() -> None:
    schedule_view(2, 3, "grouped")
    assert not plt.get_fignums()
