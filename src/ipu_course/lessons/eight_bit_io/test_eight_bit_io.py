"""Lesson 04: what its checks say about answers by their properties, and the parts of a call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle

import poptorch
from ipu_course import engine, ladder, models
from ipu_course.lessons.eight_bit_io.call_parts_figure import call_parts_figure
from ipu_course.lessons.eight_bit_io.checks import (
    GAINS,
    SAVED_BYTES,
    SHARE,
    check_minus_one_to_one,
    check_stream_bound,
    check_who_gains,
    every_pixel,
)
from ipu_course.lessons.eight_bit_io.host_cost import milliseconds_per_image
from ipu_course.models import NormaliseOnDevice
from ipu_course.views.call import CallParts, call_parts

TIMES = st.floats(0.0, 10.0)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


class TestStreamBound:
    def test_the_answer_is_the_published_configuration_s(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 64 x 8 x 4 images of 3 x 64 x 64 numbers, one byte less each; 3 GB/s; 1.88 s against 1.77 calls a second.
        assert SAVED_BYTES == 2048 * 12_288
        assert pytest.approx(25_165_824 / 3e9 / (1.88 - 0.564972), rel=1e-5) == SHARE
        check_stream_bound(SAVED_BYTES, round(SHARE, 4))
        assert "correct. 25,165,824 bytes take 8.4 ms" in said(capsys)

    @pytest.mark.parametrize("answer", [("25165824", 0.0064), (True, 0.0064), (SAVED_BYTES, "0.6 %"), (-1, 0.0064)])
    def test_other_kinds_of_answers_are_named(
        self, answer: tuple[object, object], capsys: pytest.CaptureFixture[str]
    ) -> None:
        check_stream_bound(*answer)
        assert "number" in said(capsys)

    @given(st.floats(allow_nan=True, allow_infinity=True))
    def test_only_the_right_share_is_accepted(self, share: float) -> None:
        from ipu_course.lessons.eight_bit_io.checks import _share_hint

        assert (_share_hint(share) is None) == (abs(share - SHARE) <= 0.02 * SHARE)


class TestRange:
    def test_all_256_values_are_tried_in_every_colour(self) -> None:
        pixels = every_pixel()
        assert all(sorted(pixels[:, colour].flatten().tolist()) == list(range(256)) for colour in range(3))

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda x: x.half() / 127.5 - 1, "correct."),
            (lambda x: ((x.int() * 2 - 255) / 255).half(), "correct."),
            (lambda x: 1 - x.half() / 127.5, "jump back"),
            (lambda x: x.half()[0] / 127.5 - 1, "shape"),
            (lambda x: (x.half() / 127.5 - 1).tolist(), "gives list"),
            (lambda x: 1 / (x.half() * 0), "infinite"),
            (lambda x: x.no_such_method(), "could not use your answer"),
            (3, "is a function"),
        ],
    )
    def test_answers_are_judged_by_what_they_compute(
        self, function: object, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check_minus_one_to_one(function)
        assert words in said(capsys)


@pytest.mark.parametrize("name", GAINS)
def test_each_wrong_belief_about_gains_has_its_hint(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_who_gains(**{**GAINS, name: not GAINS[name]})
    assert f"not yet. {name}: " in said(capsys)


class TestCallParts:
    def test_they_are_those_of_the_profile(self) -> None:
        module = models.ClassifierWithLoss(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10)), NormaliseOnDevice(torch.float32)
        )
        optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
        program = engine.modelled_module(module, ladder.micro_batch(torch.uint8), poptorch.Options(), optimizer)
        assert program is not None
        for asynchronous, workers in ((False, 0), (True, 0), (False, 2), (True, 4)):
            profile = program.profile(host=ladder.host(True, asynchronous, workers), device_iterations=8)
            parts = call_parts(profile)
            # 0.18 ms for each of 64 x 8 images, shared by the workers.
            assert parts.load == pytest.approx(0.00018 * 512 / max(1, workers))
            assert parts.device == pytest.approx(profile.device_seconds_per_call)
            assert parts.stream > 0
            assert parts.total == pytest.approx(profile.call_seconds)

    @given(TIMES, TIMES, TIMES, TIMES, st.booleans())
    def test_overlapping_never_takes_longer(
        self, load: float, call: float, stream: float, compute: float, overlaps: bool
    ) -> None:
        parts = CallParts(load, call, stream, compute, overlaps)
        assert parts.total <= CallParts(load, call, stream, compute, False).total
        assert parts.total >= max(load, parts.rest) * (1 - 1e-12)

    def test_the_figure_s_bars_are_as_long_as_the_parts(self) -> None:
        figure = call_parts_figure(
            {"one": CallParts(0.1, 0.2, 0.3, 0.4, False), "other": CallParts(0.5, 0.1, 0.1, 0.2, True)}, "Calls"
        )
        (axes,) = figure.axes
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width()]
        # Side by side in milliseconds; what overlaps gets a row of its own.
        widths = [(round(bar.get_y() + bar.get_height() / 2), round(bar.get_width())) for bar in bars]
        assert widths == [(0, 100), (0, 200), (0, 300), (0, 400), (1, 500), (2, 100), (2, 100), (2, 200)]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == ["one", "other", "at the same time"]


def test_the_host_s_cost_is_measured_on_pictures_of_the_course() -> None:
    seen: list[tuple[int, int]] = []

    def transform(picture: object) -> torch.Tensor:
        seen.append(picture.size)  # type: ignore[attr-defined]  # a PIL image
        return torch.zeros(1)

    assert milliseconds_per_image(transform) > 0
    assert set(seen) == {(32, 32)}
