"""Slices whose position is known at run time only: `dynamic_slice` and `dynamic_update`."""

from __future__ import annotations

import torch
from torch import Tensor

from ipu_model import tracing
from poptorch._impl import createPoptorchError
from poptorch.ops._inference import refuse_training

_START_TYPES = (torch.int16, torch.int32, torch.int64)


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return a copy of the elements `start : start + size : step` of `tensor` along `dim`.

    `start` is an integer tensor of one element, read at run time; a slice that leaves the tensor is an error
    then.

    Raises:
        Error: arguments of other types; when traced, a size or step below 1, a size that does not divide the
            dimension, or a training model.
    """
    _check_arguments("poptorch.dynamic_slice", {"tensor": tensor}, dim, start, {"size": size, "step": step})
    if tracing.is_tracing():
        refuse_training("poptorch.dynamic_slice()")
        _check_size(size)
        _check_slicing(tensor, dim, size, step)
    return tensor.index_select(dim, _positions(start, size, step))


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of `input` with `src` written to the elements `start : start + size` along `dim`.

    `start` is an integer tensor of one element, read at run time; `src` has the shape of `input` but for
    `size` elements along `dim`.

    Raises:
        Error: arguments of other types, ranks, element types or shapes; when traced, a size below 1, or a
            training model.
    """
    _check_arguments("poptorch.dynamic_update", {"input": input, "src": src}, dim, start, {"size": size})
    if input.dim() != src.dim():
        raise createPoptorchError(
            "poptorch.dynamic_update: input and src must have the same dimensionality; they have "
            f"{input.dim()} and {src.dim()} dimensions."
        )
    if input.dtype != src.dtype:
        raise createPoptorchError(
            f"poptorch.dynamic_update: input and src must have the same dtype, not {input.dtype} and {src.dtype}."
        )
    if tracing.is_tracing():
        refuse_training("poptorch.dynamic_update()")
        _check_size(size)
    _check_source(input, src, dim, size)
    return input.index_copy(dim, _positions(start, size, 1), src)


def _positions(start: Tensor, size: int, step: int) -> Tensor:
    steps = torch.arange(0, size, step, dtype=torch.int64, device=start.device)
    return start.reshape(()) + steps


def _check_arguments(name: str, tensors: dict[str, Tensor], dim: int, start: Tensor, ints: dict[str, int]) -> None:
    for argument, tensor in {**tensors, "start": start}.items():
        if not isinstance(tensor, torch.Tensor):
            raise createPoptorchError(f"{name}: {argument} must be a tensor, not {type(tensor)}.")
    for argument, number in {"dim": dim, **ints}.items():
        if not isinstance(number, int):
            raise createPoptorchError(f"{name}: {argument} must be an int, fixed when compiling; got {number!r}.")
    if start.numel() != 1 or start.dtype not in _START_TYPES:
        raise createPoptorchError(
            f"{name}: start must be an integer tensor of one element; got {start.dtype} {list(start.shape)}."
        )
    rank = next(iter(tensors.values())).dim()
    if not -rank <= dim < rank:
        raise createPoptorchError(f"{name}: there is no dimension {dim} in a tensor of {rank} dimensions.")


def _check_size(size: int) -> None:
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different: size is 0. Use at least 1.")
    if size < 0:
        raise createPoptorchError(f"The size of a slice must not be negative; got {size}.")


def _check_slicing(tensor: Tensor, dim: int, size: int, step: int) -> None:
    if step < 1:
        raise createPoptorchError(f"The step of a slice must be at least 1; got {step}.")
    length = tensor.shape[dim]
    if length % size:
        raise createPoptorchError(
            f"The size of a slice must be a factor of the slicing dimension: {size} does not divide "
            f"{length}. Use a divisor of {length} and take what you need of the result."
        )


def _check_source(input: Tensor, src: Tensor, dim: int, size: int) -> None:
    expected = list(input.shape)
    expected[dim] = size
    if list(src.shape) != expected:
        raise createPoptorchError(
            f"poptorch.dynamic_update: src must have the shape {expected} (that of input, but for {size} "
            f"elements along dimension {dim}), not {list(src.shape)}."
        )
