"""Lesson 11: its counts by hand against the IPU Model, its exercises, its figures and its published numbers."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import poptorch
from ipu_course import engine, ladder
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.figures.floor_and_hill import floor_and_hill
from ipu_course.lessons.where_memory_goes import code_kib, hill_of, lesson, show_parameter_tiles, show_training_graph
from ipu_course.lessons.where_memory_goes.by_hand import always_live, counted_by, kept_for_backward, map_linearly
from ipu_course.lessons.where_memory_goes.exercises import ALWAYS_LIVE, FREED, KEPT, MAP, frozen_network, small_network
from ipu_course.lessons.where_memory_goes.tiles_figure import mapped_tiles, parameter_tiles
from ipu_course.lessons.where_memory_goes.training_graph import layer_steps
from ipu_course.models import ClassifierWithLoss, SmallNetwork, WithLoss
from ipu_course.not_modelled import NOT_MODELLED

KIB = 1024
STATES = {"SGD": 0, "momentum": 1, "AdamW": 2}


def profiled(network: nn.Module, optimiser: str, accumulation: int, images: torch.Tensor) -> engine.Profile:
    """Model the training of a network on one IPU."""
    training = WithLoss(network)
    optimisers = {
        "SGD": poptorch.optim.SGD(training.parameters(), lr=0.1),
        "momentum": poptorch.optim.SGD(training.parameters(), lr=0.1, momentum=0.9),
        "AdamW": poptorch.optim.AdamW(training.parameters()),
    }
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    labels = torch.zeros(len(images), dtype=torch.int64)
    return engine.profile_module(training, (images, labels), options, optimisers[optimiser])


def modelled_bytes(profile: engine.Profile) -> tuple[float, ...]:
    """Return the modelled bytes of variables, optimiser state and accumulators on all tiles."""
    found = {each.name: each.total_bytes for each in profile.memory[0].categories}
    return tuple(found.get(name, 0.0) for name in ("variables", "optimiser state", "gradient accumulators"))


def lesson_network() -> nn.Sequential:
    """The network that the lesson begins with."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 4 * 4, 1024), nn.ReLU(), nn.Linear(1024, 10))


class TestCountsByHandAgainstTheModel:
    """The lesson's claim is that these counts need no profile, so the profile has to say the same."""

    @pytest.mark.parametrize("optimiser", list(STATES))
    @pytest.mark.parametrize("accumulation", [1, 4])
    def test_what_is_always_live_agrees_to_the_byte(self, optimiser: str, accumulation: int) -> None:
        profile = profiled(small_network(), optimiser, accumulation, torch.zeros(4, 3, 16, 16))
        assert modelled_bytes(profile) == always_live(small_network(), STATES[optimiser], accumulation > 1)

    def test_so_it_does_in_half_precision(self) -> None:
        network = small_network().half()
        profile = profiled(network, "AdamW", 4, torch.zeros(4, 3, 16, 16).half())
        assert modelled_bytes(profile) == always_live(network, 2, True)

    def test_so_it_does_with_a_frozen_layer(self) -> None:
        profile = profiled(frozen_network(), "AdamW", 4, torch.zeros(4, 3, 16, 16))
        assert modelled_bytes(profile) == always_live(frozen_network(), 2, True)

    def test_so_it_does_with_group_normalisation(self) -> None:
        profile = profiled(SmallNetwork(), "momentum", 4, torch.zeros(4, 3, 32, 32))
        assert modelled_bytes(profile) == always_live(SmallNetwork(), 1, True)

    def test_kept_activations_are_what_is_live_after_the_forward_pass(self) -> None:
        images = torch.zeros(16, 3, 64, 64)
        hill = hill_of(profiled(lesson_network(), "AdamW", 4, images))
        kept = kept_for_backward(lesson_network(), images) / 1472 / KIB
        # The text says 3 %: tiles hold whole pieces, and a few small tensors lie on few of them.
        assert kept < hill.after_forward == pytest.approx(kept, rel=0.03)


class TestTheHill:
    def test_floor_and_height_are_the_profile_s_fullest_tile(self) -> None:
        profile = profiled(small_network(), "AdamW", 4, torch.zeros(4, 3, 16, 16))
        hill, memory = hill_of(profile), profile.memory[0]
        assert hill.floor * KIB == pytest.approx(memory.always_live_bytes)
        assert (hill.floor + hill.height) * KIB == pytest.approx(memory.max_tile_bytes)
        assert hill.peak == memory.peak

    def test_its_figure_marks_the_count_at_the_end_of_the_forward_pass(self) -> None:
        hill = hill_of(profiled(small_network(), "AdamW", 4, torch.zeros(4, 3, 16, 16)))
        (axes,) = floor_and_hill(hill, 3.0).axes
        points = [line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata()) == 1]
        (mark,) = points
        assert hill.phases[int(mark.get_xdata()[0])] == "backward"
        assert hill.phases[int(mark.get_xdata()[0]) - 1] == "forward"
        assert mark.get_ydata()[0] == pytest.approx(hill.floor + 3.0)

    def test_without_a_model_there_is_none(self) -> None:
        assert hill_of(NOT_MODELLED) is NOT_MODELLED


