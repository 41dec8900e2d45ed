"""The plan of a contraction: the search against brute force, reads by hand, memory bounds, slices."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_model.predict.device import DEFAULT_PROPORTION, Device, Work
from ipu_model.predict.planner import (
    LayerPass,
    Parts,
    Problem,
    Split,
    contraction,
    evaluate,
    matrix_product,
    splits_of,
)
from ipu_model.predict.vertices import MatrixUnit, cast_stage, conv_1x1

GC200 = Device()


def total(problem: Problem, device: Device = GC200, **precision: Any) -> float:
    return device.total(contraction(problem, device, **precision).cycles)


def with_tiles(tiles: int) -> Device:
    return Device(chip=replace(GC200.chip, tiles=tiles))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw a convolution (plain, grouped, depthwise) or a matrix product, which has images of 1 x 1, in one pass."""
    kernel, size = draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, 4, 7, 8, 14, 16, 32]))
    kernel, stride = min(kernel, size), draw(st.sampled_from([1, 2]))
    result, groups = (size - 1) // stride + 1, draw(st.sampled_from([1, 1, 1, 8, 96]))
    channels = st.sampled_from([1, 2, 3, 4] if groups == 96 else [1, 3, 10, 16, 20, 64, 100, 128, 256])
    return Problem(
        draw(st.sampled_from(list(LayerPass))), groups, draw(st.one_of(st.integers(1, 64), st.just(1000))),
        draw(channels), draw(channels), (size, size), (result, result), (kernel, kernel), (stride, stride), (1, 1),
        draw(st.sampled_from([2, 4])),
    )  # fmt: skip


class TestSearch:
    @pytest.mark.parametrize(("m", "k", "n", "tiles"), [(48, 64, 32, 24), (100, 160, 24, 16), (30, 16, 80, 12)])
    def test_no_split_is_faster_than_the_one_that_is_found(self, m: int, k: int, n: int, tiles: int) -> None:
        """Every way to cut a product over few tiles, with either operand as the field."""
        device = with_tiles(tiles)
        either = (every_split(field, outs, math.ceil(k / 16), device) for field, outs in ((m, n), (n, m)))
        best = min(evaluate(split, device).costs.total(device).min() for split in either)
        assert total(matrix_product(m, k, n, 2), device) == pytest.approx(best)

    def test_plans_are_found_once_for_each_machine_and_its_constants(self) -> None:
        problem = matrix_product(123, 45, 67, 2)
        first = contraction(problem, GC200)
        hits = contraction.cache_info().hits
        assert contraction(replace(problem), Device()) is first
        assert contraction.cache_info().hits == hits + 1
        slow = Device(calibration=GC200.calibration.with_values({"cost.exchange_fixed_cycles": 1000.0}))
        assert total(problem, slow) > total(problem)
        assert total(problem, with_tiles(2)) > total(problem)
        # Workers take turns: fewer of them do not multiply faster, but fewer have to start.
        few = Device(chip=replace(GC200.chip, workers=2))
        small, large = matrix_product(1, 16, 8, 2), matrix_product(4096, 1024, 1024, 2)
        assert total(small, few) < total(small)
        assert total(large, few) > 0.9 * total(large)
        # Nothing to multiply costs nothing.
        assert contraction(matrix_product(0, 16, 16, 2), GC200).cycles.compute == 0


def every_split(field: int, outs: int, groups: int, device: Device) -> Split:
    """Return all ways to cut an fp16 product over the tiles: field, outputs, and groups of 16 of the reduction."""
    unit = MatrixUnit(element_bytes=2, partial_bytes=4, units=8, channel_group=16, workers=device.chip.workers)
    blocks, tiles = math.ceil(outs / unit.units), range(1, device.chip.tiles + 1)
    cuts = [
        cut
        for cut in itertools.product(tiles, repeat=3)
        if math.prod(cut) <= device.chip.tiles and all(map(operator.le, cut, (field, groups, blocks)))
    ]
    f, i, o = np.array(cuts, dtype=np.float64).T
    part, gi, go = np.ceil(field / f), np.ceil(groups / i), np.ceil(blocks / o)
    one = np.ones_like(f)
    vertex = conv_1x1(part, gi, go, one, unit)
    return Split(
        "every", unit, vertex=vertex, inputs=part * gi * 16, weights=gi * 16 * go * 8, results=part * go * 8,
        parts=Parts(np.ceil(field / part), i, o, one),
    )  # fmt: skip


