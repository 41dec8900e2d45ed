"""Showing a figure: it comes with its description, and the learner's own style stays."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_course import figures, show
from ipu_course.figures import shown
from ipu_course.schedule import pipelined


def test_a_shown_figure_has_its_description_as_alternative_text_and_its_point_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs: list[tuple[Any, Any]] = []

    def display(data: Any, metadata: Any, raw: bool) -> None:
        assert raw
        outputs.append((data, metadata))

    monkeypatch.setattr(shown.InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(shown, "display", display)
    show.figure(figures.schedule(pipelined(2, 3)).figure, "They take turns.", "Two rows.")
    (picture, metadata), (caption, _) = outputs
    assert picture["image/png"].startswith(b"\x89PNG")
    assert picture["text/plain"] == metadata["image/png"]["alt"] == "Two rows."
    assert caption == {"text/markdown": "*They take turns.*", "text/plain": "They take turns."}


def test_outside_a_notebook_the_words_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show.figure(figures.schedule(pipelined(2, 3)).figure, "They take turns.", "Two rows.")
    assert capsys.readouterr().out == "Two rows.\nThey take turns.\n"


def test_drawing_leaves_the_learner_s_own_style_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.schedule(pipelined(2, 3))
    assert dict(matplotlib.rcParams) == before
