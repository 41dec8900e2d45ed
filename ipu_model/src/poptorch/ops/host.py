"""`CPU`: ops of an inference program that the host computes with a Python callable."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.python_ops import HOST_CALL, PythonFunction, record
from ipu_model.capture.graph import TensorSpec
from ipu_model.capture.torch_private import modes_disabled
from ipu_model.capture.tracing import Trace
from poptorch._impl import createPoptorchError
from poptorch.ops._tracing import refuse_training

# The callable of this name is being called while a model is traced.
_calling: ContextVar[str | None] = ContextVar("poptorch_cpu_op", default=None)


class CPU:
    """A callable that runs on the host in the middle of a program.

    `layer_to_call(*tensors)` gets CPU tensors with the present values in every run, half precision as float32, and
    returns a tensor or a sequence of tensors. It is also called once while tracing, on zeros, to learn the shapes of
    its results. If it is a module, its parameters no longer require gradients. Callables with the same `ID` are one
    op: of those in one program the first is called.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise createPoptorchError(f"poptorch.CPU: layer_to_call must be callable, not {type(layer_to_call)}.")
        if not isinstance(ID, str):
            raise createPoptorchError(f"poptorch.CPU: ID must be a string, not {type(ID)}.")
        self._layer_to_call = layer_to_call
        self._ID = ID
        if isinstance(layer_to_call, nn.Module):
            layer_to_call.requires_grad_(False)

    def __call__(self, *input: Tensor, **kwargs: Any) -> Any:
        """Call it on tensors; keyword arguments are ignored, as in PopTorch.

        Returns a tensor if the callable returned one, else a list; on the CPU whatever the callable returns.

        Raises:
            Error: a training model, arguments or results that are no tensors, or a call from inside another CPU op
                while tracing.
        """
        outer = _calling.get()
        if outer is not None:
            raise createPoptorchError(
                f"poptorch.CPU: the op {self._ID!r} is called inside the op {outer!r}. CPU ops must not overlap: call "
                "its Python function directly."
            )
        trace = tracing.current()
        if trace is None:
            return self._layer_to_call(*input)
        refuse_training("poptorch.CPU", "In a training model use torch functions, or poptorch.custom_op.")
        return self._record(trace, input)

    def _record(self, trace: Trace, args: tuple[Tensor, ...]) -> Tensor | list[Tensor]:
        for position, argument in enumerate(args):
            if not isinstance(argument, torch.Tensor):
                raise createPoptorchError(
                    f"poptorch.CPU: argument {position} of the op {self._ID!r} must be a tensor, not {type(argument)}."
                )
        function: Callable[..., Any] = trace.host_functions.setdefault(self._ID, self._layer_to_call)
        example = self._called_on_zeros(trace, function, args)
        listed = [example] if isinstance(example, torch.Tensor) else example
        if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(t, torch.Tensor) for t in listed):
            raise createPoptorchError(
                f"poptorch.CPU: the op {self._ID!r} must return a tensor or a sequence of tensors, not {type(example)}."
            )
        specs = [TensorSpec.contiguous(tuple(t.shape), _host_type(t.dtype)) for t in listed]
        called = PythonFunction(f"poptorch.CPU: the op {self._ID!r}", lambda tensors: function(*tensors))
        results = record(HOST_CALL, trace, args, specs, called)
        return results[0] if isinstance(example, torch.Tensor) else results

    def _called_on_zeros(self, trace: Trace, function: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
        """Call the function as the host will, on zeros: what it calls must not see the trace."""
        token = _calling.set(self._ID)
        try:
            with modes_disabled(), tracing.suspended(), trace.on_host(), torch.no_grad():
                return function(*(torch.zeros(arg.shape, dtype=_host_type(arg.dtype)) for arg in args))
        finally:
            _calling.reset(token)


def _host_type(dtype: torch.dtype) -> torch.dtype:
    """Return the element type of a buffer on the host: floating-point ones are float32, as in PopTorch."""
    return torch.float32 if dtype.is_floating_point else dtype
