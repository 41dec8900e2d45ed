"""The figures in the text and in the instructor's notes of lesson 00 are those of the model and of its validation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lesson_words import notes, printed, text

from ipu_course import ladder
from ipu_course.lessons.start_here.exercises import EVENLY
from ipu_course.lessons.start_here.explorer import kib_for_parameters
from ipu_model import Profile

VALIDATION = Path(__file__).parents[4] / "docs" / "validation.md"
TEXT, NOTES = text("00"), notes("start_here")


@pytest.fixture(scope="module")
def resnet() -> Profile:
    """The program that the notebook profiles: the ladder's step with half precision."""
    (step,) = ladder.climb(("half precision",))
    return step.profile


def test_the_share_of_work_is_the_profile_s(resnet: Profile) -> None:
    share = resnet.device_seconds_per_call / resnet.call_seconds
    assert 0.05 < share < 0.1
    assert "work for less than a tenth of the time" in TEXT
    assert f"{100 * share:.1f}, modelled" in NOTES
    assert f"({1000 * resnet.device_seconds_per_call:.1f} ms a call)" in NOTES


def test_the_epochs_are_the_profile_s_and_the_workshop_s(resnet: Profile) -> None:
    modelled, derived = ladder.epoch_seconds(resnet), ladder.published("half precision").epoch_seconds
    assert f"{modelled:.1f} against {derived:.1f} s" in NOTES
    results = [step.result for step in ladder.published_ladder().steps]
    assert results[1].startswith("52 s")
    assert results[-1].startswith("8 s")
    assert "the 52 s of the workshop's progress bar" in TEXT
    assert f"the figure's {derived:.1f} s" in TEXT


def test_the_memory_for_the_parameters_is_the_profile_s(resnet: Profile) -> None:
    first, second = (kib_for_parameters(resnet, ipu) for ipu in (0, 1))
    assert f"about {second:.0f} KiB, not {EVENLY:.1f}" in TEXT
    assert f"{EVENLY:.1f} KiB on each" in TEXT
    assert f"{second:.1f} KiB on IPU 1 and {first:.1f} KiB on IPU 0" in NOTES
    assert second / EVENLY == pytest.approx(1.5, abs=0.05)  # "half as much again"


def test_the_chip_s_figures_are_those_of_the_machine(resnet: Profile) -> None:
    machine = resnet.machine
    assert f"{machine.tiles:,} small processors" in TEXT
    assert f"{machine.tile_bytes // 1024} KiB" in TEXT


def test_the_fitted_rows_agree_as_closely_as_the_text_says() -> None:
    # Lesson 05 shows the whole ladder, with each difference.
    steps = [step.name for step in ladder.published_ladder().steps if step.fits]
    errors = [printed("05", rf"{re.escape(name)} .* ([+-]\d+\.\d)%") for name in steps]
    assert 2 < max(map(abs, errors)) <= 3
    assert "agree to within 3 %" in TEXT


def test_the_errors_of_the_rows_scored_blind_are_those_of_the_validation() -> None:
    page = VALIDATION.read_text(encoding="utf-8")
    speed = re.search(r"off by ([\d.]+)% at the median, on (\d+) published rows of speed", page)
    transformers = re.search(r"and by (\d+)\.\d% at the median, (\d+)% at worst, on 12 training programs", page)
    assert speed
    assert transformers
    assert f"on {speed[2]} of them, **scored blind**, its median error was {speed[1]} %" in TEXT
    assert f"On twelve training runs of transformers it was {transformers[1]} %, and {transformers[2]} %" in TEXT
