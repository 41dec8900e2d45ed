"""The figures in the text and in the instructor's notes of lesson 00 are those of the model and of its validation."""

from __future__ import annotations

import pytest
from lesson_words import notes, printed, text

from ipu_course import ladder
from ipu_course.lessons.start_here.exercises import EVENLY
from ipu_course.lessons.start_here.explorer import kib_for_parameters
from ipu_model import Profile

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


def test_the_facts_before_the_prediction_lead_to_its_result(resnet: Profile) -> None:
    alone = resnet.samples_per_call / resnet.device_seconds_per_call
    assert alone == pytest.approx(10_000, rel=0.05)
    assert "could train on about 10,000 images per second" in TEXT
    assert round(ladder.published("half precision").epoch_seconds or 0) == 53
    assert "an epoch of 50,000 images takes about 53 s" in TEXT


def test_what_the_host_does_before_the_ipus_start(resnet: Profile) -> None:
    start = printed("00", r"a call on the host from ([\d.]+) ms")
    works = printed("00", r"the device's work from ([\d.]+) ms")
    assert f"the host spends {works - start:.0f} ms on the call itself" in TEXT


def test_the_error_band_is_the_profile_s(resnet: Profile) -> None:
    band = resnet.error_band
    assert f"{band.low:.2f} to {band.high:.2f} times this profile's time on the device" in TEXT


def test_the_answer_to_the_story_s_question_is_on_the_ladder() -> None:
    seconds = [step.epoch_seconds for step in ladder.published_ladder().steps if step.epoch_seconds]
    saved = [before - after for before, after in zip(seconds, seconds[1:])]
    assert sorted(saved)[-1] > 1.1 * sorted(saved)[-2]  # no tie
