"""Automatic loss scaling: the factor follows the float16 gradients, the weights do not notice it.

The rule is PopART's: after each update the factor is halved if more than a share of 1e-7 of the gradients' elements
reach 0.125 x 65504 = 8188, else doubled.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from executor_support import Module, quiet, sgd
from torch import nn

import poptorch
from ipu_model.compute.gradients import AutomaticLossScaling, LossScalingSettings

HALF = torch.float16
EDGE = 0.125 * 65504
ONE = torch.ones(1, 1, dtype=HALF)


def weighed(dtype: torch.dtype = HALF, factor: float = 1.0) -> Any:
    """Return a model whose loss is the sum of `weight * x`: the gradient is the sum of x's rows times `factor`."""

    def forward(model: Any, x: torch.Tensor) -> Any:
        out = model.weight * x
        return out, poptorch.identity_loss(out.float() * factor, "sum")

    return Module(forward, weight=nn.Parameter(torch.ones(1, dtype=dtype)))


def automatic(popart: dict[str, Any] | None = None, **settings: Any) -> poptorch.Options:
    options = quiet(setAutomaticLossScaling=True, **settings)
    for name, value in (popart or {}).items():
        options._Popart.set(f"automaticLossScalingSettings.{name}", value)
    return options


def factor_of(optimizer: poptorch.optim.Optimizer) -> float:
    return float(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"])


def factors(gradient: float, runs: int, options: poptorch.Options | None = None, **settings: Any) -> list[float]:
    """Train with the same gradient every time; return the factor before each run and after the last."""
    model, options = weighed(), options or automatic()
    optimizer = sgd(model, lr=0.0, **settings)
    training = poptorch.trainingModel(model, options, optimizer)
    rows = torch.full((options.device_iterations * options.Training.gradient_accumulation, 1), gradient, dtype=HALF)
    training.compile(rows)
    found = [factor_of(optimizer)]
    for _ in range(runs):
        training(rows)
        found.append(factor_of(optimizer))
    return found


def expected(gradient: float, updates: int, loss_scaling: float = 1.0) -> list[float]:
    """The rule, for a gradient of one element."""
    found = [1.0]
    for _ in range(updates):
        found.append(found[-1] * (0.5 if abs(gradient) * loss_scaling * found[-1] >= EDGE else 2.0))
    return found


class TestFactor:
    @pytest.mark.parametrize(("gradient", "scaling"), [(1.0, 1.0), (1000.0, 1.0), (1.0, 4096.0), (60000.0, 1.0)])
    def test_it_doubles_until_the_gradients_reach_the_edge_and_halves_there(
        self, gradient: float, scaling: float
    ) -> None:
        found = factors(gradient, 16, loss_scaling=scaling)
        assert found == expected(gradient, 16, scaling)
        assert max(EDGE, gradient) <= gradient * scaling * max(found) < max(2 * EDGE, gradient + 1)

    def test_it_adapts_after_every_update_with_all_its_micro_batches(self) -> None:
        assert factors(1000.0, 2, automatic(deviceIterations=3)) == expected(1000.0, 6)[::3]
        assert factors(1000.0, 5, automatic(accumulation=4)) == expected(1000.0, 5)

    def test_period_edge_and_threshold_can_be_moved(self) -> None:
        assert factors(1.0, 6, automatic({"updatePeriod": 3})) == [1, 1, 1, 2, 2, 2, 4]
        assert factors(100.0, 2, automatic({"binEdgeLocation": 0.001})) == [1, 0.5, 1]  # 65.5 lies between 50 and 100.
        assert factors(60000.0, 1, automatic({"thresholdUpperCountProportion": 1.0})) == [1, 2]

    def test_overflow_halves_it(self) -> None:
        assert factors(1.0, 2, loss_scaling=2.0**17) == [1, 0.5, 0.25]

    def test_it_stays_between_zero_and_the_largest_power_of_two_of_the_losss_type(self) -> None:
        for dtype, largest in ((HALF, 2.0**15), (torch.float32, 2.0**127)):
            scaling = AutomaticLossScaling(LossScalingSettings(), [True], dtype)
            for _ in range(200):
                scaling.adapt(2.0)
            assert 2.0 * scaling.factor == largest
        for _ in range(2000):
            scaling.observe([torch.tensor([math.nan])])
            scaling.adapt(1.0)
        assert 0 < scaling.factor < 1e-30

    def test_float32_gradients_are_not_counted(self) -> None:
        scaling = AutomaticLossScaling(LossScalingSettings(), [False, True], torch.float32)
        scaling.observe([torch.tensor([1e6]), torch.tensor([1.0])])
        scaling.adapt(1.0)
        assert scaling.factor == 2


class TestWeights:
    @pytest.mark.parametrize(
        "make",
        [
            lambda p: poptorch.optim.SGD(p, lr=0.25),
            lambda p: poptorch.optim.SGD(p, lr=0.25, momentum=0.5, use_combined_accum=False),
            lambda p: poptorch.optim.SGD(p, lr=0.25, momentum=0.5, use_combined_accum=True),
            lambda p: poptorch.optim.AdamW(p, lr=0.25),
            lambda p: poptorch.optim.RMSprop(p, lr=0.25),
            lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5),
        ],
    )
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_they_are_those_of_training_without_it(self, make: Any, accumulation: int) -> None:
        """Powers of two change no digit of gradients that stay inside the range of float16."""
        trained = []
        for options in (quiet, automatic):
            model = weighed()
            settings = {"deviceIterations": 3, "accumulation": accumulation}
            training = poptorch.trainingModel(model, options(**settings), make(model.parameters()))
            for value in (0.5, -0.75):
                training(torch.full((3 * accumulation, 1), value, dtype=HALF))
            trained.append(model.weight.item())
        assert trained[0] == trained[1] != 1.0

    def test_gradients_below_the_float16_range_are_rescued(self) -> None:
        for options, moves in ((quiet, False), (automatic, True)):
            model = weighed(factor=2.0**-26)
            training = poptorch.trainingModel(model, options(deviceIterations=8), sgd(model, lr=2.0**20))
            training(torch.ones(8, 1, dtype=HALF))
            assert (model.weight.item() != 1.0) is moves


