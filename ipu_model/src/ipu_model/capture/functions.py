"""How PopTorch treats some torch functions: losses mark themselves, mixed precision follows the activation.

Works on calls of torch functions inside `forward`, before autograd sees them, so that gradients flow through the
casts that are inserted here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ipu_model import tracing
from ipu_model.capture.ctc import ctc_loss
from ipu_model.capture.devices import follow_moves
from ipu_model.capture.indices import widen_index
from ipu_model.capture.losses import LOSS_FUNCTIONS
from ipu_model.capture.mixed_precision import FOLLOW_ACTIVATION, follow_activation, refuse_autocast
from ipu_model.capture.origins import Origins
from ipu_model.capture.recurrent import lstm
from ipu_model.capture.trace import Trace
from ipu_model.capture.unchecked import gaussian_nll_loss
from ipu_model.errors import Error

# Functions that PyTorch cannot trace on fake tensors, or only as thousands of ops, and what the device runs for them.
_DEVICE_VERSIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.ctc_loss: ctc_loss, torch.ctc_loss: ctc_loss, F.gaussian_nll_loss: gaussian_nll_loss,
    torch.lstm: lstm,
}  # fmt: skip

_FACTORIES: frozenset[Callable[..., Any]] = frozenset({
    torch.zeros, torch.ones, torch.rand, torch.randn, torch.arange, torch.full, torch.tensor, torch.empty,
    torch.randint, torch.randperm, torch.linspace, torch.eye,
})  # fmt: skip

_logger = logging.getLogger("poptorch::python")


class DeviceFunctions(TorchFunctionMode):
    """Applies PopTorch's rules to torch functions called while a model is traced."""

    def __init__(self, trace: Trace, origins: Origins) -> None:
        super().__init__()
        self.trace = trace
        self.origins = origins
        self._warned: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if tracing.current() is not self.trace:
            return func(*args, **(kwargs or {}))  # the host computes something while the trace waits
        refuse_autocast(self.trace.scopes[-1])
        args, kwargs = follow_moves(func, args, dict(kwargs or {}), self.origins)
        if func in FOLLOW_ACTIVATION:
            args, kwargs = follow_activation(func, args, kwargs)
        args, kwargs = widen_index(func, args, kwargs)
        if func in _FACTORIES and kwargs.get("device") is None:
            self._warn_forced(func.__name__)
        if func in LOSS_FUNCTIONS:
            _refuse_class_weights(func, args, kwargs)
        self.trace.torch_functions_entered += 1
        try:
            result = _DEVICE_VERSIONS.get(func, func)(*args, **kwargs)
        finally:
            self.trace.torch_functions_entered -= 1
        if func in LOSS_FUNCTIONS and isinstance(result, Tensor):
            self.trace.mark_loss(result)
        return result

    def _warn_forced(self, name: str) -> None:
        """Say once in a trace and for each function that a new tensor lands on the device."""
        if name not in self._warned:
            self._warned.add(name)
            _logger.warning("No device set in torch.%s(): forcing to IPU", name)


def _refuse_class_weights(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if func in (F.cross_entropy, F.nll_loss):
        weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
        if weight is not None:
            raise Error(
                f"{func.__name__}: class weights are not supported by PopTorch. Use reduction='none' and multiply "
                "the losses of the samples by weight[target], then poptorch.identity_loss(..., reduction='mean')."
            )
