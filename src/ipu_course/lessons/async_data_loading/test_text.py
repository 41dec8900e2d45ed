"""The figures in the text and in the instructor's notes of lesson 05 are those that its notebook prints."""

from __future__ import annotations

from lesson_words import notes, printed, text

from ipu_course import ladder
from ipu_course.lessons.async_data_loading.explorer import UNEVEN, waiting

TEXT, NOTES = text("05"), notes("async_data_loading")


def test_the_hook_is_the_workshop_s_epoch_and_the_modelled_share() -> None:
    assert ladder.published("8-bit I/O").result.startswith("13 s")
    assert "an epoch takes 13 seconds [1]" in TEXT
    device = printed("05", r"Sync: .* and (\d+) ms on the IPUs")
    call = printed("05", r"Sync: .* a call starts every (\d+) ms")
    assert 0.25 < device / call < 1 / 3
    assert "less than a third of that (modelled)" in TEXT


def test_the_published_rate_with_sync_follows_from_its_calls() -> None:
    step = ladder.published("8-bit I/O")
    assert step.seconds_per_call
    assert f"{1 / step.seconds_per_call:.2f} calls of 2,048 images per second" in TEXT
    assert f"which makes {2048 / step.seconds_per_call:,.0f} images per second" in TEXT


def test_two_workers_are_enough_in_the_table_of_the_what_if() -> None:
    load, rest = printed("05", r"\n2 +(\d+) +\d+ "), printed("05", r"\n2 +\d+ +(\d+) ")
    assert load < rest < printed("05", r"\n0 +(\d+) +\d+ ")
    assert "two workers are enough to make the IPUs the bottleneck" in TEXT


def test_the_uneven_loads_of_exercise_4_take_what_the_text_says() -> None:
    assert f"The long load takes {150 * max(UNEVEN):.0f} ms" in TEXT
    each = 200 / (1 - waiting(150, 200, 0, 3, uneven=True))
    assert f"a call takes {each:.0f} ms instead of 200" in TEXT
