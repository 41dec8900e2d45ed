"""Costs of captured programs: what costs nothing, layouts, parts, formulas, settings and hints, properties."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from cost_support import SETTINGS, calling, costed, cycles, stepped
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.predict.costs import Costs, costs_of, total_of
from ipu_model.predict.device import CostSettings, Device, Element
from ipu_model.predict.hardware import chip
from ipu_model.step import Phase, Serialisation
from published.building import hint
from published.convolutional import day03

HALF = torch.float16
SQUARE = torch.zeros(64, 64)


def inference(function: Callable[..., Tensor], *inputs: Tensor) -> Costs:
    module = function if isinstance(function, nn.Module) else calling(function)
    return costs_of(stepped(module, *inputs, training=False))


def targets(costs: Costs) -> list[str]:
    return [op.target.removeprefix("aten.") for op in costs.ops]


def filled(x: Tensor) -> Tensor:
    """Return what is computed of a buffer that is filled from data, and therefore not known."""
    scratch = torch.zeros(64, 64)
    scratch[2:4] = x[2:4]
    return scratch.exp()


class TestWhatCostsNothing:
    @pytest.mark.parametrize(
        ("function", "x", "ops"),
        [
            (lambda x: x.view(4, 8).t()[1:5].unsqueeze(0).expand(3, 4, 4).permute(2, 0, 1), torch.zeros(32), []),
            (lambda x: x.long(), torch.zeros(8, dtype=torch.int32), []),  # one type on the device
            (lambda x: x + torch.ones(64, 64).tril().log(), SQUARE, ["add.Tensor"]),  # known when compiling
        ],
    )
    def test_only_these_ops_cost_anything(self, function: Callable[..., Tensor], x: Tensor, ops: list[str]) -> None:
        assert targets(inference(function, x)) == ops
        assert "exp.default" in targets(inference(filled, SQUARE))

    def test_a_dropouts_mask_is_drawn_and_scaled_in_one_pass(self) -> None:
        """PopLibs has two passes for a dropout: random numbers and a multiplication. Other divisions cost a pass."""
        costs = costed(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)), SQUARE)
        dropout = [op.target for op in costs.of(phase=Phase.FORWARD) if op.scope == "module.1"]
        assert dropout == ["aten.bernoulli_.float", "aten.mul.Tensor"]
        assert targets(inference(lambda x: x.exp().div_(3.0), SQUARE)) == ["exp.default", "div_.Tensor"]


class TestLayouts:
    def test_ops_on_one_layout_do_not_exchange_but_a_residual_comes_from_elsewhere(self) -> None:
        assert total_of(inference(lambda x: x.exp() * x, SQUARE).ops).phases == 0
        residual = calling(lambda conv, x: conv(x) + x, nn.Conv2d(8, 8, 3, padding=1))
        (added,) = [op for op in inference(residual, torch.zeros(4, 8, 16, 16)).ops if op.target == "aten.add.Tensor"]
        assert added.work.cycles.phases == 1

    def test_what_follows_a_contraction_works_on_its_busiest_tile(self) -> None:
        costs = inference(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 6, 6))
        conv, relu = (op for op in costs.ops if op.part == "")
        assert costs.layouts[relu.node] == costs.layouts[conv.node]
        assert relu.work.outputs_on_busiest_tile >= conv.work.outputs_on_busiest_tile

    def test_a_product_without_a_weight_in_the_backward_pass_is_no_weight_gradient(self) -> None:
        """d(y y^T) = g^T y and g y, with a gradient g that is the same everywhere; the weight gradient comes last and
        is the only one that turns both operands."""
        product = calling(lambda layer, x: (y := layer(x)) @ y.t(), nn.Linear(64, 64, bias=False))
        plans = [op.work.plan for op in costed(product, SQUARE).of(phase=Phase.BACKWARD) if "mm" in op.target]
        assert [plan.startswith("product") for plan in plans] == [False, False, True]


def test_gradients_of_a_convolution_are_separate() -> None:
    costs = costed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 12, 12))
    parts = [op.part for op in costs.of(phase=Phase.BACKWARD) if "convolution" in op.target]
    assert parts == ["data gradient", "weight gradient", "bias gradient", "weight gradient", "bias gradient"]


def test_an_op_without_formula_is_costed_and_listed() -> None:
    (listed,) = inference(lambda x: torch.cdist(x, x), SQUARE).fallbacks
    received = SETTINGS.device.spread(64 * 64, Element.FLOAT) * Element.FLOAT.bytes
    assert "dist" in listed.target
    assert listed.work.cycles.compute > 0
    assert listed.work.cycles.exchange >= received / SETTINGS.device.chip.exchange_bytes_per_cycle


# --- FLOPs, against torch's counter


def attended(qkv: nn.Module, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in qkv(x).chunk(3, 2))
    return (q @ k.transpose(2, 3) / 8**0.5).softmax(3) @ v


def flops(module: nn.Module, *inputs: Tensor) -> tuple[int, int]:
    with FlopCounterMode(display=False) as counter:
        module(*inputs).float().sum().backward()
    return costed(module, *inputs).flops, counter.get_total_flops()


class TestFlops:
    @pytest.mark.parametrize(
        ("module", "shape"),
        [
            (nn.Linear(20, 30), (7, 20)),
            (nn.Linear(20, 30, bias=False), (2, 7, 20)),
            (nn.Conv1d(4, 6, 5), (2, 4, 32)),
            (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 15, 15)),
            (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 15, 15)),
            (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 6, 6, 6)),
            (nn.ConvTranspose2d(6, 4, 2, stride=2), (2, 6, 8, 8)),
            (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (2, 3, 12, 12)),
            (calling(attended, nn.Linear(32, 96)), (2, 10, 32)),
        ],
    )
    def test_as_counted_by_torch(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        ours, theirs = flops(module, torch.zeros(shape))
        assert ours == theirs

    def test_grouped_weight_gradients_are_counted_once(self) -> None:
        """torch's counter takes the weight gradient of every group over the channels of all groups."""
        forward = 2 * (2 * 10 * 10) * 8 * 2 * 9
        ours, theirs = flops(nn.Conv2d(8, 8, 3, groups=4, padding=1), torch.zeros(2, 8, 10, 10))
        assert (ours, theirs) == (2 * forward, forward + 4 * forward)


