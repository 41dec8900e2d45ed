"""Lesson 06's explorer: every setting of its knobs gives a chart or a reason, and says what the schedule says."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from explorer_settings import some_of

from ipu_course.lessons.pipelining_mnist.explorer import ACCUMULATIONS, KINDS, NAMES, SHARDED, STAGES, pipeline_view

SETTINGS = some_of(STAGES, ACCUMULATIONS, KINDS, count=24)


def test_the_menu_offers_every_schedule() -> None:
    assert set(NAMES.values()) == set(KINDS)


@pytest.mark.parametrize(("stages", "accumulation", "kind"), SETTINGS)
def test_a_setting_has_a_chart_or_a_reason(stages: int, accumulation: int, kind: str) -> None:
    view = pipeline_view(stages, accumulation, kind)
    allowed = kind == SHARDED or accumulation >= 2 * stages - 1
    assert (view.figure is not None) == allowed
    assert allowed or f"at least 2 x {stages} - 1" in view.text
    assert len(view.rows) == (stages if allowed else 0)


def test_the_default_is_the_tutorial_s_schedule() -> None:
    view = pipeline_view(4, 10, "grouped")
    # 10 + 2 x 3 steps; 10 / 16 of them; 10 / (10 + 3) of the time; 2 (3 - s) + 1 micro-batches in stage s.
    assert view.text.startswith("16 pipeline steps. Busy for 62.5% of all half-steps, counted; for 76.9% of the time")
    assert [row["micro-batches in its stash"] for row in view.rows] == [7, 5, 3, 0]


def test_interleaving_keeps_about_half_and_takes_longer() -> None:
    view = pipeline_view(4, 10, "interleaved")
    assert [row["micro-batches in its stash"] for row in view.rows] == [4, 3, 2, 0]
    # Busy half-steps wait for the neighbours' backward passes: less of the time than grouped, 76.9 %.
    share = float(view.text.partition("counted; for ")[2].partition("%")[0])
    assert share < 76.9


def test_figures_are_of_nobody_s_pyplot() -> None:
    pipeline_view(2, 3, "grouped")
    assert not plt.get_fignums()
