"""The figures in the text and in the instructor's notes of lesson 03 are those that its notebook prints."""

from __future__ import annotations

from lesson_words import notes, outputs, printed, text

from ipu_course import ladder
from ipu_course.lessons.device_iterations import SMALL, modelled_programs
from ipu_course.lessons.device_iterations.explorer import ITERATIONS

TEXT, NOTES = text("03"), notes("device_iterations")


def test_the_call_is_the_one_that_the_notebook_takes_apart() -> None:
    whole = printed("03", r"one call .* ([\d.]+) ms +0\.")
    computes = printed("03", r"one call .* ([\d.]+) ms +[\d.]+ ms +0\.")
    assert f"takes **{whole:.2f} ms** (modelled)" in TEXT
    percentage = printed("03", r"modelled: (\d\.\d)\n")
    assert f"{percentage:.1f} % modelled, {computes:.2f} of {whole:.2f} ms" in NOTES
    low, high = (printed("03", pattern) for pattern in (r" ([\d.]+) to [\d.]+ times", r" to ([\d.]+) times as long"))
    assert f"{low:.2f} to {high:.2f} times as long" in TEXT


def test_the_rates_of_the_hook_are_those_of_the_explorer_s_first_and_last_setting() -> None:
    small = modelled_programs()[SMALL]
    slow, fast = (small.profile(device_iterations=n).samples_per_second for n in (1, ITERATIONS[-1]))
    assert f"{round(slow, -3):,.0f} images per second on one IPU, or {round(fast, -3):,.0f} (both modelled)" in TEXT


def test_what_four_iterations_save_is_that_of_the_ladder_and_of_the_workshop() -> None:
    one, four = (printed("03", rf"{step} +([\d.]+) s") for step in ("gradient accumulation 8", "device iterations 4"))
    assert f"four iterations save {one - four:.1f} s" in TEXT
    published = [ladder.published(step).epoch_seconds for step in ("gradient accumulation 8", "device iterations 4")]
    assert round(published[0] - published[1]) == 1
    assert "differ by only about 1 s" in TEXT
    assert f"{four:.1f} s modelled" in NOTES


def test_the_work_of_a_call_stands_in_the_table_of_the_epochs() -> None:
    work = printed("03", r"1 iteration +97 +(\d+) ms")
    assert work == 1000 * ladder.published_ladder().host.seconds_per_call
    assert f"why {work:.0f} ms for the work of one call here" in TEXT


def test_the_rates_of_long_calls_are_those_of_the_table() -> None:
    first, last = (printed("03", rf"\n{n} .* ([\d,]+) +[\d.]+ s +\d+ KiB") for n in (1, 256))
    assert f"from {first:,.0f} to {last:,.0f} images a second" in NOTES
    assert "(34.5%)" in outputs("03")
    assert "a third of them with 64 iterations" in TEXT
