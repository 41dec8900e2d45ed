"""The ladder so far: modelled beside published, shown and noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipu_course import engine, ladder
from ipu_course.ladder import published_ladder
from ipu_course.lesson import Lesson
from ipu_course.progress import read_progress

STEPS = ("half precision", "gradient accumulation 8")


@pytest.fixture(autouse=True)
def own_progress(records: Path) -> None:
    """Give every test records of its own, and none that an earlier one could not write."""


def test_the_steps_up_to_the_named_one_are_shown_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    Lesson("01").show_ladder("half precision")
    noted = read_progress().rungs
    assert [rung.step for rung in noted] == ["base, 32-bit", "half precision"]
    # The published means of epochs 2 to 5: out of memory, and 260 calls at 4.9425 calls a second.
    assert [rung.published_epoch_seconds for rung in noted] == [None, pytest.approx(260 / 4.945, rel=1e-3)]
    assert noted[0].modelled_epoch_seconds is None
    assert noted[1].modelled_epoch_seconds == pytest.approx(noted[1].published_epoch_seconds, rel=0.05)
    out = capsys.readouterr().out
    assert published_ladder().source in out
    assert "fitted" in out


def test_a_fitted_row_is_called_fitted_and_the_caption_says_what_the_step_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Lesson("02").show_ladder("gradient accumulation 8")
    out = capsys.readouterr().out
    rows = {step: line for line in out.splitlines() for step in ("base", "half", "gradient") if line.startswith(step)}
    assert "fitted" not in rows["base"]  # out of memory: that is no time of the host
    assert "s, host work fitted" in rows["half"]
    assert "s, host work fitted" in rows["gradient"]
    assert "derived from [1]" in out
    before, after = (ladder.epoch_seconds(step.profile) for step in ladder.climb(list(STEPS)))
    assert f"With {STEPS[1]}, an epoch takes {after:.1f} s instead of {before:.1f} s" in out


def test_every_published_epoch_was_used_for_the_fit_of_the_host() -> None:
    known = published_ladder()
    assert [step.name for step in known.steps if step.fits] == list(known.host.fitted_on)


def test_an_unknown_step_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no step 'int8'; it has 'base, 32-bit', 'half precision'"):
        Lesson("01").show_ladder("int8")


def test_without_an_ipu_model_there_is_a_line_and_nothing_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    Lesson("01").show_ladder("half precision")
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"
    assert not read_progress().rungs


def test_a_published_step_is_found_by_its_name() -> None:
    assert ladder.published("8-bit I/O").calls_per_epoch == 24
    with pytest.raises(ValueError, match="no step 'four bits'"):
        ladder.published("four bits")
    assert ladder.epoch_seconds(None) is None
