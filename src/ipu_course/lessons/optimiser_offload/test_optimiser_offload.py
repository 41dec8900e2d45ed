"""Lesson 08: answers follow from bytes, rates and the model, and what is shown is what the profiles say."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_support import ELEMENTS, one_weight

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.optimiser_offload import copies, lesson, places, replicas
from ipu_course.lessons.optimiser_offload.copies import copies_share, copying_milliseconds
from ipu_course.lessons.optimiser_offload.exercises import (
    BEST_THRESHOLD,
    DEFAULT_THRESHOLD,
    PLACE,
    PRICE,
    RARE,
    SHARED,
    best_place,
    share_in_parts,
)
from ipu_course.lessons.optimiser_offload.explorer import MOMENTUM, offload_view
from ipu_course.lessons.optimiser_offload.parts import kib_by_part, show_parts
from ipu_course.lessons.optimiser_offload.program import resnet101, training_options
from ipu_course.lessons.optimiser_offload.states import state_bytes
from ipu_course.lessons.optimiser_offload.update_parts_figure import STATE
from ipu_course.not_modelled import NOT_MODELLED


@lru_cache(maxsize=1)
def sizes() -> list[int]:
    """Return the sizes of ResNet-101's tensors, the largest first."""
    return sorted({weight.numel() for weight in torchvision.models.resnet101().parameters()}, reverse=True)


@lru_cache(maxsize=1)
def program() -> engine.ModelledModule:
    return resnet101(training_options())


@lru_cache(maxsize=None)
def profile(**thresholds: int) -> engine.Profile:
    """Return the profile with groups of tensors off the chip, such as Optimizer=2 for all of the state."""
    options = training_options()
    for group, least in thresholds.items():
        place = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(least)
        getattr(options.TensorLocations, f"set{group}Location")(place)
    return resnet101(options).profile()


def seconds(**thresholds: int) -> float:
    return profile(**thresholds).device_seconds_per_call


class TestPrice:
    def test_the_numbers_are_those_of_the_network_and_of_the_machine(self) -> None:
        parameters = sum(weight.numel() for weight in torchvision.models.resnet101().parameters())
        megabytes = parameters * 2 * 4 / 1e6  # two moments of 32 bits
        assert judge(PRICE, (megabytes, 2 * megabytes / 20)).correct  # 20 GB/s, as machines.toml estimates

    def test_the_model_moves_as_much_in_hardly_more_time(self) -> None:
        off = profile(Optimizer=2)
        assert off.memory.off_chip_bytes == pytest.approx(356.4e6, rel=1e-3)
        copied = 1e-2 * copies_share(off) * off.device_seconds_per_call
        # 35.6 ms for the bytes alone; the rest is a synchronisation before each transfer.
        assert 35.6e-3 < copied < 36.2e-3


class TestPlacement:
    def test_a_higher_threshold_is_faster_and_only_the_best_one_still_fits(self) -> None:
        considered = [size for size in sizes() if size >= 2**19]
        times = [seconds(Optimizer=size) for size in considered]
        assert times == sorted(times)
        fitting = [size for size in considered if engine.memory_verdict(profile(Optimizer=size)) == "fits"]
        assert max(fitting) == BEST_THRESHOLD

    @pytest.mark.parametrize("group", ["Weight", "Accumulator"])
    def test_moving_the_fewest_weights_or_accumulators_costs_more_than_the_best_placement(self, group: str) -> None:
        assert seconds(**{group: sizes()[0]}) > seconds(Optimizer=BEST_THRESHOLD)

    def test_moving_the_fewest_activations_costs_more_than_the_best_placement(self) -> None:
        largest = 32 * 1024 * 4 * 4  # what the third group of blocks returns for 32 images of 64 x 64 pixels
        assert profile(Activation=largest + 1).memory == profile().memory
        assert seconds(Activation=largest) > seconds(Optimizer=BEST_THRESHOLD)

    def test_all_activations_make_it_fit_and_cost_more_than_all_of_the_state(self) -> None:
        assert engine.memory_verdict(profile(Activation=2)) == "fits"
        assert seconds(Activation=2) > seconds(Optimizer=2)

    def test_the_best_placement_is_right_and_is_worth_its_time(self) -> None:
        verdict = judge(PLACE, (best_place,), profile())
        assert verdict.correct
        assert verdict.points is not None
        assert verdict.points.value == pytest.approx(1e3 * seconds(Optimizer=BEST_THRESHOLD), abs=0.05)


