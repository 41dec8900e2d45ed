"""Half precision as programs see it: lost gradients, lost updates, lost sums, what keeps them, and who decides.

Which values meet in an op, and what becomes of them: `engine/test_half_values.py`.

Every expected number is arithmetic on the float16 format: 11 significant bits, smallest number 2^-24,
largest 65504.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from executor_support import quiet
from torch import Tensor, nn

import poptorch

HALF = torch.float16


class SmallLoss(nn.Module):
    """An MLP whose loss is 2^-24 of a mean squared error: its gradients are below the float16 range."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = F.mse_loss(self.body(x), y)
        return error, poptorch.identity_loss(error * 2.0**-24, "none")


class Weighed(nn.Module):
    """`forward(x)` returns `weight * x`, whose sum is the loss; the gradient is the sum of x's rows."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.weight * x
        return out, poptorch.identity_loss(out, "sum")


def train_small_loss(loss_scaling: float, dtype: torch.dtype = HALF) -> tuple[list[float], nn.Module]:
    """Train 30 steps at a learning rate that undoes the 2^-24; return the errors and the model."""
    torch.manual_seed(0)
    model = SmallLoss().to(dtype)
    x, y = torch.randn(16, 4), torch.randn(16, 4)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.2 * 2.0**24, loss_scaling=loss_scaling)
    training = poptorch.trainingModel(model, quiet(), optimizer)
    errors = [float(training(x.to(dtype), y.to(dtype))[0]) for _ in range(30)]
    training.copyWeightsToHost()
    return errors, model


def test_gradients_below_the_range_stop_learning() -> None:
    errors, model = train_small_loss(1.0)
    torch.manual_seed(0)
    fresh = SmallLoss().half()
    assert len(set(errors)) == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters()))


@pytest.mark.parametrize("loss_scaling", [1024.0, 2.0**14])
def test_loss_scaling_keeps_small_gradients(loss_scaling: float) -> None:
    errors, _ = train_small_loss(loss_scaling)
    assert errors[-1] < 0.7 * errors[0]
    in_single, _ = train_small_loss(1.0, torch.float32)
    assert errors[-1] == pytest.approx(in_single[-1], rel=0.1), "as far as float32 gets without scaling"


@pytest.mark.parametrize(("switch", "expected"), [(None, 1 - 0.125 * 65504 / 2**14), ("infinity", -math.inf)])
def test_gradients_above_the_range_are_clipped_and_nothing_skips_the_step(
    switch: str | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 * 2^14 = 65536; a GPU's gradient, and so its weight, would be infinite."""
    if switch is not None:
        monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", switch)
    model = Weighed(1.0, 1.0).half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.125, loss_scaling=2.0**14)
    training = poptorch.trainingModel(model, quiet(), optimizer)
    training(torch.tensor([[4.0, 2.0]], dtype=HALF))
    training.copyWeightsToHost()
    assert model.weight.tolist() == [torch.tensor(expected).half().item(), 0.75]


COUNT, STEPS = 4096, 64


def after_small_steps(dtype: torch.dtype, *, stochastic: bool) -> Tensor:
    """Take 64 steps of 2^-13 down from 1.0, where float16 numbers are 2^-11 apart; return the weights."""
    model = Weighed(*[1.0] * COUNT).to(dtype)
    options = quiet().randomSeed(3)
    options.Precision.enableStochasticRounding(stochastic)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=2.0**-13))
    for _ in range(STEPS):
        training(torch.ones(1, COUNT, dtype=HALF))
    training.copyWeightsToHost()
    return model.weight.detach()


def test_small_updates_of_half_weights_are_lost() -> None:
    assert torch.equal(after_small_steps(HALF, stochastic=False), torch.ones(COUNT, dtype=HALF))


def test_stochastic_rounding_keeps_them_on_average() -> None:
    """Steps of 2^-11 with probability 1/4: mean 1 - 64 * 2^-13, deviation sqrt(64 * 3/16) * 2^-11."""
    weights = after_small_steps(HALF, stochastic=True)
    assert weights.dtype is HALF
    deviation = math.sqrt(STEPS * 3 / 16) * 2.0**-11
    assert float(weights.double().mean()) == pytest.approx(1 - STEPS * 2.0**-13, abs=5 * deviation / math.sqrt(COUNT))
    assert float(weights.double().std()) == pytest.approx(deviation, rel=0.1)
    assert torch.equal(weights, after_small_steps(HALF, stochastic=True)), "the same under the same randomSeed"


def test_master_weights_keep_small_updates_exactly() -> None:
    """With float32 weights every step counts, whatever the type of the data."""
    expected = torch.full((COUNT,), 1 - STEPS * 2.0**-13)
    assert torch.equal(after_small_steps(torch.float32, stochastic=False), expected)


