"""What depends on values at run time: loops and branches, slices and updates at a position, searches.

Loops, branches and slices are for inference, since a static graph does not hold them: the iterations of a loop are
written out one after another, and of a condition both branches are computed and the result of one is selected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.ctc import beam_search
from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from ipu_model.capture.graph import Loop
from ipu_model.capture.tracing import Trace
from poptorch.ops._tracing import Body, as_list, check, refuse_training, require_tensors

Function = Callable[..., Tensor | Sequence[Tensor]]


def for_loop(count: int, body: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Call `body(*tensors)` `count` times, each time with what it returned before; return the last results.

    The body takes and returns as many tensors as `inputs` has, of the same shapes and element types. Tensors
    are passed by value. On the CPU the body runs once, as in PopTorch. On the device, every repeat computes all that
    the body returns, needed or not, unless nothing uses any result of the loop.

    Raises `ValueError` unless `inputs` is a list of tensors; when traced, `poptorch.Error` for a training model, a loop
    inside a loop, results that do not match the inputs, and a body that changes a tensor from outside.
    """
    _check_tensors(inputs)
    trace = tracing.current()
    if trace is None:
        return _call(body, _copies(inputs))
    refuse_training("poptorch.for_loop()")
    given: object = count
    rule = "count must be an int from 0 upwards, fixed when the model is compiled"
    check(isinstance(given, int) and given >= 0, f"poptorch.for_loop(): {rule}; got {count!r}.")
    nested = "poptorch.for_loop() inside another poptorch.for_loop() is not supported. Write the inner loop in Python."
    check(trace.loop is None, nested)
    loop = trace.loop = Loop()
    recorded = Body.begin(trace)
    try:
        tensors = _carried(trace, inputs)
        for number in range(count):
            loop.repeat = number
            results = _call(body, tensors)
            _check_carried(tensors, results)
            tensors = _carried(trace, results)
    finally:
        trace.loop = None
    recorded.refuse_writes_outside("poptorch.for_loop()")
    loop.results = [node for node in map(trace.node_of, tensors) if node is not None]
    return tensors


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
    trace = tracing.current()
    if trace is None:
        body, inputs = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
        return _call(body, _copies(inputs))
    refuse_training("poptorch.cond()")
    given: Any = condition
    is_bool = isinstance(given, torch.Tensor) and given.dtype == torch.bool and given.numel() == 1
    shown = _form(given) if isinstance(given, torch.Tensor) else repr(given)
    rule = "the condition must be a bool tensor of one element, like x.sum() > 0"
    check(is_bool, f"poptorch.cond(): {rule}; got {shown}.")
    selector = condition.reshape(())
    recorded = Body.begin(trace)
    then_results, else_results = _call(then_body, _copies(then_inps)), _call(else_body, _copies(else_inps))
    recorded.refuse_writes_outside("poptorch.cond()")
    recorded.fix_outside("a tensor from outside a branch of poptorch.cond(). Pass it in and return its new value.")
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
    results = body(*inputs)
    is_listed = isinstance(results, (torch.Tensor, list, tuple))
    check(is_listed, f"A body must return a tensor, or a list or tuple of tensors; it returned {results!r}.")
    listed = as_list(results)
    _check_tensors(listed)
    return listed


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _carried(trace: Trace, tensors: Sequence[Tensor]) -> list[Tensor]:
    copies = _copies(tensors)
    for copy in copies:
        trace.hint(copy, is_carried=True)
    return copies


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
    with tracing.one_handler():
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
    less = "Taking a slice of a tensor with the end less than the start is not supported"
    check(size > 0, f"{less}: its size is {size}. Use at least 1.")


