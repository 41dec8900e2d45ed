"""`custom_op`: ops that a program brings along. Their arithmetic here comes from `ipu_model.custom_ops.register`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.python_ops import CUSTOM, CUSTOM_GRADIENT, PythonFunction, record
from ipu_model.capture.graph import TensorSpec
from ipu_model.capture.tracing import Trace
from ipu_model.custom_ops import CustomOp, find
from poptorch._impl import createPoptorchError


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

    Raises:
        ValueError: attributes of other types, and text in them that is not ASCII.
        Error: arguments of other types, a float attribute outside the range of float32; when traced, an op that has no
            arithmetic.
    """
    _check_arguments(inputs, name, domain, domain_version)
    examples = list(example_outputs)
    if not examples or not all(isinstance(example, torch.Tensor) for example in examples):
        raise createPoptorchError("poptorch.custom_op: example_outputs must be one or more tensors.")
    values = popart_attributes(attributes)
    trace = tracing.current()
    if trace is None:
        return [torch.zeros_like(example, requires_grad=example.requires_grad) for example in examples]
    call = _Call(find(name, domain, domain_version), values, [_spec(example) for example in examples], trace)
    results: tuple[Tensor, ...] = _Differentiable.apply(call, *inputs)  # type: ignore[no-untyped-call]
    return list(results)


class _Call:
    """One call of a custom op: its functions with the attributes filled in."""

    def __init__(self, op: CustomOp, attributes: dict[str, Value], specs: list[TensorSpec], trace: Trace) -> None:
        self.op, self.attributes, self.specs, self.trace = op, attributes, specs, trace
        self.label = f"The custom op {op.domain}.{op.name}"

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Record the op and return its results."""
        function = PythonFunction(self.label, lambda tensors: self._computed(tensors))
        return record(CUSTOM, self.trace, inputs, self.specs, function)

    def backward(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], incoming: Sequence[Tensor], needed: list[int]
    ) -> list[Tensor | None]:
        """Record the gradient op and return gradients of those inputs whose places are in `needed`."""
        function = PythonFunction(f"{self.label} (gradient)", self.differentiated(len(inputs), needed))
        specs = [_spec(inputs[index]) for index in needed]
        made = iter(record(CUSTOM_GRADIENT, self.trace, [*inputs, *outputs, *incoming], specs, function))
        return [next(made) if index in needed else None for index in range(len(inputs))]

    def _computed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        results = self.op.forward(*tensors, **self.attributes)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    def differentiated(self, count: int, needed: list[int]) -> Callable[[list[Tensor]], list[Tensor]]:
        """Return the function from `count` inputs, the outputs and their gradients to the gradients of `needed`."""

        def gradients(tensors: list[Tensor]) -> list[Tensor]:
            width = len(self.specs)
            inputs, rest = tensors[:count], tensors[count:]
            outputs, incoming = rest[:width], rest[width:]
            found = self._own(inputs, outputs, incoming) if self.op.backward else self._automatic(inputs, incoming)
            missing = [index for index in needed if index >= len(found)]
            if missing:
                raise createPoptorchError(
                    f"{self.label}: backward must return a gradient for each of {count} inputs; it returned "
                    f"{len(found)}."
                )
            zeros = ((found[index], inputs[index]) for index in needed)
            return [torch.zeros_like(tensor) if gradient is None else gradient for gradient, tensor in zeros]

        return gradients

    def _own(self, inputs: list[Tensor], outputs: list[Tensor], incoming: list[Tensor]) -> Sequence[Tensor | None]:
        assert self.op.backward is not None
        found = self.op.backward(inputs, outputs, incoming, self.attributes)
        return [found] if isinstance(found, torch.Tensor) else list(found)

    def _automatic(self, inputs: list[Tensor], incoming: list[Tensor]) -> Sequence[Tensor | None]:
        """Differentiate forward with PyTorch."""
        with torch.enable_grad():
            leaves = [t.requires_grad_() if t.dtype.is_floating_point else t for t in inputs]
            results = self._computed(leaves)
            pairs = [(r, g) for r, g in zip(results, incoming) if r.requires_grad]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            if not pairs:
                return [None] * len(inputs)
            found = iter(
                torch.autograd.grad([r for r, _ in pairs], wanted, [g.to(r.dtype) for r, g in pairs], allow_unused=True)
            )
        return [next(found) if leaf.requires_grad else None for leaf in leaves]


class _Differentiable(torch.autograd.Function):
    """A custom op whose gradient is another op."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = call.forward(inputs)
        ctx.call = call
        ctx.save_for_backward(*inputs, *results)
        ctx.mark_non_differentiable(*[result for result in results if not result.dtype.is_floating_point])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.saved_tensors) - len(gradients)
        inputs, outputs = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needed = [index for index, wanted in enumerate(ctx.needs_input_grad[1:]) if wanted]
        return None, *ctx.call.backward(inputs, outputs, gradients, needed)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec.contiguous(tuple(tensor.shape), tensor.dtype)


def _check_arguments(inputs: Any, name: Any, domain: Any, domain_version: Any) -> None:
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise createPoptorchError("poptorch.custom_op: inputs must be a list or tuple of tensors.")
    for argument, value in (("name", name), ("domain", domain)):
        if not isinstance(value, str):
            raise createPoptorchError(f"poptorch.custom_op: {argument} must be a string, not {type(value)}.")
    if type(domain_version) is not int:
        raise createPoptorchError(f"poptorch.custom_op: domain_version must be an int, not {type(domain_version)}.")


Scalar = int | float | str
Value = Scalar | list[int] | list[float] | list[str]

_LARGEST = float(np.finfo(np.float32).max)


def popart_attributes(attributes: dict[str, Any] | None) -> dict[str, Value]:
    """Return the attributes with the values that PopART would have: bools as ints, floats rounded to 32 bits.

    Raises:
        ValueError: keys that are no strings, other types of values, lists that are empty or of several types, text that
            is not ASCII, ints of more than 64 bits.
        Error: a float outside the range of float32.
    """
    found: dict[str, Value] = {}
    for key, value in (attributes or {}).items():
        if not isinstance(key, str):
            raise ValueError(f"Attribute keys must be strings; got {key!r}, {type(key)}.")
        found[_ascii(key)] = _listed(key, value) if isinstance(value, (list, tuple)) else _scalar(key, value)
    return found


def _listed(key: str, values: list[Any] | tuple[Any, ...]) -> Value:
    if not values:
        raise ValueError(f"Attribute {key!r} is an empty list, whose type is unknown.")
    if len({type(value) for value in values}) > 1:
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
        return _float32(value)
    raise ValueError(
        f"Attribute {key!r} has the unsupported type {type(value)}. Use int, float, str, or a list of one of these."
    )


def _float32(value: float) -> float:
    if value > _LARGEST:
        raise createPoptorchError(f"{value:g} is too high for a Popart float attribute.")
    if value < -_LARGEST:
        raise createPoptorchError(f"{value:g} is too low for a Popart float attribute.")
    return float(np.float32(value))


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError(f"{text!r} contains non-ASCII characters.")
    return text