# --- settings and hints


class TestSettings:
    LAYERS = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)).half()
    INPUT = torch.zeros(8, 64, 16, 16, dtype=HALF)

    @pytest.mark.parametrize(
        ("chosen", "compare"),
        [
            (CostSettings(half_partials=True), operator.lt),
            (CostSettings(half_partials=True, half_partials_of_convolutions=False), operator.eq),
            (CostSettings(Device(chip=chip("GC2"))), operator.gt),
            (CostSettings(stable_norm=True), operator.eq),
        ],
    )
    def test_cycles_of_convolutions(self, chosen: CostSettings, compare: Callable[[float, float], bool]) -> None:
        plain = cycles(costed(self.LAYERS, self.INPUT))
        assert compare(cycles(costed(self.LAYERS, self.INPUT, settings=chosen), chosen), plain)

    def test_a_proportion_is_for_one_ipu(self) -> None:
        step = step_of(day03())
        some, all_ = costs_of(step, CostSettings(available_memory_proportion={1: 0.05})), costs_of(step)
        assert total_of(some.of(ipu=0)) == total_of(all_.of(ipu=0))
        assert cycles(some, ipu=1) > cycles(all_, ipu=1)
        assert temporary(some, ipu=1) <= 0.05 * SETTINGS.device.chip.tile_bytes


def temporary(costs: Costs, **where: int) -> float:
    return max(op.work.temporary_bytes for op in costs.of(**where) if op.family == "contraction")


def hinted(**hints: object) -> Costs:
    """Return the costs of a large product whose result carries hints, as poptorch's annotations leave them."""

    def product(layer: nn.Linear, x: Tensor) -> Tensor:
        result = x @ layer.weight
        hint(result, **hints)
        return result

    return costed(calling(product, nn.Linear(2048, 1024, bias=False)), torch.zeros(512, 1024))


def serialised(mode: str, factor: int) -> Costs:
    return hinted(serialisation=Serialisation(mode, factor))


class TestHints:
    def plans(self, costs: Costs) -> list[str]:
        return [op.work.plan for op in costs.ops if op.family == "contraction"]

    @pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
    def test_serialised_products_run_in_slices_forward_and_backward(self, mode: str) -> None:
        plans = self.plans(serialised(mode, 4))
        assert len(plans) == 2  # the input has no gradient
        assert all("4 serial slices" in plan for plan in plans)

    def test_slices_save_memory_and_cost_time(self) -> None:
        whole, sliced = hinted(), serialised("output_channels", 8)
        assert cycles(sliced) > cycles(whole)
        assert sliced.flops == whole.flops
        assert temporary(sliced) < temporary(whole)
        for mode, factor in (("none", 4), ("output_channels", 0)):
            assert self.plans(serialised(mode, factor)) == self.plans(whole)

    def test_a_proportion_of_one_op_or_one_ipu_must_be_between_0_and_1(self) -> None:
        assert temporary(hinted(available_memory_proportion=0.05)) <= 0.05 * SETTINGS.device.chip.tile_bytes
        with pytest.raises(Error, match=r"must be between 0 and 1, not 2\.0"):
            hinted(available_memory_proportion=2.0)
        for proportion in (-0.1, 1.5, float("nan")):
            with pytest.raises(Error, match="proportion of IPU0 must be between 0 and 1"):
                CostSettings(available_memory_proportion={0: proportion})