class TestReads:
    """What each of four tiles reads of 16 channels of an image, which is cut in rows, in columns, or in both."""

    LAYER = Problem(LayerPass.FORWARD, 1, 1, 16, 8, (8, 12), (8, 12), (3, 5))
    STRIDED = replace(LAYER, image=(16, 24), stride=(2, 2))
    GRADIENT = replace(STRIDED, which=LayerPass.DATA_GRADIENT, in_channels=8, out_channels=16)

    @pytest.mark.parametrize(
        ("problem", "method", "reads"),
        [
            # Two rows and four columns more than results, but never more than there are.
            (LAYER, "rows", {(2 + 2) * 12 * 16, (4 + 2) * (6 + 4) * 16, 8 * (3 + 4) * 16}),
            # The five columns of the kernel are channels.
            (LAYER, "expanded columns", {(2 + 2) * 12 * 80, (4 + 2) * 6 * 80, 8 * 3 * 80}),
            # Every second row and column has a result: 2 x 1 + 3 rows for two, 2 x 5 + 5 columns for six.
            (STRIDED, "rows", {(2 + 3) * 24 * 16, (6 + 3) * (10 + 5) * 16, 16 * (4 + 5) * 16}),
            # Of the gradients with a stride of two: half of four rows and the two above, rounded up.
            (GRADIENT, "rows", {3 * 12 * 16, 5 * 8 * 16, 8 * 5 * 16}),
        ],
    )
    def test_by_hand(self, problem: Problem, method: str, reads: set[float]) -> None:
        unit = MatrixUnit(element_bytes=2, partial_bytes=4, units=8, channel_group=16, workers=6)
        (split,) = (split for split in splits_of(problem, unit, 4) if split.method == method)
        whole = (split.parts.field == 4) & (split.parts.ins == 1)
        assert set(split.inputs[whole]) == reads


class TestProperties:
    @given(problems(), st.sampled_from([100, 736, 1216, 1400]))
    @settings(max_examples=80)
    def test_what_holds_for_every_layer(self, problem: Problem, tiles: int) -> None:
        cycles = total(problem)
        assert total(problem, half_partials=True) <= cycles * (1 + 1e-9)
        # A very large field is cut as finely as possible or not at all; cutting it less can save a few bytes. Without a
        # limit of memory, because it is dropped where no plan keeps it: that can happen with fewer tiles alone.
        few, all_tiles = (total(problem, device, proportion=math.inf) for device in (with_tiles(tiles), GC200))
        assert few >= all_tiles * 0.99
        # No plan beats the matrix unit or fits nothing.
        work = contraction(problem, GC200)
        peak = GC200.chip.peak_flops(problem.element_bytes) / GC200.chip.clock_hz
        assert work.cycles.compute > problem.flops / peak
        assert work.temporary_bytes > 0
        assert work.outputs_on_busiest_tile >= problem.output_elements / GC200.chip.tiles * 0.999

    @given(problems())
    @settings(max_examples=100, derandomize=True)
    def test_a_larger_problem_or_a_wider_type_is_never_faster(self, problem: Problem) -> None:
        """A problem can be run as the larger one with zeros in it; a deeper reduction can divide a little better.

        Where no plan keeps to the limit of memory, the limit is dropped, and more memory can buy time.
        """
        work = contraction(problem, GC200)
        limit = max(work.temporary_bytes, DEFAULT_PROPORTION * GC200.chip.tile_bytes)
        more = {size: getattr(problem, size) + 1 for size in ("batch", "in_channels", "out_channels", "groups")}
        changes = [*({size: count} for size, count in more.items()), {"batch": 2 * problem.batch}, {"element_bytes": 4}]
        # Only fp16 has fp32 partials to convert.
        cast = float(cast_stage(np.float64(work.outputs_on_busiest_tile), GC200.chip.workers))
        for change in changes:
            larger = contraction(replace(problem, **change), GC200)
            allowed = cast if "element_bytes" in change else 0.0
            if larger.temporary_bytes <= limit:
                assert GC200.total(work.cycles) <= 1.06 * GC200.total(larger.cycles) + allowed, change

    @pytest.mark.parametrize(
        ("problem", "method"),
        [
            # Depthwise convolutions use the window vertex in fp16.
            (Problem(LayerPass.FORWARD, 96, 16, 1, 1, (56, 56), (56, 56), (3, 3)), "windows"),
            (Problem(LayerPass.FORWARD, 96, 16, 1, 1, (56, 56), (56, 56), (3, 3), element_bytes=4), "channels"),
            # Three channels are run as four.
            (Problem(LayerPass.FORWARD, 96, 16, 3, 3, (56, 56), (56, 56), (3, 3)), "windows"),
            # One row is multiplied by the vector unit.
            (matrix_product(1, 1024, 1024, 2), "dots"),
        ],
    )
    def test_methods(self, problem: Problem, method: str) -> None:
        assert contraction(problem, GC200).plan.startswith(method)


