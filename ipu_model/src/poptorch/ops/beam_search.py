"""`ctc_beam_search_decoder`: the likeliest label sequences for the outputs of a CTC network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.ctc import beam_search
from poptorch._impl import createPoptorchError

_NAME = "poptorch.ctc_beam_search_decoder"


def ctc_beam_search_decoder(
    probs: Tensor, lengths: Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities, lengths and labels of the `top_paths` likeliest paths of each sample, likeliest first.

    `probs` are log-probabilities `[T, N, C]`, `lengths` `[N]` how many of the T steps belong to each sample. Results
    are negative log-probabilities `[N, top_paths]`, lengths `[N, top_paths]` (int32) and labels `[N, top_paths, T]`
    (int32, -1 behind the end). On the CPU they are zeros, as in PopTorch.

    Raises:
        Error: arguments of other types or shapes, a `blank` that is no class, or more paths than beams.
    """
    for name, tensor in (("probs", probs), ("lengths", lengths)):
        if not isinstance(tensor, torch.Tensor):
            raise createPoptorchError(f"{_NAME}: {name} must be a tensor, not {type(tensor)}.")
    _check_shapes(probs, lengths)
    _check_numbers(probs.shape[2], blank, beam_width, top_paths)
    if tracing.is_tracing():
        return beam_search(probs, lengths, blank, beam_width, top_paths)
    steps, samples, _ = probs.shape
    return (
        probs.new_zeros(samples, top_paths),
        probs.new_zeros(samples, top_paths, dtype=torch.int32),
        probs.new_zeros(samples, top_paths, steps, dtype=torch.int32),
    )


def _check_shapes(probs: Tensor, lengths: Tensor) -> None:
    if probs.dim() != 3 or not probs.dtype.is_floating_point:
        raise createPoptorchError(
            f"{_NAME}: probs must be log-probabilities [time, batch, classes], not {probs.dtype} {list(probs.shape)}."
        )
    if lengths.dtype.is_floating_point or tuple(lengths.shape) != (probs.shape[1],):
        raise createPoptorchError(
            f"{_NAME}: lengths must hold a whole number for each of the {probs.shape[1]} samples, not "
            f"{lengths.dtype} {list(lengths.shape)}."
        )


def _check_numbers(classes: int, blank: Any, beam_width: Any, top_paths: Any) -> None:
    for name, number in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        if type(number) is not int:
            raise createPoptorchError(f"{_NAME}: {name} must be an int, fixed when compiling; got {number!r}.")
    if not 0 <= blank < classes:
        raise createPoptorchError(f"{_NAME}: blank must be one of the {classes} classes, not {blank}.")
    if not 1 <= top_paths <= beam_width:
        raise createPoptorchError(
            f"{_NAME}: top_paths must be between 1 and beam_width ({beam_width}), not {top_paths}."
        )
