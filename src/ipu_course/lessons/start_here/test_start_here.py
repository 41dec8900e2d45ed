"""Lesson 00: its checks' arithmetic, its explorer's pictures, its first steps of a program."""

from __future__ import annotations

import pytest
import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.start_here import checks as start
from ipu_course.lessons.start_here.explorer import QUESTIONS, READING, view_of
from ipu_course.lessons.start_here.steps import first_steps, show_steps
from ipu_course.lessons.start_here.steps_figure import steps_figure
from ipu_model import Profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    layers = [torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8 * 49, 10))
    found = engine.profile_module(module, (torch.zeros(16, 3, 16, 16),), poptorch.Options())
    assert found is not None
    return found


def test_the_right_answer_is_bytes_over_tiles_over_1024() -> None:
    # 42.5 million parameters of 10 bytes on 2 x 1,472 tiles.
    assert pytest.approx(425e6 / 2944 / 1024) == start.RIGHT_KIB
    assert start._kib_hint(141) is None
    assert start._kib_hint(torch.tensor(140.98)) is None


def test_the_examples_tell_every_mistake_from_the_right_answer_and_from_each_other() -> None:
    functions = [start._wanted, *(mistake for mistake, _ in start._MISTAKES)]
    answers = [torch.stack([function(images) for images in start._examples()]) for function in functions]
    for number, answer in enumerate(answers):
        assert not any(torch.allclose(answer, other) for other in answers[number + 1 :])


@pytest.mark.parametrize("picture", QUESTIONS.values())
def test_every_question_has_its_picture_and_how_to_read_it(profile: Profile, picture: str) -> None:
    view = view_of(profile, picture)
    assert view.figure is not None
    assert view.text == READING[picture]


def test_the_first_steps_are_those_of_the_forward_pass_in_microseconds(profile: Profile) -> None:
    steps = first_steps(profile, ipu=0, count=4)
    assert [step.name for step in steps] == ["1: convolution", "2: batch norm", "3: relu", "4: max pool2d"]
    op = profile.ops[0]
    assert steps[0].compute == pytest.approx(op.on_tile_execute / profile.machine.clock_hz * 1e6)
    (axes,) = steps_figure(steps, "T").axes
    assert len(axes.patches) == 3 * len(steps)


def test_the_steps_are_told_in_words_or_not_at_all(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    show_steps(profile, ipu=0, first=3)
    assert "the first 3 operations on IPU 0, modelled" in capsys.readouterr().out
    show_steps(None, ipu=0, first=3)
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"
