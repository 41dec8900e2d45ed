"""Showing a figure: it comes with its description, and the learner's own style stays."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_course import figures
from ipu_course.figures import shown as shown_module
from ipu_course.schedule import pipelined


def test_a_shown_figure_has_its_description_below_and_as_alternative_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[tuple[Any, Any]] = []

    def display(data: Any, metadata: Any, raw: bool) -> None:
        assert raw
        shown.append((data, metadata))

    monkeypatch.setattr(shown_module.InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(shown_module, "display", display)
    figures.show(figures.schedule(pipelined(2, 3)).figure, "Two rows.")
    (picture, metadata), (caption, _) = shown
    assert picture["image/png"].startswith(b"\x89PNG")
    assert picture["text/plain"] == metadata["image/png"]["alt"] == "Two rows."
    assert caption == {"text/markdown": "*Figure: Two rows.*", "text/plain": "Figure: Two rows."}


def test_outside_a_notebook_the_words_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    figures.show(figures.schedule(pipelined(2, 3)).figure, "Two rows.")
    assert capsys.readouterr().out == "Two rows.\nFigure: Two rows.\n"


def test_drawing_leaves_the_learner_s_own_style_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.schedule(pipelined(2, 3))
    assert dict(matplotlib.rcParams) == before
