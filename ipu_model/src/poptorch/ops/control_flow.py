"""What a static graph does not hold, for inference: loops, branches, slices whose position is known at run time only.

The iterations of a loop are written out one after another, and of a condition both branches are computed and the result
of one is selected at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.tracing import Trace
from poptorch._impl import createPoptorchError
from poptorch.ops._tracing import Body, check, refuse_training, require_tensors

Function = Callable[..., Tensor | Sequence[Tensor]]

_looping: ContextVar[Trace | None] = ContextVar("poptorch_for_loop", default=None)


def for_loop(count: int, body: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Call `body(*tensors)` `count` times, each time with what it returned before; return the last results.

    The body takes and returns as many tensors as `inputs` has, of the same shapes and element types. Tensors
    are passed by value. On the CPU the body runs once, as in PopTorch.

    Raises `ValueError` unless `inputs` is a list of tensors; when traced, `poptorch.Error` for a training model, a loop
    inside a loop, results that do not match the inputs, and a body that changes a tensor from outside.
    """
    _check_tensors(inputs)
    trace = tracing.current()
    if trace is None:
        return _call(body, inputs)
    refuse_training("poptorch.for_loop()")
    number: object = count
    rule = "count must be an int from 0 upwards, fixed when the model is compiled"
    check(isinstance(number, int) and number >= 0, f"poptorch.for_loop(): {rule}; got {count!r}.")
    nested = "poptorch.for_loop() inside another poptorch.for_loop() is not supported. Write the inner loop in Python."
    check(_looping.get() is not trace, nested)
    token = _looping.set(trace)
    try:
        tensors = list(inputs)
        for _ in range(count):
            results = _traced_call("poptorch.for_loop()", body, tensors)
            _check_carried(tensors, results)
            tensors = results
        return [tensor.clone() for tensor in tensors]
    finally:
        _looping.reset(token)


def cond(
    condition: Tensor, then_body: Function, then_inps: list[Tensor], else_body: Function, else_inps: list[Tensor]
) -> list[Tensor]:
    """Return the results of `then_body` if `condition` is true at run time, else those of `else_body`.

    `condition` is a bool tensor of one element. Both bodies return the same number of tensors; the results
    have the shapes of the else branch. Tensors are passed by value.

    Raises `ValueError` unless inputs are lists of tensors; when traced, `poptorch.Error` for a training model, results
    of the branches that do not match, a 0-dim result of the else branch, and a body that changes a tensor from outside.
    """
    _check_tensors(then_inps)
    _check_tensors(else_inps)
    if not tracing.is_tracing():
        return _call(then_body, then_inps) if bool(condition) else _call(else_body, else_inps)
    refuse_training("poptorch.cond()")
    given: Any = condition
    is_bool = isinstance(given, torch.Tensor) and given.dtype == torch.bool and given.numel() == 1
    shown = _form(given) if isinstance(given, torch.Tensor) else repr(given)
    rule = "the condition must be a bool tensor of one element, like x.sum() > 0"
    check(is_bool, f"poptorch.cond(): {rule}; got {shown}.")
    selector = condition.reshape(())
    then_results = _traced_call("poptorch.cond()", then_body, then_inps)
    else_results = _traced_call("poptorch.cond()", else_body, else_inps)
    counts = f"then_body returned {len(then_results)} tensors, else_body {len(else_results)}"
    same = len(then_results) == len(else_results)
    check(same, f"poptorch.cond(): {counts}. Both must return the same number.")
    results = []
    for chosen, other in zip(then_results, else_results, strict=True):
        no_dimension = "a result of else_body has no dimension. Return it with one, for example x.reshape(1)."
        check(other.dim(), f"poptorch.cond(): {no_dimension}")
        check(
            chosen.numel() == other.numel() and chosen.dtype == other.dtype,
            f"poptorch.cond(): a result of then_body is {_form(chosen)}, that of else_body {_form(other)}. They "
            "must have the same type and number of elements.",
        )
        results.append(torch.where(selector, chosen.reshape(other.shape), other))
    return results


