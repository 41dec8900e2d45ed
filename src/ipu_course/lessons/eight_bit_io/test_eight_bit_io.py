"""Lesson 04: its checks, judged by what answers compute, its figures, and the parts of a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch import nn

import poptorch
from ipu_course import engine, ladder
from ipu_course.call_parts import CallParts, call_parts
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.eight_bit_io import lesson, workshop_loader
from ipu_course.lessons.eight_bit_io.byte_path import every_pixel, module_hint, normalised, transform_hint
from ipu_course.lessons.eight_bit_io.call_parts_figure import call_parts_figure
from ipu_course.lessons.eight_bit_io.exercises import BOUND, SAVED_BYTES, SHARE
from ipu_course.lessons.eight_bit_io.input_paths_figure import (
    InputPath,
    input_paths_description,
    input_paths_figure,
)
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice
from ipu_course.programs.train.loading import host_transform
from ipu_course.programs.train.settings import TrainSettings

TIMES = st.floats(0.0, 10.0)


class Half(NormaliseOnDevice):
    """The course's own module, made without arguments as the exercise asks."""

    def __init__(self) -> None:
        super().__init__(torch.float16)


class TestBytePath:
    def test_the_workshop_s_own_path_is_right(self) -> None:
        to_bytes = host_transform(TrainSettings(eight_bit_io=True))
        with letting_errors_through():
            assert judge(lesson.exercises[0], (to_bytes, Half)).correct

    def test_all_256_values_are_tried_in_every_colour(self) -> None:
        pixels = every_pixel()
        assert all(sorted(pixels[:, colour].flatten().tolist()) == list(range(256)) for colour in range(3))

    def test_the_wanted_numbers_are_those_of_the_workshop_s_host(self) -> None:
        pixels = every_pixel()
        on_host = host_transform(TrainSettings(precision="32.32")).transforms[-2:]
        for image, wanted in zip(pixels, normalised(pixels)):
            for step in on_host:
                image = step(image)
            assert torch.allclose(image.double(), wanted, atol=1e-6)

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (3, "a function of a picture"),
            (lambda picture: None, "returns nothing"),
            (lambda picture: torch.zeros(64, 64, 3, dtype=torch.uint8), "colours come last"),
            (lambda picture: torch.zeros(3, 64, 64, dtype=torch.int64), "need torch.uint8"),
            (lambda picture: torch.arange(3 * 64 * 64).view(3, 64, 64).to(torch.uint8), "must arrive unchanged"),
        ],
    )
    def test_a_transform_is_judged_by_its_tensor(self, answer: Any, words: str) -> None:
        assert words in str(transform_hint(answer))

    @pytest.mark.parametrize(
        ("forward", "words"),
        [
            (lambda x: x.half() / 255, "only goes from 0 to 1"),
            (lambda x: x.half(), "only cast"),
            (lambda x: x.half()[0], "shape must not change"),
            (lambda x: (x.half() / 255).tolist(), "returns list"),
            (lambda x: 1 / (x.half() * 0), "infinite"),
            (lambda x: x.half() / 255 + 7, "Pixel 0 of the first colour"),
        ],
    )
    def test_a_module_is_judged_by_what_it_computes(self, forward: Any, words: str) -> None:
        answer = type("Answer", (nn.Module,), {"forward": lambda self, images: forward(images)})
        assert words in str(module_hint(answer))


class TestBound:
    def test_the_answer_is_the_published_configuration_s(self) -> None:
        # 64 x 8 x 4 images of 3 x 64 x 64 numbers, one byte less each; 3 GB/s; 1.88 s against 1.77 calls a second.
        assert SAVED_BYTES == 2048 * 12_288
        assert pytest.approx(25_165_824 / 3e9 / (1.88 - 0.564972), rel=1e-5) == SHARE
        assert judge(BOUND, (25165824.0, round(SHARE, 4))).correct

    @given(st.floats(allow_nan=False, allow_infinity=True))
    def test_only_the_right_share_is_accepted(self, share: float) -> None:
        assert judge(BOUND, (SAVED_BYTES, share)).correct == (abs(share - SHARE) <= 0.02 * SHARE)


class TestCallParts:
    def test_they_are_those_of_the_profile(self) -> None:
        module = ClassifierWithLoss(
            nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10)), NormaliseOnDevice(torch.float32)
        )
        optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
        program = engine.modelled_module(module, ladder.micro_batch(torch.uint8), poptorch.Options(), optimizer)
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


def test_both_paths_have_the_same_steps_in_another_place() -> None:
    paths = [InputPath("fp16", 2, 12_288, False), InputPath("bytes", 1, 12_288, True)]
    figure = input_paths_figure(paths)
    (axes,) = figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    rows = [round(box.get_y() + box.get_height() / 2) for box in boxes]
    assert rows.count(0) == rows.count(1) == 6
    texts = [text.get_text() for text in axes.texts]
    assert {"24,576 bytes", "12,288 bytes"} <= set(texts)
    words = input_paths_description(paths)
    assert "fp16: the host's steps are load the picture, flip, resize, to a uint8 tensor, convert to fp16" in words
    assert "12,288 bytes of each image cross the link; the IPU's steps are convert to fp16, normalise" in words


@pytest.mark.parametrize(("eight_bit_io", "dtype"), [(True, torch.uint8), (False, torch.float16)])
def test_the_workshop_s_loader_has_images_of_its_type(eight_bit_io: bool, dtype: torch.dtype) -> None:
    images, labels = next(iter(workshop_loader(eight_bit_io)))
    assert images.dtype == dtype
    assert images.shape == (64, 3, 64, 64)
    assert labels.shape == (64,)
