"""Lesson 00: the story's figure, its explorer, and the check of a ported loop."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_course import engine, ladder
from ipu_course.lessons.start_here.exercises import EVENLY, FULLEST_TILE, RESNET101_PARAMETERS
from ipu_course.lessons.start_here.explorer import PICTURES, READING, kib_for_parameters, picture_view
from ipu_course.lessons.start_here.port import port_hint
from ipu_course.lessons.start_here.story import story_description, story_figure
from ipu_model import Profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    """A small network whose second half, on IPU 1, has most of the parameters."""
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), poptorch.BeginBlock(nn.Linear(256, 8192), ipu_id=1))
    with_loss = Squared(module)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    optimiser = poptorch.optim.AdamW(with_loss.parameters())
    return engine.profile_module(with_loss, (torch.zeros(16, 64),), options, optimiser)


class Squared(nn.Module):
    """A network and the mean of its squared outputs as a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.model(x)
        return outputs, poptorch.identity_loss(outputs.pow(2).mean(), reduction="none")


def test_the_parameters_are_those_of_the_course_s_resnet() -> None:
    with torch.device("meta"):
        network = torchvision.models.resnet101()
    assert sum(parameter.numel() for parameter in network.parameters()) == RESNET101_PARAMETERS
    assert pytest.approx(147.8, abs=0.05) == EVENLY


def test_the_story_shows_the_first_and_the_last_epoch_and_leaves_the_steps_between_to_the_learner() -> None:
    steps = ladder.published_ladder().steps
    first, *between, last = [step.epoch_seconds for step in steps if step.epoch_seconds]
    (axes,) = story_figure().axes
    assert [label.get_text()[:9] for label in axes.get_yticklabels()][1:] == [
        f"lesson {number:02d}" for number in range(1, len(steps))
    ]
    assert [bar.get_width() for bar in axes.patches if bar.get_width()] == [first, last]
    for words in (story_description(), " ".join(text.get_text() for text in axes.texts)):
        assert all(f"{seconds:.1f} s" in words for seconds in (first, last))
        assert not any(f"{seconds:.0f}" in words for seconds in between)


@pytest.mark.parametrize("picture", READING)
def test_every_question_has_its_picture_and_how_to_read_it(profile: Profile, picture: str) -> None:
    view = picture_view(profile, picture)
    assert view.figure is not None
    assert view.takeaway.startswith(READING[picture])
    assert bool(view.rows) == (picture == "memory")


def test_the_explorer_offers_every_picture_that_it_can_read() -> None:
    assert {state["picture"] for state in PICTURES.states()} == set(READING)


def test_the_table_holds_what_the_third_exercise_adds_up(profile: Profile) -> None:
    rows = {row["on the fullest tile, KiB"]: row for row in picture_view(profile, "memory").rows}
    shown = sum(float(str(rows[part]["IPU 1"])) for part in ("variables", "optimiser state", "gradient accumulators"))
    assert shown == pytest.approx(kib_for_parameters(profile, 1), abs=0.2)
    assert FULLEST_TILE.find_hint(shown, using=profile) is None
    assert "IPU 0" in str(FULLEST_TILE.find_hint(kib_for_parameters(profile, 0), using=profile))


class WithLoss(nn.Module):
    """A right answer to exercise 2."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(images)
        return logits, nn.functional.cross_entropy(logits, labels)


def right_loop(model: nn.Module, batches: list[tuple[Tensor, Tensor]], options: poptorch.Options) -> list[float]:
    wrapper = WithLoss(model)
    optimiser = poptorch.optim.SGD(wrapper.parameters(), lr=0.05)
    training_model = poptorch.trainingModel(wrapper, options, optimiser)
    losses = [training_model(images, labels)[1].item() for images, labels in batches]
    training_model.detachFromDevice()
    return losses


def loop_that_leaves_out_a_batch(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], options: poptorch.Options
) -> list[float]:
    return right_loop(model, batches[1:], options)


def loop_of_another_model(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], options: poptorch.Options
) -> list[float]:
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    return right_loop(fresh, batches, options)


def test_a_right_port_needs_no_hint() -> None:
    assert port_hint(WithLoss, right_loop) is None


@pytest.mark.parametrize(
    ("loop", "hint"),
    [(loop_that_leaves_out_a_batch, "5 losses for 6 batches"), (loop_of_another_model, "Even the first loss")],
)
def test_a_wrong_loop_gets_its_hint(loop: object, hint: str) -> None:
    assert hint in str(port_hint(WithLoss, loop))


def test_a_wrapper_that_is_no_module_gets_a_hint() -> None:
    assert "derives from nn.Module" in str(port_hint(lambda model: model, right_loop))
