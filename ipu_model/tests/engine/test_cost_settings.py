"""Options and hints that change what an op costs."""

from __future__ import annotations

import pytest
import torch
from cost_support import SETTINGS, costed, cycles
from torch import Tensor, nn

from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import chip
from ipu_model.step import Serialisation
from published.convolutional import day03

HALF = torch.float16


class TestSettings:
    LAYERS = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)).half()
    INPUT = torch.zeros(8, 64, 16, 16, dtype=HALF)

    def test_half_partials_are_faster(self) -> None:
        half = CostSettings(half_partials=True)
        assert cycles(costed(self.LAYERS, self.INPUT, settings=half)) < cycles(costed(self.LAYERS, self.INPUT))

    def test_half_partials_of_products_only(self) -> None:
        only_products = CostSettings(half_partials=True, half_partials_of_convolutions=False)
        found = costed(self.LAYERS, self.INPUT, settings=only_products)
        assert cycles(found) == cycles(costed(self.LAYERS, self.INPUT))

    def test_a_proportion_is_for_one_ipu(self) -> None:
        graph = day03()
        tight = CostSettings(available_memory_proportion={1: 0.05})
        some, all_ = costs_of(step_of(graph), tight), costs_of(step_of(graph))
        assert some.cycles(ipu=0) == all_.cycles(ipu=0)
        assert cycles(some, ipu=1) > cycles(all_, ipu=1)
        assert max(op.work.temporary_bytes for op in some.of(ipu=1) if op.family == "contraction") <= (
            0.05 * SETTINGS.device.chip.tile_bytes
        )

    @pytest.mark.parametrize("proportion", [-0.1, 1.5, float("nan")])
    def test_impossible_proportions(self, proportion: float) -> None:
        with pytest.raises(Error, match="proportion of IPU0 must be between 0 and 1"):
            CostSettings(available_memory_proportion={0: proportion})

    def test_stable_norms_are_slower(self) -> None:
        norm, x = nn.BatchNorm2d(8), torch.zeros(4, 8, 16, 16)
        assert cycles(costed(norm, x, settings=CostSettings(stable_norm=True))) > cycles(costed(norm, x))

    def test_another_chip(self) -> None:
        mk1 = CostSettings(Device(chip=chip("GC2")))
        found = costed(self.LAYERS, self.INPUT, settings=mk1)
        assert cycles(found, mk1) > cycles(costed(self.LAYERS, self.INPUT))


class Hinted(nn.Module):
    """A large product whose result carries hints, as poptorch's annotations leave them."""

    def __init__(self, **hints: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1024, 2048))
        self.hints = hints

    def forward(self, x: Tensor) -> Tensor:
        product = x @ self.weight
        trace = tracing.current()
        if trace is not None:
            trace.hint(product, **self.hints)
        return product


def serialised(mode: str, factor: int) -> Hinted:
    return Hinted(serialisation=Serialisation(mode, factor))


class TestHints:
    INPUT = torch.zeros(512, 1024)

    def plans(self, module: nn.Module) -> list[str]:
        return [op.work.plan for op in costed(module, self.INPUT).ops if op.family == "contraction"]

    @pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
    def test_serialised_products_run_in_slices_forward_and_backward(self, mode: str) -> None:
        plans = self.plans(serialised(mode, 4))
        assert len(plans) == 2  # the input has no gradient
        assert all("4 serial slices" in plan for plan in plans)

    def test_slices_save_memory_and_cost_time(self) -> None:
        whole, sliced = (costed(m, self.INPUT) for m in (Hinted(), serialised("output_channels", 8)))
        assert cycles(sliced) > cycles(whole)
        assert sliced.flops == whole.flops
        assert max(op.work.temporary_bytes for op in sliced.ops if op.family == "contraction") < max(
            op.work.temporary_bytes for op in whole.ops if op.family == "contraction"
        )

    @pytest.mark.parametrize("hint", [Serialisation("none", 4), Serialisation("output_channels", 0)])
    def test_disabled_serialisation(self, hint: Serialisation) -> None:
        assert self.plans(Hinted(serialisation=hint)) == self.plans(Hinted())

    def test_a_proportion_of_one_op(self) -> None:
        limited = costed(Hinted(available_memory_proportion=0.05), self.INPUT)
        limit = 0.05 * SETTINGS.device.chip.tile_bytes
        assert all(op.work.temporary_bytes <= limit for op in limited.ops if op.family == "contraction")

    def test_an_impossible_proportion_of_one_op(self) -> None:
        with pytest.raises(Error, match=r"must be between 0 and 1, not 2\.0"):
            costed(Hinted(available_memory_proportion=2.0), self.INPUT)
