"""The figures in the text and in the instructor's notes of lesson 02 are those that its notebook prints."""

from __future__ import annotations

import re

import pytest
from lesson_words import notes, outputs, printed, text

from ipu_course import ladder
from ipu_course.lessons.gradient_accumulation import lesson
from ipu_course.lessons.gradient_accumulation.rates import SHOWN_IN_TABLE
from ipu_course.schedule import busy_by_steps, busy_by_time

TEXT, NOTES = text("02"), notes("gradient_accumulation")


def stage(ipu: int) -> dict[str, float]:
    """Return the milliseconds of one micro-batch on an IPU, and the percentage in which it runs code."""
    (row,) = re.findall(rf"^IPU {ipu} .* ms .*%$", outputs("02"), re.MULTILINE)
    stream, forward, recompute, backward, wait, code = map(float, re.findall(r"([\d.]+)(?: ms|%)", row))
    return {"work": stream + forward + recompute + backward, "wait": wait, "code": code}


def test_the_formulas_promise_what_the_text_says() -> None:
    assert f"80 / 60 = {busy_by_steps(2, 8) / busy_by_steps(2, 3):.2f}" in TEXT
    assert f"(8 / 9) / (3 / 4) = {busy_by_time(2, 8) / busy_by_time(2, 3):.2f}" in TEXT


def test_the_gain_is_the_one_that_the_notebook_reveals() -> None:
    gain = printed("02", r"modelled: (1\.\d+)")
    assert f"The IPUs became {100 * (gain - 1):.0f} % faster" in TEXT
    assert f"{gain:.2f} modelled, {lesson.published('gain_3_to_8').value:.3f} derived" in NOTES


def test_the_answer_to_exercise_3_is_in_no_row_of_the_table() -> None:
    rows = [int(accumulation) for accumulation in re.findall(r"^(\d+) +[\d,]+ +[\d.]+%", outputs("02"), re.MULTILINE)]
    assert rows[: len(SHOWN_IN_TABLE)] == list(SHOWN_IN_TABLE)
    assert 16 not in rows
    assert "Exercise 3: 16" in NOTES


def test_the_stages_are_those_of_the_table() -> None:
    first, last = stage(0), stage(1)
    assert printed("02", r"IPU 1 waits for (\d+)% of the time") == pytest.approx(100 / 3, abs=2)
    assert "IPU 1 spend about a third of its time waiting" in TEXT
    assert f"{last['code']} / {first['code']} = {100 * last['code'] / first['code']:.0f} %" in TEXT
    assert f"takes {last['work']:.2f} ms per micro-batch, IPU 0's {first['work']:.2f} ms" in NOTES


def test_the_epoch_and_its_calls_are_those_that_the_notebook_prints() -> None:
    assert f"{printed('02', 'modelled: (4[0-9.]+)'):.1f} s modelled" in NOTES
    few, many = (ladder.published(step).calls_per_epoch for step in ("gradient accumulation 8", "half precision"))
    assert f"{few} calls instead of {many}" in TEXT


def test_the_memory_of_the_larger_micro_batch_is_that_of_the_table() -> None:
    kib = printed("02", "128 x 4 +([0-9]+) KiB")
    assert f"{kib:.0f} KiB, {kib / 624:.0%} of a tile, lie above".replace("%", " %") in NOTES
    assert "does not fit" in outputs("02")


def test_what_sgd_does_is_what_the_notebook_prints() -> None:
    mean, total = (printed("02", rf"SGD, {how}, rate 0.02 +([0-9]+) % apart") for how in ("Mean", "Sum"))
    assert f"that is {mean:.0f} % with `Mean` and {total:.0f} % with `Sum`" in TEXT


def test_the_shares_of_code_are_those_of_the_published_traces() -> None:
    # OnTileExecute on IPU 0 in the two traces of day 03; the cycles of the whole calls are in published.json.
    for code, accumulation in ((12_553_384, 3), (32_678_539, 8)):
        share = code / lesson.published(f"cycles_{accumulation}").value
        assert f"{100 * share:.2f} %" in TEXT.replace("*", "")