def test_master_weights_of_a_layer_follow_a_half_input() -> None:
    """The layer computes in float16 with the rounded weight, its float32 weight takes every step of 2^-13."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = nn.Module()
    model.layer = layer
    model.forward = lambda x: (layer(x), poptorch.identity_loss(layer(x), "sum"))
    training = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(layer.parameters(), lr=2.0**-13))
    outputs = [training(torch.ones(1, 1, dtype=HALF))[0] for _ in range(5)]
    training.copyWeightsToHost()
    assert {o.dtype for o in outputs} == {HALF}
    # 1 - 2^-13 rounds to 1; 1 - 2^-12 is a tie, to even; 1 - 3 * 2^-13 and 1 - 4 * 2^-13 round to 1 - 2^-11.
    assert [o.item() for o in outputs] == [1.0, 1.0, 1.0, 1 - 2.0**-11, 1 - 2.0**-11]
    assert layer.weight.item() == 1 - 5 * 2.0**-13


@pytest.mark.parametrize(("accum_type", "total"), [(torch.float32, 2048 + 7 * 0.5), (HALF, 2048.0)])
def test_half_accumulators_lose_small_addends(accum_type: torch.dtype, total: float) -> None:
    """Float16 numbers above 2048 are 2 apart: adding 0.5 seven times changes nothing."""
    model = Weighed(0.0)
    options = quiet()
    options.Training.gradientAccumulation(8)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, accum_type=accum_type, use_combined_accum=False)
    training = poptorch.trainingModel(model, options, optimizer)
    training(torch.tensor([[2048.0], *[[0.5]] * 7]))
    training.copyWeightsToHost()
    assert model.weight.item() == -total


def test_a_running_mean_in_half_accumulators_does_not_overflow_where_a_sum_does() -> None:
    """Four gradients of 30000: their sum is clipped to 65504, the running mean that PopTorch then uses is exact."""
    weights = {}
    for reduction in (poptorch.ReductionType.Sum, poptorch.ReductionType.Mean):
        model = Weighed(0.0)
        options = quiet()
        options.Training.gradientAccumulation(4)
        options.Training.accumulationAndReplicationReductionType(reduction)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**-10, accum_type=HALF, use_combined_accum=False)
        training = poptorch.trainingModel(model, options, optimizer)
        training(torch.full((4, 1), 30000.0))
        training.copyWeightsToHost()
        weights[reduction] = model.weight.item()
    assert weights[poptorch.ReductionType.Sum] == -65504 / 1024
    assert weights[poptorch.ReductionType.Mean] == pytest.approx(-30000 / 1024, rel=2.0**-9)


def test_half_partials_change_long_sums_only_when_asked_for() -> None:
    """2048 + 0.75 + 0.75: summed exactly they round to 2050, but 2048 + 0.75 stored as float16 is 2048."""
    x, weight = torch.zeros(1, 130), torch.ones(1, 130)
    x[0, 0], x[0, 70], x[0, 129] = 2048.0, 0.75, 0.75
    layer = nn.Linear(130, 1, bias=False)
    layer.weight.data = weight
    results = {}
    for partials in (torch.float32, HALF):
        options = quiet()
        options.Precision.setPartialsType(partials)
        results[partials] = poptorch.inferenceModel(layer.half(), options)(x.half()).item()
    assert results == {torch.float32: 2050.0, HALF: 2048.0}


def test_floating_point_exceptions_stop_an_overflow() -> None:
    options = quiet()
    options.Precision.enableFloatingPointExceptions(True)
    double = nn.Linear(1, 1, bias=False).half()
    nn.init.constant_(double.weight, 2.0)
    model = poptorch.inferenceModel(double, options)
    for _ in range(2):
        assert model(torch.tensor([[30000.0]], dtype=HALF)).item() == 60000.0
        with pytest.raises(poptorch.Error, match=r"Floating point exception: .*overflowed"):
            model(torch.tensor([[60000.0]], dtype=HALF))


def test_an_unknown_treatment_of_overflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "nan")
    with pytest.raises(poptorch.Error, match=r"IPU_MODEL_HALF_OVERFLOW must be 'clip' .* or 'infinity' .* not 'nan'"):
        poptorch.inferenceModel(nn.Identity(), quiet())(torch.ones(1, dtype=HALF))


def test_outputs_losses_weights_and_statistics_of_a_half_model_are_half() -> None:
    model = SmallLoss().half()
    model.body.insert(1, nn.BatchNorm1d(16).half())
    before = copy.deepcopy(model.state_dict())
    training = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.0))
    results = training(torch.randn(8, 4).half(), torch.randn(8, 4).half())
    training.copyWeightsToHost()
    assert {result.dtype for result in results} == {HALF}
    after = model.state_dict()
    assert {value.dtype for value in after.values() if value.is_floating_point()} == {HALF}
    unchanged = {name for name, value in after.items() if torch.equal(value, before[name])}
    assert before.keys() - unchanged == {"body.1.running_mean", "body.1.running_var"}


def test_half_of_an_executor_is_that_of_its_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    executor = poptorch.inferenceModel(model, quiet())
    executor.half()
    assert executor(torch.ones(1, 2, dtype=HALF)).dtype is model[0].weight.dtype is HALF


def test_eight_bit_images_are_cast_in_the_model() -> None:
    class Normalised(nn.Conv2d):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward((image.half() / 255 - 0.5) / 0.25)

    layer, image = Normalised(3, 2, 3), torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    out = poptorch.inferenceModel(layer, quiet())(image)
    assert out.dtype is HALF
    expected = F.conv2d((image.double() / 255 - 0.5) / 0.25, layer.weight.double(), layer.bias.double())
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
