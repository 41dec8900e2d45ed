"""`Options.Precision.enableFloatingPointExceptions` (options reference, section 5): what raises."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from half_support import half, infer
from torch import Tensor, nn
from tracing_support import Net, session_of

from ipu_model.compute.replay import Arithmetic
from ipu_model.errors import Error

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(("function", "value", "words"), [
    (lambda x: x - x, INF, "no real result"),
    (lambda x: x * 0, INF, "no real result"),
    (lambda x: x / 0, 1.0, "divided by zero"),
    (lambda x: x / 0, 0.0, "no real result"),
    (torch.sqrt, -1.0, "no real result"),
    (torch.log, 0.0, "divided by zero"),
    (torch.log, -2.0, "no real result"),
    (lambda x: x < 1, NAN, "compared numbers with NaN"),
    (lambda x: x >= x, NAN, "compared numbers with NaN"),
    (lambda x: x.clone().log_(), 0.0, "divided by zero"),
    (lambda x: x.float().mul(1e38).mul(10), 60000.0, "overflowed"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_undefined_and_infinite_results_raise(function, value: float, words: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, value], dtype=dtype)
    with pytest.raises(Error, match=words) as caught:
        infer(function, x, floating_point_exceptions=True)
    assert caught.value.type == "poplar_application_runtime_error"
    infer(function, x)  # by default it goes on silently


@pytest.mark.parametrize("function", [lambda x: x * 2, lambda x: x.clone().mul_(2), lambda x: (x.float() * 2).half()])
def test_results_beyond_float16_overflow_there_but_not_in_float32(
    function: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(Error, match="overflowed"):
        infer(function, half(60000.0), floating_point_exceptions=True)
    (result,) = infer(lambda x: x * 2, torch.tensor([60000.0]), floating_point_exceptions=True)
    assert result.item() == 120000.0


@pytest.mark.parametrize(("function", "value"), [
    (lambda x: x + 1, NAN), (lambda x: x * 2, INF), (lambda x: x.clone().add_(1), NAN),
    (lambda x: x == x, NAN),
    (lambda x: x.isnan(), NAN), (lambda x: x.masked_fill(x == 3, -INF).softmax(0), 3.0), (torch.relu, NAN),
    (lambda x: torch.where(x == 3, x, -INF), 2.0), (lambda x: 1 / x, INF),
    (lambda x: F.pad(x, (1, 0), value=INF), 1.0),
    (lambda x: torch.full_like(x, INF), 1.0), (lambda x: x + INF, 1.0), (torch.exp, -100.0),
])  # fmt: skip
def test_values_that_were_not_finite_before_or_are_written_by_the_program_do_not_raise(function, value: float) -> None:
    for x in (half(1.0, value), torch.tensor([1.0, value])):
        infer(function, x, floating_point_exceptions=True)


def test_uninitialised_storage_is_not_looked_at() -> None:
    """Dropout fills fresh storage with random bits first; whatever lay there before means nothing."""
    torch.empty(1 << 16).fill_(NAN)  # what the allocator may hand out next
    (result,) = infer(nn.Dropout(0.5), torch.ones(1 << 16), floating_point_exceptions=True)
    assert set(result.unique().tolist()) == {0.0, 2.0}


def test_the_message_names_op_module_and_pass() -> None:
    model = Net(
        lambda net, x: F.mse_loss(net.second(net.first(x)), torch.zeros(2)),
        first=nn.Linear(2, 2),
        second=Net(lambda net, x: x.sqrt()),
    )
    nn.init.zeros_(model.first.weight)
    nn.init.zeros_(model.first.bias)
    session = session_of(model, torch.ones(2), arithmetic=Arithmetic(floating_point_exceptions=True))
    # sqrt(0) = 0 is fine; its derivative, 0 / (2 * sqrt(0)), is not.
    with pytest.raises(Error, match=r"div.* in module 'second', backward pass, line \d+ of <lambda>"):
        session.run([torch.ones(2)])


def test_the_checks_do_not_change_results() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    x = torch.randn(2, 3, 8, 8)
    for inputs in (x, x.half()):
        model = model.to(inputs.dtype)
        checked, plain = infer(model, inputs, floating_point_exceptions=True), infer(model, inputs)
        assert torch.equal(checked[0], plain[0])