class TestObserving:
    def test_the_final_loss_scale_can_be_anchored(self) -> None:
        model = weighed()
        options = automatic(deviceIterations=3, outputMode=poptorch.OutputMode.All)
        options.anchorTensor("scale", "finalLossScale")
        training = poptorch.trainingModel(model, options, sgd(model, loss_scaling=4.0))
        for scales in ([4, 8, 16], [32, 64, 128]):
            training(torch.ones(3, 1, dtype=HALF))
            assert training.getAnchoredTensor("scale").tolist() == scales
        assert "finalLossScale" in training.getTensorNames()

    def test_without_it_there_is_no_such_tensor_and_inference_ignores_it(self) -> None:
        model = weighed()
        optimizer = sgd(model)
        training = poptorch.trainingModel(model, quiet(), optimizer)
        training(ONE)
        assert "finalLossScale" not in training.getTensorNames()
        assert "lossScaleUpdateFactor" not in optimizer.state_dict()["ipu_state"]
        assert poptorch.inferenceModel(weighed(), automatic())(ONE)[0] == 1

    def test_the_loss_scaling_of_any_optimiser_becomes_variable(self) -> None:
        model = weighed()
        training = poptorch.trainingModel(model, automatic(), torch.optim.SGD(model.parameters(), lr=0.1))
        training(ONE)
        training.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        fixed = sgd(model, loss_scaling=2.0)
        fixed.variable_attrs.markAsConstant("loss_scaling")
        model.destroy()
        training = poptorch.trainingModel(model, automatic(), fixed)
        training(ONE)
        fixed.loss_scaling = 8.0
        training.setOptimizer(fixed)
        training(ONE)
        assert fixed.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 8

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [(automatic, automatic, ""), (automatic, quiet, "unexpected"), (quiet, automatic, "missing")],
    )
    def test_a_loaded_optimiser_goes_on_with_the_factor_or_says_what_the_checkpoint_lacks(
        self, before: Any, after: Any, words: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = weighed()
        first, second = sgd(model, momentum=0.5), sgd(model, momentum=0.5)
        training = poptorch.trainingModel(model, before(), first)
        for _ in range(3):
            training(ONE)
        second.load_state_dict(first.state_dict())
        training.destroy()
        poptorch.trainingModel(model, after(), second)(ONE)
        if words:
            assert f"ignoring {words} state lossScaleUpdateFactor" in caplog.text
        else:
            assert (factor_of(first), factor_of(second)) == (8, 16)
            assert "lossScaleUpdateFactor" not in caplog.text


class TestRules:
    @pytest.mark.parametrize(
        ("dtype", "setting", "words"),
        [
            (torch.float32, {}, "watches the gradients of float16 weights"),
            (HALF, {"binEdgeLocation": 1.5}, "binEdgeLocation"),
            (HALF, {"thresholdUpperCountProportion": -0.1}, "thresholdUpperCountProportion"),
            (HALF, {"updatePeriod": 0}, "updatePeriod"),
        ],
    )
    def test_what_it_cannot_work_with_is_refused(self, dtype: torch.dtype, setting: dict[str, Any], words: str) -> None:
        model = weighed(dtype)
        with pytest.raises(poptorch.Error, match=words):
            poptorch.trainingModel(model, automatic(setting), sgd(model))(ONE.to(dtype))

    def test_it_expects_the_mean_over_micro_batches(self, caplog: pytest.LogCaptureFixture) -> None:
        model = weighed()
        options = automatic(accumulationAndReplicationReductionType=poptorch.ReductionType.Sum)
        poptorch.trainingModel(model, options, sgd(model))(ONE)
        assert "Automatic loss scaling expects" in caplog.text