def _call(body: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    results = body(*(tensor.clone() for tensor in inputs))
    listed = [results] if isinstance(results, torch.Tensor) else list(results)
    _check_tensors(listed)
    return listed


def _traced_call(name: str, body: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    recorded = Body.begin()
    results = _call(body, inputs)
    culprit = recorded.writes_outside() if recorded is not None else None
    if culprit is not None:
        raise createPoptorchError(
            f"{name}: the body changes a tensor from outside in place ({culprit.target}). It may read such "
            "tensors; to change one, pass it in the list of inputs and return its new value."
        )
    return results


def _check_carried(before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    counts = f"the body takes {len(before)} tensors and returned {len(after)}"
    check(len(before) == len(after), f"poptorch.for_loop(): {counts}. It must return as many as it takes.")
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        check(
            old.shape == new.shape and old.dtype == new.dtype,
            f"poptorch.for_loop(): result {index} of the body is {_form(new)}, its input {_form(old)}. Each result "
            "becomes an input of the next iteration and must match it.",
        )


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _check_tensors(values: Any) -> None:
    if not isinstance(values, list):
        raise ValueError(f"Object is not list: got {type(values)}. Pass the tensors in a list.")
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"Object contained in list at index {index} is not torch.tensor: got {type(value)}.")


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return a copy of the elements `start : start + size : step` of `tensor` along `dim`.

    `start` is an integer tensor of one element, read at run time; a slice that leaves the tensor is an error then.
    Raises `poptorch.Error` for arguments of other types; when traced, for a size or step below 1, a size that does not
    divide the dimension, and a training model.
    """
    _check_arguments("poptorch.dynamic_slice", {"tensor": tensor}, dim, start, {"size": size, "step": step})
    if tracing.is_tracing():
        _check_traced("poptorch.dynamic_slice()", size)
        check(step >= 1, f"The step of a slice must be at least 1; got {step}.")
        length = tensor.shape[dim]
        check(
            length % size == 0,
            f"The size of a slice must be a factor of the slicing dimension: {size} does not divide "
            f"{length}. Use a divisor of {length} and take what you need of the result.",
        )
    return tensor.index_select(dim, _positions(start, size, step))


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of `input` with `src` written to the elements `start : start + size` along `dim`.

    `start` is an integer tensor of one element, read at run time; `src` has the shape of `input` but for `size`
    elements along `dim`. Raises `poptorch.Error` for arguments of other types, ranks, element types or shapes; when
    traced, for a size below 1 and a training model.
    """
    _check_arguments("poptorch.dynamic_update", {"input": input, "src": src}, dim, start, {"size": size})
    ranks = f"they have {input.dim()} and {src.dim()} dimensions"
    same = input.dim() == src.dim()
    check(same, f"poptorch.dynamic_update: input and src must have the same dimensionality; {ranks}.")
    types = f"{input.dtype} and {src.dtype}"
    check(input.dtype == src.dtype, f"poptorch.dynamic_update: input and src must have the same dtype, not {types}.")
    if tracing.is_tracing():
        _check_traced("poptorch.dynamic_update()", size)
    expected = list(input.shape)
    expected[dim] = size
    check(
        list(src.shape) == expected,
        f"poptorch.dynamic_update: src must have the shape {expected} (that of input, but for {size} "
        f"elements along dimension {dim}), not {list(src.shape)}.",
    )
    return input.index_copy(dim, _positions(start, size, 1), src)


def _positions(start: Tensor, size: int, step: int) -> Tensor:
    steps = torch.arange(0, size, step, dtype=torch.int64, device=start.device)
    return start.reshape(()) + steps


def _check_arguments(name: str, tensors: dict[str, Tensor], dim: int, start: Tensor, ints: dict[str, int]) -> None:
    require_tensors(name, **tensors, start=start)
    for argument, number in {"dim": dim, **ints}.items():
        is_int = isinstance(number, int)
        check(is_int, f"{name}: {argument} must be an int, fixed when compiling; got {number!r}.")
    fits = start.numel() == 1 and start.dtype in (torch.int16, torch.int32, torch.int64)
    check(fits, f"{name}: start must be an integer tensor of one element; got {_form(start)}.")
    rank = next(iter(tensors.values())).dim()
    check(-rank <= dim < rank, f"{name}: there is no dimension {dim} in a tensor of {rank} dimensions.")


def _check_traced(name: str, size: int) -> None:
    refuse_training(name)
    check(size != 0, "The start and end of a slice must be different: size is 0. Use at least 1.")
    check(size > 0, f"The size of a slice must not be negative; got {size}.")
