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
Function = Callable[[Tensor], Tensor]
UNDEFINED, DIVIDED, OVERFLOWED = "no real result", "divided by zero", "overflowed"
COMPARED = "compared numbers with NaN"
# The last rows raise only in half precision, where results would be clipped without a word.
RAISING: list[tuple[Function, float, str, bool]] = [
    (lambda x: x - x, INF, UNDEFINED, False), (lambda x: x * 0, INF, UNDEFINED, False),
    (lambda x: x / 0, 1.0, DIVIDED, False), (lambda x: x / 0, 0.0, UNDEFINED, False),
    (torch.sqrt, -1.0, UNDEFINED, False), (torch.log, 0.0, DIVIDED, False), (torch.log, -2.0, UNDEFINED, False),
    (lambda x: x < 1, NAN, COMPARED, False), (lambda x: x >= x, NAN, COMPARED, False),
    (lambda x: x.clone().log_(), 0.0, DIVIDED, False),
    (lambda x: x.float().mul(1e38).mul(10), 60000.0, OVERFLOWED, False),
    (lambda x: (x.float() * 2).half().to(x.dtype), 60000.0, OVERFLOWED, False),
    (lambda x: x * 2, 60000.0, OVERFLOWED, True), (lambda x: x.clone().mul_(2), 60000.0, OVERFLOWED, True),
    (lambda x: x @ x, 60000.0, OVERFLOWED, True), (torch.exp, 80.0, OVERFLOWED, True),
    (lambda x: x * torch.tensor([100_000]), 1.0, OVERFLOWED, True),
]  # fmt: skip


@pytest.mark.parametrize(("function", "value", "words", "only_half"), RAISING)
def test_undefined_and_infinite_results_raise(function: Function, value: float, words: str, only_half: bool) -> None:
    for x in (half(1.0, value), torch.tensor([1.0, value])):
        infer(function, x)  # by default it goes on silently
        if only_half and x.dtype is torch.float32:
            infer(function, x, floating_point_exceptions=True)
            continue
        with pytest.raises(Error, match=words) as caught:
            infer(function, x, floating_point_exceptions=True)
        assert caught.value.type == "poplar_application_runtime_error"


@pytest.mark.parametrize(("function", "value"), [
    (lambda x: x + 1, NAN), (lambda x: x * 2, INF), (lambda x: x.clone().add_(1), NAN),
    (lambda x: x == x, NAN),
    (lambda x: x.isnan(), NAN), (lambda x: x.masked_fill(x == 3, -INF).softmax(0), 3.0), (torch.relu, NAN),
    (lambda x: torch.where(x == 3, x, -INF), 2.0), (lambda x: 1 / x, INF),
    (lambda x: F.pad(x, (1, 0), value=INF), 1.0),
    (lambda x: torch.full_like(x, INF), 1.0), (lambda x: x + INF, 1.0), (torch.exp, -100.0),
])  # fmt: skip
def test_what_was_not_finite_before_or_is_written_does_not_raise(function: Function, value: float) -> None:
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
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    session = session_of(model, torch.ones(2), arithmetic=Arithmetic(floating_point_exceptions=True))
    # sqrt(0) = 0 is fine; its derivative, 0 / (2 * sqrt(0)), is not.
    with pytest.raises(Error, match=r"div.* in module 'second', backward pass, line \d+ of <lambda>"):
        session.run([torch.ones(2)])
