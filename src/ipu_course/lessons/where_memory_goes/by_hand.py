"""Memory counted by hand: what is always live, what waits for the backward pass, and where a tensor lies."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ipu_course.exercises import open_parts

TILES = 1472
STATE_BYTES = 4  # PopTorch keeps optimiser state and accumulators in float32 unless the optimiser says otherwise
LEAST_BYTES = 256  # of a weight on a tile that has any of it: PopLibs' public source, mapActivationsOrWeights
Counting = TypeVar("Counting", bound=Callable[..., Any])


class Counted(NamedTuple):
    """A function that counts by hand, and whose it is: "you" or "the course"."""

    function: Callable[..., Any]
    by: str


def counted_by(learners: Counting, courses: Counting) -> Counted:
    """Return the learner's function, or the course's as long as the learner's is still open."""
    return Counted(courses, "the course") if open_parts("function", learners) else Counted(learners, "you")


def always_live(network: nn.Module, moments: int, accumulates: bool) -> tuple[int, int, int]:
    """Return the bytes of the variables, of the optimiser state and of the gradient accumulators of a network.

    ``moments`` is how many tensors the optimiser keeps for each parameter. Integer buffers are left out: the counter
    of batch normalisation is not needed on the device.
    """
    variables = [*network.parameters(), *(each for each in network.buffers() if each.is_floating_point())]
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    return sum(map(bytes_of, variables)), moments * STATE_BYTES * trained, STATE_BYTES * trained * accumulates


def kept_for_backward(network: nn.Module, images: Tensor) -> int:
    """Return the bytes of the activations that PyTorch keeps for the backward pass, each tensor once."""
    return sum(kept_tensors(network, images).values())


def kept_tensors(network: nn.Module, images: Tensor) -> dict[int, int]:
    """Return the bytes of each floating-point activation that is kept for the backward pass, by its address."""
    own = {each.data_ptr() for each in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = bytes_of(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return kept


def map_linearly(elements: int, element_bytes: int) -> list[float]:
    """Return the bytes of a weight on each of the 1,472 tiles, of which the last ones are in use.

    All tiles in use but the very last hold the same whole number of elements, and no less than 256 bytes.
    """
    piece = max(math.ceil(elements / TILES), LEAST_BYTES // element_bytes)
    return [element_bytes * held for held in on_last_tiles(elements, piece)]


def on_last_tiles(total: float, piece: float) -> list[float]:
    """Return what each tile holds when the last tiles hold a piece each, and the very last one what is left."""
    pieces = [min(piece, total - place * piece) for place in range(TILES) if place * piece < total]
    return [0] * (TILES - len(pieces)) + pieces


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