Batch = list[int] | Tensor | None


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return the rows of `src` that farthest point sampling picks, as indices of all rows.

    Sample i of `src` `[points, features]` is the rows `ptr[i] : ptr[i + 1]`; of its n rows `ceil(n * ratio)` are
    picked: the first (or with `random_start` any), then always the one farthest from those already picked.
    Raises `poptorch.Error` for arguments of other types, fewer than two entries in `ptr`, entries that are not sorted
    or leave `src`, and a ratio that is not in (0, 1].
    """
    points: Any = src
    is_tensor = isinstance(points, torch.Tensor) and points.dim() > 0
    check(is_tensor, f"poptorch.fps: src must be a tensor [points, features], not {_kind(src)}.")
    check(_are_ints(ptr), f"poptorch.fps: ptr must be a list of ints, not {_kind(ptr)}.")
    check(len(ptr) > 1, f"poptorch.fps: ptr must have at least 2 entries, the ends of a sample; got {ptr}.")
    increases = ptr[0] >= 0 and ptr[-1] <= src.shape[0] and all(begin <= end for begin, end in pairwise(ptr))
    check(increases, f"poptorch.fps: ptr must increase from 0 to at most the {src.shape[0]} rows of src; got {ptr}.")
    is_ratio = type(ratio) in (float, int) and 0 < ratio <= 1
    check(is_ratio, f"poptorch.fps: ratio must be a float above 0 and at most 1, not {ratio!r}.")
    is_bool = isinstance(random_start, bool)
    check(is_bool, f"poptorch.fps: random_start must be a bool, not {_kind(random_start)}.")
    sizes = [end - begin for begin, end in pairwise(ptr)]
    # In fp32 as `torch_cluster` computes it: 0.07 of 100 is 7, not 8.
    counts = [math.ceil(float(np.float32(ratio) * np.float32(size))) for size in sizes]
    starts = None
    if random_start:
        rows = torch.tensor(sizes, device=src.device)
        # fp32 draws are below 1, but their product with a large count can be rounded up to the count.
        drawn = (torch.rand(len(sizes), device=src.device) * rows).long()
        starts = torch.minimum(drawn, (rows - 1).clamp(min=0))
    picked: Tensor = farthest_points(src.detach(), list(ptr), counts, starts)
    return picked


def nearest(x: Tensor, y: Tensor, batch_x: Batch = None, batch_y: Batch = None) -> Tensor:
    """Return for every row of `x` the index of the row of `y` that is nearest to it (Euclidean distance).

    `x` is `[n, features]` or `[n]`, `y` `[m, features]` or `[m]`. Batch vectors, sorted lists or tensors of `n` and `m`
    whole numbers, keep apart rows of different batch elements; one that is missing beside another is all zeros.

    Raises `poptorch.Error` for arguments of other types, `ValueError` for ranks above 2, other numbers of features,
    batch vectors of other lengths, and lists that are not sorted or do not hold the same batch elements. What tensors
    hold is not looked at.
    """
    require_tensors("poptorch.nearest", x=x, y=y)
    x, y = _as_rows("x", x), _as_rows("y", y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"poptorch.nearest: x and y must have the same number of features, not {x.shape[1]} and {y.shape[1]}."
        )
    if y.shape[0] == 0 and x.shape[0] > 0:
        raise ValueError("poptorch.nearest: y has no rows, so no row of x has a neighbour.")
    rows: Tensor = nearest_points(x.detach(), y.detach(), *_batches(x, y, batch_x, batch_y))
    return rows


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(entry) is int for entry in value)


def _kind(value: Any) -> str:
    return "one without dimensions" if isinstance(value, torch.Tensor) else str(type(value))


def _as_rows(name: str, tensor: Tensor) -> Tensor:
    if tensor.dim() not in (1, 2):
        raise ValueError(f"poptorch.nearest: {name} must have 1 or 2 dimensions, not {tensor.dim()}.")
    return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def _batches(x: Tensor, y: Tensor, batch_x: Batch, batch_y: Batch) -> tuple[Tensor | None, Tensor | None]:
    _check_batch("batch_x", batch_x, x)
    _check_batch("batch_y", batch_y, y)
    if batch_x is None and batch_y is None:
        return None, None
    batch_x = [0] * len(x) if batch_x is None else batch_x
    batch_y = [0] * len(y) if batch_y is None else batch_y
    if isinstance(batch_x, list) and isinstance(batch_y, list) and set(batch_x) != set(batch_y):
        raise ValueError(
            "poptorch.nearest: batch_x and batch_y must hold the same batch elements, not "
            f"{sorted(set(batch_x))} and {sorted(set(batch_y))}."
        )
    dtype = next((batch.dtype for batch in (batch_x, batch_y) if isinstance(batch, torch.Tensor)), torch.int64)
    return tuple(  # type: ignore[return-value]  # two of them
        batch if isinstance(batch, torch.Tensor) else torch.tensor(batch, dtype=dtype, device=x.device)
        for batch in (batch_x, batch_y)
    )


def _check_batch(name: str, batch: Any, rows: Tensor) -> None:
    if batch is None:
        return
    is_tensor = isinstance(batch, torch.Tensor)
    fits = is_tensor or _are_ints(batch)
    check(fits, f"poptorch.nearest: {name} must be a list of ints, a tensor or None, not {type(batch)}.")
    entries = list(batch.shape) if is_tensor else len(batch)
    if entries not in (rows.shape[0], [rows.shape[0]]):
        raise ValueError(f"poptorch.nearest: {name} must have {rows.shape[0]} entries, not {entries}.")
    if not is_tensor and any(after < before for before, after in pairwise(batch)):
        raise ValueError(f"poptorch.nearest: {name} must be sorted.")


_BEAMS = "poptorch.ctc_beam_search_decoder"


def ctc_beam_search_decoder(
    probs: Tensor, lengths: Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities, lengths and labels of the `top_paths` likeliest paths of each sample, likeliest first.

    `probs` are log-probabilities `[T, N, C]`, `lengths` `[N]` how many of the T steps belong to each sample. Results
    are negative log-probabilities `[N, top_paths]`, lengths `[N, top_paths]` (int32) and labels `[N, top_paths, T]`
    (int32, -1 behind the end). On the CPU they are zeros, as in PopTorch.

    Raises `poptorch.Error` for arguments of other types or shapes, a `blank` that is no class, more paths than beams.
    """
    require_tensors(_BEAMS, probs=probs, lengths=lengths)
    are_probabilities = probs.dim() == 3 and probs.dtype.is_floating_point
    given = f"not {probs.dtype} {list(probs.shape)}"
    check(are_probabilities, f"{_BEAMS}: probs must be log-probabilities [time, batch, classes], {given}.")
    steps, samples, classes = probs.shape
    are_lengths = not lengths.dtype.is_floating_point and tuple(lengths.shape) == (samples,)
    given = f"not {lengths.dtype} {list(lengths.shape)}"
    check(are_lengths, f"{_BEAMS}: lengths must hold a whole number for each of the {samples} samples, {given}.")
    for name, number in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        is_int = type(number) is int
        check(is_int, f"{_BEAMS}: {name} must be an int, fixed when compiling; got {number!r}.")
    check(0 <= blank < classes, f"{_BEAMS}: blank must be one of the {classes} classes, not {blank}.")
    between = f"between 1 and beam_width ({beam_width})"
    check(1 <= top_paths <= beam_width, f"{_BEAMS}: top_paths must be {between}, not {top_paths}.")
    if tracing.is_tracing():
        return beam_search(probs, lengths, blank, beam_width, top_paths)
    return (
        probs.new_zeros(samples, top_paths),
        probs.new_zeros(samples, top_paths, dtype=torch.int32),
        probs.new_zeros(samples, top_paths, steps, dtype=torch.int32),
    )