@lru_cache(maxsize=1)
def workshop() -> tuple[engine.Profile, dict[int, list[nn.Module]]]:
    """The workshop's ResNet-101 in half precision over two IPUs, and the layers of each."""
    resnet = torchvision.models.resnet101()
    resnet.layer3[8] = poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
    training, half = ClassifierWithLoss(resnet).half(), torch.float16
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    optimiser = poptorch.optim.AdamW(
        training.parameters(), loss_scaling=1000, accum_type=half, first_order_momentum_accum_type=half
    )
    profile = engine.profile_module(training, ladder.micro_batch(half), options, optimiser)
    layers = {
        0: [resnet.conv1, resnet.layer1, resnet.layer2, *resnet.layer3[:8]],
        1: [*resnet.layer3[8:], resnet.layer4, resnet.fc],
    }
    return profile, layers


class TestTilesOfTheWorkshop:
    @pytest.mark.parametrize("ipu", [0, 1])
    def test_mapping_by_hand_is_the_model_tile_by_tile(self, ipu: int) -> None:
        profile, layers = workshop()
        modelled = parameter_tiles(profile.memory[ipu])
        by_hand = mapped_tiles(map_linearly, layers[ipu])
        # Vectors (biases, norms) are not mapped by hand; they take less than 1 KiB of any tile.
        assert max(abs(a - b) for a, b in zip(modelled, by_hand)) < KIB

    def test_the_text_s_numbers(self) -> None:
        profile, _ = workshop()
        first, second = (parameter_tiles(memory) for memory in profile.memory)
        assert sum(second) / 1472 / KIB == pytest.approx(224, abs=0.5)  # "224 KiB on nearly every tile"
        assert sorted(second)[15] / KIB == pytest.approx(224, abs=0.5)
        assert max(first) / sum(first) * 1472 == pytest.approx(1.3, abs=0.01)  # "30 % more than the mean"
        assert sum(second) / sum(first) == pytest.approx(3.1, abs=0.05)  # "three times the parameters"
        memory = profile.memory[0]
        assert memory.max_tile_bytes / memory.total_bytes * 1472 == pytest.approx(1.05, abs=0.005)
        assert f"{profile.memory.max_tile_bytes / KIB:.0f}" == "529"
        assert code_kib(memory) * KIB / memory.max_tile_bytes == pytest.approx(0.37, abs=0.005)

    def test_the_table_says_whose_mapping_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        profile, layers = workshop()
        show_parameter_tiles(profile, lambda elements, element_bytes: [elements * element_bytes / 1472] * 1472, layers)
        assert "mapped by you" in capsys.readouterr().out

        def still_open(elements: int, element_bytes: int) -> list[int]: ...  # type: ignore[empty-body]

        assert counted_by(still_open, map_linearly).by == "the course"


class TestMapping:
    @given(st.integers(1, 5_000_000), st.sampled_from([2, 4]))
    def test_nothing_is_lost_and_pieces_are_equal(self, elements: int, element_bytes: int) -> None:
        tiles = map_linearly(elements, element_bytes)
        held = [each for each in tiles if each]
        assert sum(tiles) == elements * element_bytes
        assert len(tiles) == 1472
        assert tiles[1472 - len(held) :] == held, "the tiles in use are the last ones"
        assert len(set(held[:-1])) <= 1
        assert min(256, elements * element_bytes) <= held[0]


class TestTrainingGraph:
    def test_its_row_of_kept_tensors_is_the_count_by_hand(self) -> None:
        images = torch.zeros(4, 3, 16, 16)
        steps = layer_steps(small_network(), images)
        assert sum(step.kept_bytes for step in steps) == kept_for_backward(small_network(), images)
        kept = {step.kind: step.kept_bytes for step in steps}
        # The input of the convolution: 4 images of 3 x 16 x 16 numbers of 4 bytes. Pooling keeps what the ReLU keeps.
        assert kept["Conv2d"] == 4 * 3 * 16 * 16 * 4
        assert kept["MaxPool2d"] == 0

    def test_a_deep_network_is_cut_short_and_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_training_graph(torchvision.models.resnet18(), torch.zeros(2, 3, 32, 32))
        assert "more layers follow" in capsys.readouterr().out


class TestExercises:
    @given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.lists(st.integers(), max_size=4)))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            for exercise in (ALWAYS_LIVE, KEPT, MAP):
                judge(exercise, [answer])
                judge(exercise, [lambda *given_: answer])

    def test_without_a_model_the_third_says_so(self) -> None:
        verdict = judge(FREED, [1.0, 1.0, 1.0], using=lambda **setting: NOT_MODELLED)
        assert verdict.correct is False
        assert engine.NOT_HERE in verdict.text


class TestPublishedFigures:
    def test_the_derived_ones_follow_from_the_reports(self) -> None:
        # Guide, table 4.1, one replica: control, internal exchange, host exchange and global exchange code.
        bert = 91_668_904 + 108_270_156 + 66_044_276 + 1_035_988
        assert lesson.published("code_bert").value == pytest.approx(bert / 4 / 1472 / KIB, abs=0.05)
        assert f"{bert / 1e6:.0f} MB" in lesson.published("code_bert").text
        # PopVision's report of ResNet-50 (hands-on, day 02), KiB on a tile: internal exchange, control, vertex state,
        # vertex code, field data, host exchange, its packet headers, global exchange.
        resnet50 = 90.8 + 16.0 + 14.1 + 11.7 + 6.2 + 6.1 + 5.3 + 1.0
        assert lesson.published("code_resnet50").value == pytest.approx(resnet50, abs=1)
        assert f"{resnet50 / 368:.0%}".replace("%", " %") in lesson.published("code_resnet50").text
        assert lesson.published("imbalance_resnet50").value == pytest.approx(368 / 311, abs=0.005)
