"""Costs of captured programs: what costs nothing, layouts, parts, fallbacks, properties."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from cost_support import SETTINGS, Trained, costed, cycles, stepped
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from tracing_support import ops_of, traced

from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.predict.costs import costs_of, total_of
from ipu_model.predict.device import CostSettings, Device, Element
from ipu_model.step import Phase
from published.convolutional import day03

HALF = torch.float16


class TestWhatCostsNothing:
    def test_views(self) -> None:
        class Views(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.view(4, 8).t()[1:5].unsqueeze(0).expand(3, 4, 4).permute(2, 0, 1)

        found = costs_of(stepped(Views(), torch.zeros(32), training=False))
        assert found.ops == ()

    def test_types_that_are_one_on_the_device(self) -> None:
        class Widened(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.long()

        assert costs_of(stepped(Widened(), torch.zeros(8, dtype=torch.int32), training=False)).ops == ()

    def test_what_is_known_when_compiling(self) -> None:
        class Mask(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + torch.ones(8, 8).tril().log()

        found = costs_of(stepped(Mask(), torch.zeros(8, 8), training=False))
        assert [op.target for op in found.ops] == ["aten.add.Tensor"]

    def test_a_buffer_that_is_filled_from_data_is_not_known(self) -> None:
        class Written(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                scratch = torch.zeros(8, 8)
                scratch[2:4] = x[2:4]
                return scratch.exp()

        found = costs_of(stepped(Written(), torch.zeros(8, 8), training=False))
        assert "aten.exp.default" in [op.target for op in found.ops]


class TestLayouts:
    def test_ops_on_one_layout_do_not_exchange(self) -> None:
        class Square(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.exp() * x

        found = costs_of(stepped(Square(), torch.zeros(64, 64), training=False))
        assert total_of(found.ops).phases == 0

    def test_a_residual_comes_from_elsewhere(self) -> None:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(8, 8, 3, padding=1)

            def forward(self, x: Tensor) -> Tensor:
                return self.conv(x) + x

        found = costs_of(stepped(Residual(), torch.zeros(4, 8, 16, 16), training=False))
        (added,) = [op for op in found.ops if op.target == "aten.add.Tensor"]
        assert added.work.cycles.phases == 1

    def test_what_follows_a_contraction_works_on_its_busiest_tile(self) -> None:
        found = costs_of(stepped(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 6, 6), training=False))
        conv, relu = (op for op in found.ops if op.part == "")
        assert found.layouts[relu.node] == found.layouts[conv.node]
        assert relu.work.outputs_on_busiest_tile >= conv.work.outputs_on_busiest_tile

    def test_in_inference_a_batch_norm_takes_two_passes(self) -> None:
        x = torch.zeros(4, 8, 16, 16)
        kept = costs_of(stepped(nn.BatchNorm2d(8).eval(), x, training=False))
        measured = costs_of(stepped(nn.BatchNorm2d(8), x, training=False))
        assert cycles(kept) < cycles(measured)


class TestProductsOfActivations:
    """The matrix unit takes operands whose reduced dimension lies innermost; others are turned first, in one phase."""

    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(2, 64, 4, 32).permute(0, 2, 1, 3)
            return (heads @ heads.transpose(-1, -2)) @ heads

    def test_scores_find_both_operands_as_they_need_them_and_what_is_attended_to_is_turned(self) -> None:
        # Queries and keys lie with their features innermost, which the scores reduce; the second product reduces
        # tokens, and values lie with their features innermost too.
        found = costs_of(stepped(self.Attention(), torch.zeros(2, 64, 128), training=False))
        scores, context = (op for op in found.ops if "bmm" in op.target)
        assert context.work.cycles.phases == scores.work.cycles.phases + 1

    def test_a_product_without_a_weight_in_the_backward_pass_is_no_weight_gradient(self) -> None:
        class Product(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(64, 64, bias=False)

            def forward(self, x: Tensor) -> Tensor:
                y = self.layer(x)
                return y @ y.t()

        found = costed(Product(), torch.zeros(64, 64))
        plans = [op.work.plan for op in found.of(phase=Phase.BACKWARD) if "mm" in op.target]
        # d(y y^T) = g^T y and g y, with a gradient g that is the same everywhere; the weight gradient comes last
        # and is the only one that turns both operands.
        assert [plan.startswith("product") for plan in plans] == [False, False, True]


class TestDropout:
    def test_a_mask_is_drawn_and_scaled_in_one_pass(self) -> None:
        # PopLibs has two passes for a dropout: random numbers and a multiplication.
        found = costed(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)), torch.zeros(64, 64))
        dropout = [op.target for op in found.of(phase=Phase.FORWARD) if op.scope == "module.1"]
        assert dropout == ["aten.bernoulli_.float", "aten.mul.Tensor"]

    def test_a_division_of_anything_else_costs_a_pass(self) -> None:
        class Scaled(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.exp().div_(3.0)

        found = costs_of(stepped(Scaled(), torch.zeros(64, 64), training=False))
        assert [op.target for op in found.ops] == ["aten.exp.default", "aten.div_.Tensor"]


class TestParts:
    def test_gradients_of_a_convolution_are_separate(self) -> None:
        found = costed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 12, 12))
        parts = [op.part for op in found.of(phase=Phase.BACKWARD) if "convolution" in op.target]
        assert parts == ["data gradient", "weight gradient", "bias gradient", "weight gradient", "bias gradient"]

    def test_ops_know_where_they_are(self) -> None:
        found = costs_of(step_of(day03()))
        last = [op for op in found.ops if op.scope == "model.fc"]
        assert {op.ipu for op in last} == {1}
        assert {op.phase for op in last} == {Phase.FORWARD, Phase.BACKWARD}

    def test_every_node_that_computes_is_there(self) -> None:
        graph = day03()
        costed = {op.node for op in costs_of(step_of(graph)).ops}
        for node in ops_of(graph):
            if "convolution" in str(node.target) or "batch_norm" in str(node.target):
                assert node.name in costed
            elif node.target is operator.getitem:
                assert node.name not in costed


class TestFallback:
    def test_an_op_without_formula_is_costed_and_listed(self) -> None:
        class Distances(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.cdist(x, x)

        found = costs_of(stepped(Distances(), torch.zeros(64, 64), training=False))
        (listed,) = found.fallbacks
        received = SETTINGS.device.spread(64 * 64, Element.FLOAT) * Element.FLOAT.bytes
        assert listed.is_fallback
        assert "dist" in listed.target
        assert listed.work.cycles.compute > 0
        assert listed.work.cycles.exchange >= received / SETTINGS.device.chip.exchange_bytes_per_cycle


class TestFormulas:
    @pytest.mark.parametrize(
        ("function", "family"),
        [
            (torch.hypot, "elementwise"),
            (torch.logaddexp, "elementwise"),
            (lambda x, y: torch.special.entr(x), "elementwise"),
            (lambda x, y: x.logcumsumexp(1), "ordering"),
            (lambda x, y: torch.vdot(x.flatten(), y.flatten()), "contraction"),
            (lambda x, y: F.embedding_bag(y.int(), x, mode="sum"), "embedding"),
            (lambda x, y: x.mode(1).values, "ordering"),
            (torch.dist, "reduction"),
            (lambda x, y: x.int() << 2, "elementwise"),
            (lambda x, y: F.multi_margin_loss(x, y[0].long()), "reduction"),
            (lambda x, y: torch.hann_window(64) * x, "elementwise"),
            (lambda x, y: F.max_unpool2d(x[None, None], y[None, None].long(), 2), "copy"),
        ],
    )
    def test_less_common_ops_have_one_too(self, function: Callable[..., Tensor], family: str) -> None:
        class Called(nn.Module):
            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return function(x, y)

        found = costs_of(stepped(Called(), torch.zeros(64, 64), torch.zeros(64, 64), training=False))
        assert not found.fallbacks
        assert family in {op.family for op in found.ops}

    def test_a_weight_in_a_direction_costs_more_than_its_length_alone(self) -> None:
        """It is made of the reduction that finds the length, and of a scaling."""
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(256, 256, bias=False))

        class Length(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.norm(dim=1, keepdim=True)

        found = costs_of(stepped(layer, torch.zeros(4, 256), training=False))
        (norm,) = [op for op in found.ops if "weight_norm" in op.target]
        (length,) = costs_of(stepped(Length(), torch.zeros(256, 256), training=False)).ops
        assert not found.fallbacks
        assert norm.work.cycles.compute > length.work.cycles.compute

    def test_its_gradients_have_a_formula_too(self) -> None:
        layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
        found = costs_of(stepped(Trained(layer), torch.zeros(2, 4, 9)))
        assert "aten._weight_norm_interface_backward.default" in {op.target for op in found.ops}
        assert not found.fallbacks


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 100)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def network(batch: int, dtype: torch.dtype = torch.float32) -> Graph:
    return traced(Trained(Mlp().to(dtype)), torch.zeros(batch, 3, 8, 8, dtype=dtype))


class TestProperties:
    @given(st.integers(0, 6))
    @settings(max_examples=7)
    def test_twice_the_batch_never_takes_fewer_cycles(self, exponent: int) -> None:
        some, more = (cycles(costs_of(step_of(network(2**e)))) for e in (exponent, exponent + 1))
        assert more >= some

    @given(st.sampled_from([300, 736, 1000, 1216]))
    @settings(max_examples=4)
    def test_fewer_tiles_are_never_faster(self, tiles: int) -> None:
        graph = network(64)
        fewer = CostSettings(Device(chip=replace(SETTINGS.device.chip, tiles=tiles)))
        assert cycles(costs_of(step_of(graph), fewer), fewer) >= cycles(costs_of(step_of(graph)))

    def test_fp32_is_slower(self) -> None:
        assert cycles(costs_of(step_of(network(64)))) > cycles(costs_of(step_of(network(64, HALF))))

    def test_lowering_is_a_pure_function(self) -> None:
        graph = network(4)
        assert costs_of(step_of(graph)) == costs_of(step_of(graph))