class TestRareCopies:
    def test_from_57_micro_batches_on_the_copies_take_a_tenth(self) -> None:
        shares = {
            m: copies_share(program().profile(gradient_accumulation=m, optimiser_off_chip=True)) for m in (56, 57)
        }
        assert shares[57] <= 10 < shares[56]

    def test_from_63_micro_batches_on_an_update_with_momentum_is_five_per_cent_longer(self) -> None:
        longer = {m: offload_view(program(), m, MOMENTUM, True).rows[0]["longer than on the chip by"] for m in (62, 63)}
        assert longer == {62: "5.1%", 63: "5.0%"}

    def test_the_answers_are_those(self) -> None:
        assert judge(RARE, (57, 63)).correct


class TestSharedState:
    def test_the_options_that_are_right_make_the_program_fit(self) -> None:
        options = training_options().replicationFactor(4)
        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding())
        assert judge(SHARED, (options,)).correct
        assert engine.memory_verdict(resnet101(options).profile()) == "fits"
        whole = training_options().replicationFactor(4)
        assert engine.memory_verdict(resnet101(whole).profile()) == "does not fit"

    def test_nearly_all_of_the_state_is_in_parts_by_default(self) -> None:
        assert share_in_parts(DEFAULT_THRESHOLD) > 0.99
        assert share_in_parts(max(sizes())) > 0 == share_in_parts(max(sizes()) + 1)

    def test_each_replica_keeps_its_part(self) -> None:
        # Two moments of 4 bytes, a quarter of the elements each.
        off = one_weight().profile(replicas=4, optimiser_sharded=True, optimiser_off_chip=True)
        assert off.memory.off_chip_bytes == 2 * 4 * ELEMENTS / 4


@settings(max_examples=30, deadline=None)
@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.booleans(), st.lists(st.integers())))
def test_no_answer_makes_a_check_raise(answer: object) -> None:
    with letting_errors_through():
        judge(PRICE, (answer, answer))
        judge(PLACE, (answer,), profile())
        judge(RARE, (57, answer))
        judge(SHARED, (answer,))


class TestStateBytes:
    def test_tensors_are_counted_and_steps_are_not(self) -> None:
        states = {
            "Accl1___a": torch.zeros(10, dtype=torch.float16),
            "Accl2___a": torch.zeros(10),
            "Step___a": torch.zeros(()),
        }
        assert state_bytes(states, 10) == (2, 6.0)

    def test_no_state_is_none(self) -> None:
        assert state_bytes({}, 10) == (0, 0.0)


class TestViews:
    def test_four_parts_are_the_whole_tile_and_the_opening_has_them(self) -> None:
        parts = kib_by_part(profile(), 1)
        (source,) = lesson.folder.glob("08_*.py")
        opening = source.read_text(encoding="utf-8")[:600]
        assert sum(parts.values()) == pytest.approx(profile().memory.max_tile_bytes / 1024)
        assert f"**{sum(parts.values()):.0f} KiB**" in opening
        assert f"**{parts[STATE]:.0f} KiB**" in opening

    def test_the_share_is_that_of_the_ipu_that_copies_longest(self) -> None:
        off = profile(Optimizer=2)
        longest = max(copying_milliseconds(off, ipu) for ipu in range(2))
        assert copies_share(off) == pytest.approx(100 * longest / (1e3 * off.device_seconds_per_call), rel=0.02)

    def test_a_row_tells_what_left_the_chip_and_what_it_costs(self) -> None:
        row = places.place_row("all state off", profile(Optimizer=2))
        assert row["off the chip"] == "356 MB"
        assert row["the model's verdict"] == "fits"
        assert (
            places.place_row("on", profile())["copies' share of the time"] == "0%" != row["copies' share of the time"]
        )

    @pytest.mark.parametrize(
        "show",
        [
            lambda: copies.show_update(NOT_MODELLED),
            lambda: show_parts(NOT_MODELLED),
            lambda: copies.show_price(NOT_MODELLED),
            lambda: copies.show_accumulations(NOT_MODELLED, (3, 8)),
            lambda: places.show_places({"on": NOT_MODELLED, "off": NOT_MODELLED}, "nothing"),
            lambda: replicas.show_sharding(NOT_MODELLED, (2, 4), "POD16"),
        ],
    )
    def test_without_a_model_each_reports_that_there_is_none(
        self, show: Callable[[], Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        show()
        assert capsys.readouterr().out.strip() == engine.NOT_HERE


def test_the_guide_s_share_is_published() -> None:
    found = lesson.published("copies_share")
    assert (found.value, found.kind) == (58, "published")
