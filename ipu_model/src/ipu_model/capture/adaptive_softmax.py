"""An adaptive softmax with static shapes: the torch module sorts its rows by the cluster of their target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model import tracing
from ipu_model.capture.torch_private import AdaptiveSoftmaxOutput

_Module = nn.AdaptiveLogSoftmaxWithLoss


@contextmanager
def static_adaptive_softmax() -> Iterator[None]:
    """Let `torch.nn.AdaptiveLogSoftmaxWithLoss` compute every cluster for every row while a model is traced.

    Results are the same; the device does the work of `log_prob` for all classes, as shapes must be known.
    """
    before = _Module.forward, _Module.predict
    _Module.forward = _while_tracing(_forward, _Module.forward)  # type: ignore[method-assign]
    _Module.predict = _while_tracing(_predict, _Module.predict)  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Module.forward, _Module.predict = before  # type: ignore[method-assign]


def _while_tracing(static: Callable[..., Any], dynamic: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(self: nn.AdaptiveLogSoftmaxWithLoss, *args: Any, **kwargs: Any) -> Any:
        return (dynamic if tracing.current() is None else static)(self, *args, **kwargs)

    return chosen


def _forward(self: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    single = target_.dim() == 0
    if single:
        input_, target_ = input_.unsqueeze(0), target_.unsqueeze(0)
    output = self.log_prob(input_).gather(1, target_.long().unsqueeze(1)).squeeze(1)
    loss = (-output).mean()
    return AdaptiveSoftmaxOutput(output.squeeze(0) if single else output, loss)


def _predict(self: nn.AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    return torch.argmax(self.log_prob(input), dim=1)
