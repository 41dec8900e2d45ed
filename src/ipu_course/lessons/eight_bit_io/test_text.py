"""The figures in the text and in the instructor's notes of lesson 04 are those that its notebook prints."""

from __future__ import annotations

from lesson_words import notes, printed, text

from ipu_course import ladder
from ipu_course.lessons.eight_bit_io.exercises import CALL_AFTER, CALL_BEFORE, SAVED_BYTES, SAVED_SECONDS, SHARE

TEXT, NOTES = text("04"), notes("eight_bit_io")


def test_the_epochs_of_the_hook_are_the_workshop_s_and_lesson_03_s() -> None:
    before, after = ladder.published("device iterations 4"), ladder.published("8-bit I/O")
    assert before.result.startswith("45 s")
    assert after.result.startswith("13 s")
    assert "from 45 to 13 s" in TEXT
    assert f"when the host sends bytes: {after.epoch_seconds:.1f}, derived from the published" in NOTES
    # Lesson 03's table of an epoch, with 4 device iterations.
    work = printed("03", r"4 iterations +24 .* ([\d.]+) s +[\d.]+ s\n")
    assert f"the IPUs work for only {work:.0f} of them (modelled)" in TEXT


def test_the_bound_is_that_of_the_exercise() -> None:
    assert f"{CALL_BEFORE:.2f} s a call" in TEXT
    assert f"{1 / CALL_AFTER:.2f} calls a second" in TEXT
    assert f"{SAVED_BYTES / 1e6:.0f} MB at 3 GB/s take {SAVED_BYTES / 3e6:.0f} ms" in TEXT
    assert SAVED_SECONDS > 1.3
    assert SHARE < 0.01
    assert "the call got more than 1.3 s shorter: the link explains less than one per cent" in TEXT


def test_the_stream_is_as_small_a_part_as_the_notes_say() -> None:
    stream = printed("04", r"fp16 +([\d.]+) +[\d.]+ +[\d.]+\n")
    device = printed("04", r"fp16 +[\d.]+ +[\d.]+ +([\d.]+)\n")
    call = printed("04", r"call with fp16 images takes ([\d,]+) ms")
    assert stream / device < 0.1
    assert device / call < 0.1
    assert "The stream is less than a tenth of the device's time, and the device's time is less than a tenth" in NOTES
    left = printed("04", r"uint8 +([\d.]+) +[\d.]+ +[\d.]+\n")
    assert f"the stream's {left:.1f} ms of a call (modelled)" in NOTES


def test_the_fitted_times_of_the_host_are_those_of_the_ladder() -> None:
    host = ladder.published_ladder().host
    slow, fast = 1000 * host.seconds_per_image, 1000 * host.seconds_per_eight_bit_image
    assert f"{slow:.2f} ms (fp16) and {fast:.2f} ms (uint8)" in TEXT
    assert f"{slow:.2f} - {fast:.2f} = {slow - fast:.2f} ms" in TEXT
