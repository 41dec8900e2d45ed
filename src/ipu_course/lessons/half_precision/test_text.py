"""The figures in the text and in the instructor's notes of lesson 01 are those of the model and of the notebook."""

from __future__ import annotations

import re

import pytest
from lesson_words import notes, outputs, printed, text

from ipu_course import engine
from ipu_course.lessons.half_precision.exercises import WINDOW
from ipu_course.programs.train.model import captured
from ipu_course.programs.train.settings import TrainSettings
from ipu_model.predict.profile import close_band

TEXT, NOTES = text("01"), notes("half_precision")


def rate(precision: str) -> float:
    """Return the modelled images per second of the IPUs alone, as the notebook's figure describes them."""
    return printed("01", rf"Images per second of the two IPUs.* {precision} ([\d,]+)")


def test_the_gains_are_those_of_the_figure_of_rates() -> None:
    assert f"trains {rate('16.16') / rate('32.32'):.1f} times as fast" in TEXT
    assert f"the factor of {rate('16.16') / rate('32.32'):.2f}" in NOTES
    assert f"add a factor of {rate('half partials') / rate('16.16'):.1f}" in TEXT
    assert "16.32 is nearly as fast as 16.16" in TEXT
    assert rate("16.32") / rate("16.16") == pytest.approx(1, abs=0.03)


def test_the_verdicts_on_memory_are_those_of_the_table() -> None:
    verdicts = dict(line.split()[::5] for line in outputs("01").splitlines() if " KiB " in line)
    assert verdicts == {"32.32": "no", "16.32": "no", "16.16": "yes"}
    for precision, told in (("32.32", "the model says {} KiB"), ("16.16", "({} against at most 560 published")):
        assert told.format(f"{printed('01', re.escape(precision) + ' +([0-9]+) KiB'):.0f}") in TEXT
    kib = printed("01", r"16\.32 +(\d+) KiB")
    assert f"workshop's cut ({kib:.0f} KiB, modelled)" in NOTES


def test_the_band_of_doubt_is_the_model_s() -> None:
    low, high = close_band()
    for told in (TEXT, NOTES):
        assert f"{100 * low:.1f} to {100 * high:.1f} % of a tile" in told


def test_half_partials_halve_temporaries_and_not_the_fullest_tile() -> None:
    program = captured(TrainSettings(precision="16.16"))
    memories = [program.profile(half_partials=half).memory for half in (False, True)]
    before, after = (f"{memory[0].bytes_by_category['temporaries'] / 1024:.0f}" for memory in memories)
    assert f"from {before} to {after} KiB (modelled)" in NOTES
    before, after = (f"{memory.max_tile_bytes / 1024:.0f}" for memory in memories)
    assert f"only from {before} to {after} KiB" in NOTES


def test_no_cut_of_the_notes_makes_16_32_fit() -> None:
    def profile(cut: str) -> engine.Profile:
        return captured(TrainSettings(precision="16.32", split=(cut,))).profile()

    best = profile("layer3.12")
    assert engine.memory_verdict(best) == "too close to call"
    assert f"`layer3[12]` is too close to call, at {best.memory.max_tile_bytes / 1024:.0f} KiB" in NOTES
    assert [engine.memory_verdict(profile(f"layer3.{block}")) for block in (4, 16)] == ["does not fit"] * 2
    assert "`layer3[4]`, `[8]` and `[16]` do not fit" in NOTES


def test_the_shares_of_small_gradients_are_those_of_the_explorer() -> None:
    assert printed("01", r"([\d.]+)% of the activation gradients lie below 2\^-14") == pytest.approx(100 / 3, abs=3)
    assert "A third of ResNet-101's gradients" in NOTES
    assert "2^8 to 2^11" in WINDOW.praise


def test_the_runs_that_learn_and_the_loss_that_stays_are_those_of_the_notebook() -> None:
    assert "the runs that learn:\n  32.32\n  16.16, scaled\n" in outputs("01")
    assert f"{printed('01', 'computed: ([0-9]+)'):.0f} % of the test digits" in NOTES
    # The run that learns nothing guesses among ten digits: ln 10 is 2.30.
    assert "16.16 from 2.3 to 2.3" in outputs("01")
    assert "a loss of 2.30 for four epochs" in TEXT


def test_the_bytes_of_a_parameter_follow_from_its_four_numbers() -> None:
    half, single = 2, 4
    all_fp32 = half + 3 * single  # the weight, two moments and an accumulator
    recipe = half + half + half + single  # all but the second moment in fp16
    assert f"otherwise: {all_fp32} bytes per parameter" in TEXT
    assert f"The recipe takes {recipe}, and all in fp16 would be {4 * half}." in TEXT
