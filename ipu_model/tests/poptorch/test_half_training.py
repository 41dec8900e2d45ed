"""Half precision as programs see it: lost gradients, lost updates, lost sums, what keeps them, and who decides.

Which values meet in an op, and what becomes of them: `engine/test_half_values.py`.

Every expected number is arithmetic on the float16 format: 11 significant bits, smallest number 2^-24,
largest 65504.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference, quiet, training, with_loss
from torch import Tensor, nn

import poptorch

HALF = torch.float16


def small_loss() -> Any:
    """Return an MLP whose loss is 2^-24 of a mean squared error: its gradients are below the float16 range."""

    def forward(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = F.mse_loss(model.body(x), y)
        return error, poptorch.identity_loss(error * 2.0**-24, "none")

    torch.manual_seed(0)
    return Module(forward, body=nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)))


def weighed(*start: float) -> Any:
    """Return a model of `weight * x`, whose sum is the loss; the gradient is the sum of x's rows."""
    return with_loss(lambda m, x: m.weight * x, weight=nn.Parameter(torch.tensor(start)))


def train_small_loss(loss_scaling: float, dtype: torch.dtype = HALF) -> tuple[list[float], nn.Module]:
    """Train 30 steps at a learning rate that undoes the 2^-24; return the errors and the model."""
    model = small_loss().to(dtype)
    x, y = torch.randn(16, 4, dtype=dtype), torch.randn(16, 4, dtype=dtype)
    executor = training(model, lr=0.2 * 2.0**24, loss_scaling=loss_scaling)
    errors = [float(executor(x, y)[0]) for _ in range(30)]
    executor.destroy()
    return errors, model


def test_gradients_below_the_range_stop_learning() -> None:
    errors, model = train_small_loss(1.0)
    assert len(set(errors)) == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), small_loss().half().parameters()))


def test_loss_scaling_keeps_small_gradients() -> None:
    in_single, _ = train_small_loss(1.0, torch.float32)
    for loss_scaling in (1024.0, 2.0**14):
        errors, _ = train_small_loss(loss_scaling)
        assert errors[-1] < 0.7 * errors[0]
        assert errors[-1] == pytest.approx(in_single[-1], rel=0.1), "as far as float32 gets without scaling"