class TestTransposedOperands:
    """The reduced dimension must lie innermost, so an operand that lies the other way round is copied first."""

    @pytest.mark.parametrize("operand", ["inputs", "weights"])
    def test_turning_an_operand_costs_a_copy_and_its_exchange(self, operand: str) -> None:
        plain = matrix_product(128, 64, 128, 2, groups=96)
        turned = contraction(replace(plain, transposed=(operand,)), GC200)
        assert turned.cycles.phases > contraction(plain, GC200).cycles.phases
        assert 1.0 < GC200.total(turned.cycles) / total(plain) < 1.3

    def test_lengths_that_fill_no_blocks_are_turned_element_by_element(self) -> None:
        def added(length: int) -> float:
            plain = matrix_product(length, length, 64, 2, groups=96)
            return total(replace(plain, transposed=("inputs",))) - total(plain)

        assert added(197) > 5 * added(200)
        assert added(196) < 1.1 * added(200)

    def test_samples_of_a_weight_gradient_are_filled_up_to_blocks(self) -> None:
        layer = Problem(LayerPass.WEIGHT_GRADIENT, 1, 1, 512, 512, (7, 7), (7, 7), (3, 3))
        cycles = [total(replace(layer, batch=batch)) for batch in range(1, 10)]
        assert cycles == sorted(cycles)


class TestMemory:
    LAYER = Problem(LayerPass.WEIGHT_GRADIENT, 1, 2, 64, 64, (256, 256), (256, 256), (3, 3))

    def work(self, proportion: float) -> Work:
        return contraction(self.LAYER, GC200, proportion=proportion)

    def test_less_memory_is_kept_and_never_faster(self) -> None:
        works = {proportion: self.work(proportion) for proportion in (1.0, 0.6, 0.4, 0.3, 0.2)}
        assert all(work.temporary_bytes <= share * GC200.chip.tile_bytes for share, work in works.items())
        cycles = [GC200.total(work.cycles) for work in works.values()]
        assert cycles == sorted(cycles)
        # Little memory is met by serial slices, and none asks for the least.
        assert "serial slices" in self.work(0.1).plan
        least = self.work(0.0).temporary_bytes
        assert all(least <= self.work(proportion).temporary_bytes for proportion in (0.05, 0.1, 0.6))

    def test_a_dimension_without_small_factors_takes_a_multiple_of_the_proportion(self) -> None:
        """The head of GPT-2: 50,257 words are 29 x 1733, which slices do not divide, so 0.2 is doubled twice."""
        odd, padded = (
            contraction(matrix_product(512, 768, words, 2), GC200, proportion=0.2).temporary_bytes
            for words in (50_257, 50_272)
        )
        assert 0.4 < odd / GC200.chip.tile_bytes <= 0.8
        assert padded <= 0.2 * GC200.chip.tile_bytes
        # Small products do not depend on it.
        problem = matrix_product(64, 64, 64, 2)
        assert contraction(problem, GC200, proportion=0.1) == contraction(problem, GC200)
