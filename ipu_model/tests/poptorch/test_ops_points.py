"""`fps` and `nearest` (execution reference, section 11), against plain loops over the points."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from function_models import compiled_ops, in_training, on_device
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import poptorch

# Whole numbers: distances are exact, and ties are met.
POINTS = torch.randint(-9, 9, (20, 3), generator=torch.Generator().manual_seed(0)).float()
OTHERS = torch.randint(-9, 9, (15, 3), generator=torch.Generator().manual_seed(1)).float()


def sampled(rows: list[list[float]], begin: int, count: int) -> list[int]:
    """Farthest point sampling as its definition says: the largest of the least distances, the first of equals."""
    picked = [0][:count]
    while len(picked) < count:
        least = [min(math.dist(row, rows[p]) for p in picked) for row in rows]
        picked.append(least.index(max(least)))
    return [begin + p for p in picked]


class TestFarthestPoints:
    @given(
        ends=st.lists(st.integers(0, 20), min_size=2, max_size=4).map(sorted),
        ratio=st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    )
    def test_each_pick_is_the_farthest_from_those_before(self, ends: list[int], ratio: float) -> None:
        expected = [
            index
            for begin, end in pairwise(ends)
            for index in sampled(POINTS[begin:end].tolist(), begin, math.ceil((end - begin) * ratio))
        ]
        assert poptorch.fps(POINTS, ends, ratio).tolist() == expected

    def test_the_device_picks_what_the_cpu_picks_and_rows_can_be_taken(self) -> None:
        executor = on_device(lambda m, x: x[poptorch.fps(x, [0, 8, 20])])
        assert torch.equal(executor(POINTS), POINTS[poptorch.fps(POINTS, [0, 8, 20])])

    def test_half_precision_picks_by_its_own_values(self) -> None:
        executor = on_device(lambda m, x: poptorch.fps(x, [0, 20], 0.3))
        assert torch.equal(executor(POINTS.half()).long(), poptorch.fps(POINTS, [0, 20], 0.3))

    def test_the_number_of_picks_is_computed_in_fp32(self) -> None:
        """As torch_cluster does; in fp64 0.07 * 100 is 7.000000000000001."""
        assert len(poptorch.fps(torch.rand(100, 1), [0, 100], 0.07)) == 7

    def test_a_random_start_is_any_row_of_its_sample_and_drawn_anew(self) -> None:
        executor = on_device(lambda m, x: poptorch.fps(x, [0, 8, 20], 0.1, random_start=True))
        starts = torch.stack([executor(POINTS) for _ in range(40)])
        assert all(0 <= first < 8 <= second < 20 for first, second in starts[:, [0, 1]].tolist())
        assert len(set(starts[:, 0].tolist())) > 3

    def test_in_training_the_points_get_gradients_through_what_is_taken(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            y = model.linear(x)
            return poptorch.identity_loss(y[poptorch.fps(y, [0, 20], 0.1)].sum(), "sum")

        assert in_training(forward)(torch.rand(20, 4)).isfinite()

    @pytest.mark.parametrize("wrong", [
        {"src": [[1.0]]}, {"src": torch.tensor(1.0)}, {"ptr": torch.tensor([0, 20])}, {"ptr": [0, 20.0]},
        {"ptr": [0]}, {"ptr": [0, 21]}, {"ptr": [-1, 5]}, {"ptr": [5, 2]}, {"ratio": "0.5"}, {"ratio": 0.0},
        {"ratio": 1.5}, {"ratio": True}, {"random_start": 1},
    ], ids=str)  # fmt: skip
    def test_other_arguments_are_refused_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(poptorch.Error, match=rf"poptorch\.fps: {next(iter(wrong))} "):
            poptorch.fps(**{"src": POINTS, "ptr": [0, 20], **wrong})


def closest(x: Tensor, y: Tensor, batch_x: list[int], batch_y: list[int]) -> list[int]:
    """The first of the nearest rows of the same batch element."""
    rows = []
    for row, batch in zip(x.tolist(), batch_x):
        distances = [math.dist(row, o) if b == batch else math.inf for o, b in zip(y.tolist(), batch_y)]
        rows.append(distances.index(min(distances)))
    return rows


class TestNearest:
    @given(cut_x=st.integers(1, 19), cut_y=st.integers(1, 14), tensors=st.sampled_from(["none", "x", "y", "both"]))
    def test_it_is_the_nearest_row_of_the_same_batch_element(self, cut_x: int, cut_y: int, tensors: str) -> None:
        batch_x, batch_y = [0] * cut_x + [7] * (20 - cut_x), [0] * cut_y + [7] * (15 - cut_y)
        given_x = torch.tensor(batch_x, dtype=torch.int32) if tensors in ("x", "both") else batch_x
        given_y = torch.tensor(batch_y, dtype=torch.int32) if tensors in ("y", "both") else batch_y
        found = poptorch.nearest(POINTS, OTHERS, given_x, given_y)
        assert found.tolist() == closest(POINTS, OTHERS, batch_x, batch_y)

    def test_without_batch_vectors_all_rows_count(self) -> None:
        assert poptorch.nearest(POINTS, OTHERS).tolist() == closest(POINTS, OTHERS, [0] * 20, [0] * 15)

    def test_one_batch_vector_stands_beside_zeros(self) -> None:
        assert torch.equal(poptorch.nearest(POINTS, OTHERS, [0] * 20), poptorch.nearest(POINTS, OTHERS))

    def test_one_dimension_is_one_feature(self) -> None:
        assert poptorch.nearest(torch.tensor([1.0, 9.0]), torch.tensor([8.0, 0.5, 3.0])).tolist() == [1, 0]

    def test_the_device_finds_what_the_cpu_finds_also_with_batches_known_at_run_time(self) -> None:
        batch_x, batch_y = torch.tensor([0] * 9 + [1] * 11), torch.tensor([0] * 5 + [1] * 10)
        executor = on_device(lambda m, x, y, a, b: (poptorch.nearest(x, y, a, b), poptorch.nearest(x, y)))
        found = executor(POINTS, OTHERS, batch_x, batch_y)
        assert found[0].tolist() == poptorch.nearest(POINTS, OTHERS, batch_x, batch_y).tolist()
        assert found[1].tolist() == poptorch.nearest(POINTS, OTHERS).tolist()

    def test_many_points_are_compared_piece_by_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ipu_model.capture.device_ops.points._DISTANCES_AT_ONCE", 64)
        batches = [0] * 9 + [1] * 11, [0] * 5 + [1] * 10
        assert poptorch.nearest(POINTS, OTHERS, *batches).tolist() == closest(POINTS, OTHERS, *batches)
        assert poptorch.nearest(POINTS[:0], OTHERS).shape == (0,)

    def test_close_neighbours_far_from_the_origin_keep_their_order(self) -> None:
        """A distance computed from products of coordinates would be all rounding here."""
        y = 4096 + torch.arange(64.0).reshape(64, 1) / 64
        assert poptorch.nearest(y, y).tolist() == list(range(64))

    @pytest.mark.parametrize("wrong", [{"x": [1.0]}, {"y": 2}, {"batch_x": 3}, {"batch_y": [0.5] * 15}], ids=str)
    def test_other_types_are_refused_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(poptorch.Error, match=rf"poptorch\.nearest: {next(iter(wrong))} "):
            poptorch.nearest(**{"x": POINTS, "y": OTHERS, **wrong})

    @pytest.mark.parametrize(("wrong", "fragment"), [
        ({"x": torch.rand(2, 3, 3)}, "x must have 1 or 2 dimensions"),
        ({"y": torch.rand(15, 4)}, "same number of features"),
        ({"batch_x": [0] * 19}, "batch_x must have 20 entries"),
        ({"batch_y": torch.zeros(14)}, "batch_y must have 15 entries"),
        ({"batch_x": [1] + [0] * 19}, "batch_x must be sorted"),
        ({"batch_x": [0] * 20, "batch_y": [0] * 14 + [1]}, "same batch elements"),
        ({"y": torch.rand(0, 3)}, "y has no rows"),
    ], ids=lambda value: "" if isinstance(value, dict) else value)  # fmt: skip
    def test_shapes_and_lists_that_do_not_fit_are_value_errors(self, wrong: dict[str, Any], fragment: str) -> None:
        with pytest.raises(ValueError, match=fragment):
            poptorch.nearest(**{"x": POINTS, "y": OTHERS, **wrong})


def test_each_is_one_op_of_the_graph() -> None:
    ops = compiled_ops(lambda m, x, y: (poptorch.fps(x, [0, 20]), poptorch.nearest(x, y)), POINTS, OTHERS)
    assert [str(op.target) for op in ops] == [
        "ipu_model.farthest_points.default", "ipu_model.nearest_points.default",
    ]  # fmt: skip