@pytest.mark.parametrize(("switch", "expected"), [(None, 1 - 0.125 * 65504 / 2**14), ("infinity", -math.inf)])
def test_gradients_above_the_range_are_clipped_and_nothing_skips_the_step(
    switch: str | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 * 2^14 = 65536; a GPU's gradient, and so its weight, would be infinite."""
    if switch is not None:
        monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", switch)
    model = weighed(1.0, 1.0).half()
    executor = training(model, lr=0.125, loss_scaling=2.0**14)
    executor(torch.tensor([[4.0, 2.0]], dtype=HALF))
    assert model.weight.tolist() == [torch.tensor(expected).half().item(), 0.75]


COUNT, STEPS = 4096, 64


def after_small_steps(dtype: torch.dtype, *, stochastic: bool) -> Tensor:
    """Take 64 steps of 2^-13 down from 1.0, where float16 numbers are 2^-11 apart; return the weights."""
    model = weighed(*[1.0] * COUNT).to(dtype)
    executor = training(model, quiet(randomSeed=3, enableStochasticRounding=stochastic), lr=2.0**-13)
    for _ in range(STEPS):
        executor(torch.ones(1, COUNT, dtype=HALF))
    executor.destroy()
    return model.weight.detach()


def test_small_updates_of_half_weights_are_lost_and_float32_weights_keep_them() -> None:
    assert torch.equal(after_small_steps(HALF, stochastic=False), torch.ones(COUNT, dtype=HALF))
    assert torch.equal(after_small_steps(torch.float32, stochastic=False), torch.full((COUNT,), 1 - STEPS * 2.0**-13))


def test_stochastic_rounding_keeps_them_on_average() -> None:
    """Steps of 2^-11 with probability 1/4: mean 1 - 64 * 2^-13, deviation sqrt(64 * 3/16) * 2^-11."""
    weights = after_small_steps(HALF, stochastic=True)
    assert weights.dtype is HALF
    deviation = math.sqrt(STEPS * 3 / 16) * 2.0**-11
    assert float(weights.double().mean()) == pytest.approx(1 - STEPS * 2.0**-13, abs=5 * deviation / math.sqrt(COUNT))
    assert float(weights.double().std()) == pytest.approx(deviation, rel=0.1)
    assert torch.equal(weights, after_small_steps(HALF, stochastic=True)), "the same under the same randomSeed"


def test_master_weights_of_a_layer_follow_a_half_input() -> None:
    """The layer computes in float16 with the rounded weight, its float32 weight takes every step of 2^-13."""
    model = with_loss(lambda m, x: m.layer(x), layer=nn.Linear(1, 1, bias=False))
    nn.init.ones_(model.layer.weight)
    executor = training(model, lr=2.0**-13)
    outputs = [executor(torch.ones(1, 1, dtype=HALF))[0] for _ in range(5)]
    assert {o.dtype for o in outputs} == {HALF}
    # 1 - 2^-13 rounds to 1; 1 - 2^-12 is a tie, to even; 1 - 3 * 2^-13 and 1 - 4 * 2^-13 round to 1 - 2^-11.
    assert [o.item() for o in outputs] == [1.0, 1.0, 1.0, 1 - 2.0**-11, 1 - 2.0**-11]
    assert model.layer.weight.item() == 1 - 5 * 2.0**-13


@pytest.mark.parametrize(
    ("accum_type", "reduction", "gradients", "total"),
    [
        (torch.float32, "Sum", [2048.0] + [0.5] * 7, 2048 + 7 * 0.5),
        (HALF, "Sum", [2048.0] + [0.5] * 7, 2048.0),  # above 2048 float16 numbers are 2 apart
        (HALF, "Sum", [30000.0] * 4, 65504.0),  # clipped
        (HALF, "Mean", [30000.0] * 4, pytest.approx(30000.0, rel=2.0**-9)),  # PopTorch's mean is then a running one
    ],
)
def test_half_accumulators_lose_small_addends_and_overflow(
    accum_type: torch.dtype, reduction: str, gradients: list[float], total: Any
) -> None:
    kind = poptorch.ReductionType[reduction]
    options = quiet(accumulation=len(gradients), accumulationAndReplicationReductionType=kind)
    model = weighed(0.0)
    executor = training(model, options, lr=2.0**-10, accum_type=accum_type, use_combined_accum=False)
    executor(torch.tensor(gradients)[:, None])
    assert -1024 * model.weight.item() == total


def test_floating_point_exceptions_stop_an_overflow() -> None:
    model = inference(Module(lambda m, x: x * 2), quiet(enableFloatingPointExceptions=True))
    for _ in range(2):
        assert model(torch.tensor([30000.0], dtype=HALF)).item() == 60000.0
        with pytest.raises(poptorch.Error, match=r"Floating point exception: .*overflowed"):
            model(torch.tensor([60000.0], dtype=HALF))


def test_an_unknown_treatment_of_overflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "nan")
    with pytest.raises(poptorch.Error, match=r"IPU_MODEL_HALF_OVERFLOW must be 'clip' .* or 'infinity' .* not 'nan'"):
        inference(nn.Identity())(torch.ones(1, dtype=HALF))


def test_outputs_losses_weights_and_statistics_of_a_half_model_are_half() -> None:
    model = small_loss()
    model.body.insert(1, nn.BatchNorm1d(16))
    before = copy.deepcopy(model.half().state_dict())
    executor = training(model, lr=0.0)
    results = executor(torch.randn(8, 4).half(), torch.randn(8, 4).half())
    after = model.state_dict()
    floating = [value for value in after.values() if value.is_floating_point()]
    assert {value.dtype for value in (*results, *floating)} == {HALF}
    unchanged = {name for name, value in after.items() if torch.equal(value, before[name])}
    assert before.keys() - unchanged == {"body.1.running_mean", "body.1.running_var"}


def test_half_of_an_executor_is_that_of_its_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    executor = inference(model)
    executor.half()
    assert executor(torch.ones(1, 2, dtype=HALF)).dtype is model[0].weight.dtype is HALF


def test_eight_bit_images_are_cast_in_the_model() -> None:
    layer, image = nn.Conv2d(3, 2, 3), torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    out = inference(Module(lambda m, image: m.layer((image.half() / 255 - 0.5) / 0.25), layer=layer))(image)
    assert out.dtype is HALF
    expected = layer.double()((image.double() / 255 - 0.5) / 0.25)
    torch.testing.assert_close(out.double(), expected.detach(), rtol=2e-2, atol=2e-2)
