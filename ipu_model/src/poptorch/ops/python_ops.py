"""Ops whose arithmetic is a Python function: custom ops, and what the host computes in the middle of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.python_ops import CUSTOM, CUSTOM_GRADIENT, HOST_CALL, record
from ipu_model.capture.graph import PythonFunction, TensorSpec
from ipu_model.capture.torch_private import modes_disabled, switched
from ipu_model.capture.tracing import Trace
from ipu_model.custom_ops import CustomOp, find
from poptorch.ops._tracing import as_list, check, refuse_training


def custom_op(
    inputs: list[Tensor] | tuple[Tensor, ...],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Iterable[Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """Return the results of a custom op, one for each of `example_outputs`, which give shapes and types only.

    `attributes` are numbers, strings, or lists of one type of these. What the op computes is registered with
    `ipu_model.custom_ops.register`. On the CPU the results are zeros, as in PopTorch.

    Raises `ValueError` for attributes of other types, and text in them that is not ASCII; `poptorch.Error` for
    arguments of other types, a float attribute outside the range of float32 and, when traced, an op without arithmetic.
    """
    check(_are_tensors(inputs), "poptorch.custom_op: inputs must be a list or tuple of tensors.")
    for argument, value in (("name", name), ("domain", domain)):
        check(isinstance(value, str), f"poptorch.custom_op: {argument} must be a string, not {type(value)}.")
    is_int = type(domain_version) is int
    check(is_int, f"poptorch.custom_op: domain_version must be an int, not {type(domain_version)}.")
    examples = list(example_outputs)
    check(examples and _are_tensors(examples), "poptorch.custom_op: example_outputs must be one or more tensors.")
    values = popart_attributes(attributes)
    trace = tracing.current()
    if trace is None:
        return [torch.zeros_like(example, requires_grad=example.requires_grad) for example in examples]
    specs = [_spec(example) for example in examples]
    call = _Call(find(name, domain, domain_version), values)
    results: tuple[Tensor, ...] = _Recorded.apply(trace, call, specs, *inputs)
    return list(results)


Replicas = list[list[Tensor]]


def _by_position(replicas: Replicas) -> list[list[Tensor]]:
    """Return, for each input, the tensors of all replicas."""
    return [list(tensors) for tensors in zip(*replicas)]


class _Call:
    """The functions of one call of a custom op, with the attributes filled in."""

    def __init__(self, op: CustomOp, attributes: dict[str, Value]) -> None:
        self.op, self.attributes = op, attributes
        self.label = f"The custom op {op.domain}.{op.name}"

    def results(self, replicas: Replicas) -> list[list[Tensor]]:
        """Return the results of each replica from its inputs."""
        return self._of_each(lambda inputs: self.op.forward(*inputs, **self.attributes), replicas)

    def _of_each(self, function: Callable[..., Any], *parts: Replicas) -> list[list[Any]]:
        """Return what a function returns for each replica; it is called for each or, if it sees all of them, once."""
        if not self.op.cross_replica:
            return [as_list(function(*own)) for own in zip(*parts)]
        returned, count = function(*map(_by_position, parts)), len(parts[0])
        is_list = isinstance(returned, (list, tuple))
        rule = f"a cross-replica function must return a list of what it returns for each of {count} replicas"
        given = f"{len(returned)}" if is_list else f"{type(returned)}"
        check(is_list and len(returned) == count, f"{self.label}: {rule}; it returned {given}.")
        return [as_list(own) for own in returned]

    def gradients(self, count: int, needed: list[int], replicas: Replicas) -> list[list[Tensor]]:
        """Return gradients of the inputs at `needed`; there are `count` inputs, the outputs and their gradients."""
        inputs = [tensors[:count] for tensors in replicas]
        middle = count + (len(replicas[0]) - count) // 2
        outputs, incoming = ([t[count:middle] for t in replicas], [t[middle:] for t in replicas])
        backward: Any = self.op.backward
        if backward is None:
            made = self._automatic(inputs, incoming)
        else:
            made = self._of_each(lambda *seen: backward(*seen, self.attributes), inputs, outputs, incoming)
        for own in made:
            rule = f"backward must return a gradient for each of {count} inputs"
            check(len(own) > max(needed), f"{self.label}: {rule}; it returned {len(own)}.")
        return [
            [torch.zeros_like(tensors[index]) if own[index] is None else own[index] for index in needed]
            for own, tensors in zip(made, inputs)
        ]

    def _automatic(self, inputs: Replicas, incoming: Replicas) -> list[list[Any]]:
        leaves = [t.requires_grad_() if t.dtype.is_floating_point else t for own in inputs for t in own]
        with torch.enable_grad():
            # A function may change its inputs in place, which PyTorch allows for no leaf.
            given = iter([leaf.clone() for leaf in leaves])
            results = self.results([[next(given) for _ in own] for own in inputs])
            flat = zip((r for own in results for r in own), (g for own in incoming for g in own))
            pairs = [(result, gradient.to(result.dtype)) for result, gradient in flat if result.requires_grad]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found: Any = [None] * len(wanted)
            if pairs:
                outputs, outer = zip(*pairs)
                found = torch.autograd.grad(outputs, wanted, outer, allow_unused=True)
        gradients = iter(found)
        return [[next(gradients) if t.requires_grad else None for t in own] for own in inputs]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, trace: Trace, call: _Call, specs: list[TensorSpec], *inputs: Tensor) -> tuple[Tensor, ...]:
        function = PythonFunction(call.label, call.results, may_write=True, joint=call.op.cross_replica)
        results = record(CUSTOM, trace, inputs, specs, function)
        ctx.trace, ctx.call, ctx.count = trace, call, len(inputs)
        ctx.save_for_backward(*inputs, *results)
        ctx.mark_non_differentiable(*[result for result in results if not result.dtype.is_floating_point])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needed = [index for index, wanted in enumerate(ctx.needs_input_grad[3:]) if wanted]
        function = partial(ctx.call.gradients, ctx.count, needed)
        specs = [_spec(ctx.saved_tensors[index]) for index in needed]
        named = PythonFunction(f"{ctx.call.label} (gradient)", function, joint=ctx.call.op.cross_replica)
        made = iter(record(CUSTOM_GRADIENT, ctx.trace, [*ctx.saved_tensors, *gradients], specs, named))
        return None, None, None, *(next(made) if index in needed else None for index in range(ctx.count))


def _are_tensors(values: object) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in values)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec.contiguous(tuple(tensor.shape), tensor.dtype)


Scalar = int | float | str
Value = Scalar | list[int] | list[float] | list[str]

_LARGEST = float(np.finfo(np.float32).max)


def popart_attributes(attributes: dict[str, Any] | None) -> dict[str, Value]:
    """Return the attributes with the values that PopART would have: bools as ints, floats rounded to 32 bits.

    Raises `poptorch.Error` for a float outside the range of float32, `ValueError` for all else that PopART refuses.
    """
    values: dict[str, Value] = {}
    for key, value in (attributes or {}).items():
        if not isinstance(key, str):
            raise ValueError(f"Attribute keys must be strings; got {key!r}, {type(key)}.")
        values[_ascii(key)] = _listed(key, value) if isinstance(value, (list, tuple)) else _scalar(key, value)
    return values


def _listed(key: str, values: list[Any] | tuple[Any, ...]) -> Value:
    if not values:
        raise ValueError(f"Attribute {key!r} is an empty list, whose type is unknown.")
    if len(set(map(type, values))) > 1:
        raise ValueError(f"The types of the elements of attribute {key!r} must all be the same; got {values!r}.")
    converted: Any = [_scalar(key, value) for value in values]
    return converted  # type: ignore[no-any-return]  # all of one type, as checked above


def _scalar(key: str, value: Any) -> Scalar:
    if isinstance(value, str):
        return _ascii(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"Attribute {key!r} does not fit in 64 bits: {value}.")
        return int(value)
    if isinstance(value, float):
        side = "high" if value > 0 else "low"
        check(not abs(value) > _LARGEST, f"{value:g} is too {side} for a Popart float attribute.")
        return float(np.float32(value))
    raise ValueError(
        f"Attribute {key!r} has the unsupported type {type(value)}. Use int, float, str, or a list of one of these."
    )


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError(f"{text!r} contains non-ASCII characters.")
    return text


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
        check(callable(layer_to_call), f"poptorch.CPU: layer_to_call must be callable, not {type(layer_to_call)}.")
        check(isinstance(ID, str), f"poptorch.CPU: ID must be a string, not {type(ID)}.")
        self._layer_to_call = layer_to_call
        self._ID = ID
        if isinstance(layer_to_call, nn.Module):
            layer_to_call.requires_grad_(False)

    def __call__(self, *input: Tensor, **kwargs: Any) -> Any:
        """Call it on tensors; keyword arguments are ignored, as in PopTorch.

        Returns a tensor if the callable returned one, else a list; on the CPU whatever the callable returns. When
        traced, raises `poptorch.Error` for a training model, for arguments or results that are no tensors, and inside
        another CPU op.
        """
        outer = _calling.get()
        check(
            outer is None,
            f"poptorch.CPU: the op {self._ID!r} is called inside the op {outer!r}. CPU ops must not overlap: call "
            "its Python function directly.",
        )
        trace = tracing.current()
        if trace is None:
            return self._layer_to_call(*input)
        refuse_training("poptorch.CPU", "In a training model use torch functions, or poptorch.custom_op.")
        return self._record(trace, input)

    def _record(self, trace: Trace, args: tuple[Tensor, ...]) -> Tensor | list[Tensor]:
        op = f"the op {self._ID!r}"
        for position, argument in enumerate(args):
            is_tensor = isinstance(argument, torch.Tensor)
            check(is_tensor, f"poptorch.CPU: argument {position} of {op} must be a tensor, not {type(argument)}.")
        function: Callable[..., Any] = trace.host_functions.setdefault(self._ID, self._layer_to_call)
        calling = switched(_calling.get, _calling.set, self._ID)
        # As the host will call it, on zeros: what it calls must not see the trace.
        with calling, modes_disabled(), tracing.active(None), trace.on_host(), torch.no_grad():
            example = function(*(torch.zeros(arg.shape, dtype=_host_type(arg.dtype)) for arg in args))
        listed = as_list(example)
        rule = "must return a tensor or a sequence of tensors"
        check(_are_tensors(listed) and listed, f"poptorch.CPU: {op} {rule}, not {type(example)}.")
        specs = [TensorSpec.contiguous(tuple(t.shape), _host_type(t.dtype)) for t in listed]
        called = PythonFunction(f"poptorch.CPU: {op}", lambda replicas: [function(*own) for own in replicas])
        results = record(HOST_CALL, trace, args, specs, called)
        return results[0] if isinstance(example, torch.Tensor) else results


def _host_type(dtype: torch.dtype) -> torch.dtype:
    """Return the element type of a buffer on the host: floating-point ones are float32, as in PopTorch."""
    return torch.float32 if dtype.is_floating_point else dtype
