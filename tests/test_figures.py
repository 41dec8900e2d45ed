"""The figures: what they draw for a schedule, and that they come with a description."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course import figures
from ipu_course.figures import shown as shown_module
from ipu_course.schedule import pipelined, sharded


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in axes_of(figure).texts]


class TestSchedule:
    def test_every_pass_is_labelled_at_its_place(self) -> None:
        schedule = pipelined(4, 10)
        labels = {
            (text.get_text(), *text.get_position())
            for text in axes_of(figures.schedule_figure(schedule, "")).texts
            if text.get_text()[:1] in "FB" and text.get_text()[1:].isdigit()
        }
        assert labels == {
            (f"{each.direction[0].upper()}{each.micro_batch + 1}", each.half_step / 2 + 0.25, each.stage)
            for each in schedule.passes
        }

    def test_the_phases_are_named_with_their_steps(self) -> None:
        said = texts(figures.schedule_figure(pipelined(4, 10), ""))
        assert {"ramp-up: 6 steps", "steady state: 4 steps", "ramp-down: 6 steps"} <= set(said)

    def test_one_step_is_no_plural(self) -> None:
        assert "steady state: 1 step" in texts(figures.schedule_figure(pipelined(4, 7), ""))

    def test_there_are_no_phases_without_a_steady_state(self) -> None:
        for schedule in (pipelined(4, 6), sharded(4, 2)):
            assert not any("steps" in text for text in texts(figures.schedule_figure(schedule, "")))

    def test_a_long_schedule_has_no_labels_that_would_overlap(self) -> None:
        assert "F1" not in texts(figures.schedule_figure(pipelined(4, 40), ""))

    def test_the_axes_say_what_they_show_and_that_it_is_no_time(self) -> None:
        axes = axes_of(figures.schedule_figure(pipelined(2, 3), "A title"))
        assert axes.get_title(loc="left") == "A title"
        assert axes.get_xlabel() == "pipeline step (an order of work, not a time)"
        assert [label.get_text() for label in axes.get_yticklabels()] == ["IPU 0", "IPU 1"]


class TestUtilisation:
    def test_lines_start_at_the_minimum_and_follow_the_formula(self) -> None:
        axes = axes_of(figures.utilisation_figure((2, 4), largest=64, marked=(4, 10)))
        curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
        for stages, curve in zip((2, 4), curves):
            points = dict(zip(list(curve.get_xdata()), list(curve.get_ydata())))
            assert min(points) == 2 * stages - 1
            assert points[24] == pytest.approx(pipelined(stages, 24).utilisation)

    def test_the_marked_point_is_labelled(self) -> None:
        assert "4 IPUs, 10 micro-batches: 62.5 %" in texts(figures.utilisation_figure((4,), 64, (4, 10)))

    def test_more_lines_than_can_be_told_apart_are_refused(self) -> None:
        with pytest.raises(ValueError, match="only 3 can be told apart"):
            figures.utilisation_figure((2, 3, 4, 5), 64, (4, 10))


def test_a_shown_figure_has_its_description_below_and_as_alternative_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[tuple[Any, Any]] = []

    def display(data: Any, metadata: Any, raw: bool) -> None:
        assert raw
        shown.append((data, metadata))

    monkeypatch.setattr(shown_module.InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(shown_module, "display", display)
    figures.show(figures.schedule_figure(pipelined(2, 3), ""), "Two rows.")
    (picture, metadata), (caption, _) = shown
    assert picture["image/png"].startswith(b"\x89PNG")
    assert picture["text/plain"] == metadata["image/png"]["alt"] == "Two rows."
    assert caption == {"text/markdown": "*Figure: Two rows.*", "text/plain": "Figure: Two rows."}


def test_outside_a_notebook_the_words_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    figures.show(figures.schedule_figure(pipelined(2, 3), ""), "Two rows.")
    assert capsys.readouterr().out == "Two rows.\nFigure: Two rows.\n"


def test_drawing_leaves_the_learner_s_own_style_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.schedule_figure(pipelined(2, 3), "")
    assert dict(matplotlib.rcParams) == before
