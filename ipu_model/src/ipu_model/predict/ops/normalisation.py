"""Normalisation over batches, groups of channels or features, forward and backward; and of weights.

PopLibs lowers them to whole passes over the tensor (one multiplication or addition with a value for each
channel) and to reductions (lib/poplin/Norms.cpp, lib/popnn): training forward has four passes and a joint
reduction of sums and squares, backward about ten passes and four reductions, inference two passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.pointwise import pointwise
from ipu_model.predict.ops.reductions import combined, partial_sums, reduced
from ipu_model.predict.ops.rule import Operand, OpView, OpWork, costs

NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm")

# Of the ops on one value for each channel (`norm_channel_ops`), those on running statistics.
RUNNING_OPS = 2


@dataclass(frozen=True)
class Normalised:
    """A tensor that is normalised: its elements, `n` of them on the busiest tile, and its statistics.

    `statistics` is the number of means: channels for a batch norm, samples x groups for a group norm, rows for a layer
    norm; `by_row`: samples have their own. `stable` asks for the variance in a second reduction, after the mean.
    """

    elements: int
    n: float
    statistics: int
    element: Element
    stable: bool = False
    by_row: bool = False


def forward(device: Device, norm: Normalised, *, running: bool = True) -> Work:
    """Return the work of normalising with the micro-batch's statistics; `running` averages are kept."""
    channel_ops = device.constants.norm_channel_ops - (0 if running else RUNNING_OPS)
    return _norm(device, norm, 4 + norm.stable, 2, reductions=2, stages=1 + norm.stable, channel_ops=channel_ops)


def inference(device: Device, norm: Normalised) -> Work:
    """Return the work of normalising with kept statistics: one multiplication and one addition."""
    return _norm(device, norm, 2)


def backward(device: Device, norm: Normalised) -> Work:
    """Return the work of the gradients of input, scale and shift; the input is whitened again."""
    work = _norm(device, norm, 10, 6, reductions=4, stages=2, channel_ops=device.constants.norm_channel_ops)
    moved = norm.n * norm.element.bytes
    return replace(work.plus(device.exchange(moved)), temporary_bytes=2 * moved)


def _norm(
    device: Device,
    norm: Normalised,
    passes: int,
    with_statistics: int = 0,
    *,
    reductions: int = 0,
    stages: int = 0,
    channel_ops: float = 2,
) -> Work:
    """Return the work of passes over the tensor, reductions in `stages` rounds over the tiles, and ops on channels.

    `with_statistics` of the passes use a mean or deviation; the others use a scale or shift, of which each channel has
    one. Where samples have statistics of their own (layer and group norms), these are values for rows, not channels.
    """
    by_row = with_statistics if norm.by_row else 0
    held = device.spread(norm.statistics, norm.element)
    compute = (passes - by_row) * vertices.broadcast_vector(device, norm.n, norm.element)
    compute += by_row * vertices.broadcast_rows(device, norm.n, vertices.CHANNELS_TOGETHER, norm.element)
    compute += reductions * vertices.reduce_rows(device, norm.n, norm.element)
    compute += channel_ops * vertices.broadcast_vector(device, held, norm.element)
    cycles = Cycles(compute=compute)
    if stages:
        local, depth = partial_sums(device, norm.elements, norm.n, norm.statistics)
        partials = local * reductions / stages
        # The finished statistics go back to the tiles that need them.
        once = combined(device, partials, depth) + device.exchange(partials * norm.element.bytes)
        cycles = cycles + once.times(stages)
    return Work("normalisation", cycles, outputs_on_busiest_tile=norm.n)


@costs(*NORMS, further_results=("mean", "inverse standard deviation"))
def cost_norm(op: OpView) -> OpWork:
    """Cost a norm: with the statistics of the micro-batch, or with kept ones (batch norm in inference)."""
    source, is_batch_norm = op.needed(0), op.kind == "native_batch_norm"
    norm = _normalised(op, source)
    if is_batch_norm and not op.argument(5):
        work = inference(op.device, norm)
    else:
        work = forward(op.device, norm, running=is_batch_norm and op.tensor(3) is not None)
    return op.takes(work, source.layout)


@costs(*(f"{name}_backward" for name in NORMS))
def cost_norm_gradient(op: OpView) -> OpWork:
    source = op.needed(1)
    return op.takes(backward(op.device, _normalised(op, source)), source.layout)


def _normalised(op: OpView, source: Operand) -> Normalised:
    if "batch_norm" in op.kind:
        statistics = source.shape[1]
    elif "group_norm" in op.kind:
        statistics = source.shape[0] * int(op.argument(7 if op.is_backward else 6, "group"))
    else:
        statistics = source.elements
        for size in op.argument(2 if op.kind.endswith("backward") else 1):
            statistics //= size
    return Normalised(
        elements=source.elements,
        n=source.on_tile,
        statistics=statistics,
        element=source.element,
        stable=op.settings.stable_norm,
        by_row="batch_norm" not in op.kind,
    )


# A weight and its length along some dimensions -> the weight in that direction; and its two gradients. The
# operations on each element before the reduction and after it.
_WEIGHT_NORMS = {
    "_weight_norm_interface": (("square",), ("scale",)),
    "_weight_norm_interface_backward": (("add",), ("scale", "scale", "add")),
}


@costs(*_WEIGHT_NORMS)
def cost_weight_norm(op: OpView) -> OpWork:
    """Cost `v * g / |v|`, or its gradients: one reduction to `g`'s shape, the rest is element by element."""
    direction, length = op.needed(int(op.is_backward)), op.needed(1 + int(op.is_backward))
    work = reduced(op.device, direction.elements, direction.on_tile, length.elements, direction.element)
    for chain in _WEIGHT_NORMS[op.kind]:
        step = pointwise(op.device, direction.on_tile, direction.element, chain, operands=1 + int(op.is_backward))
        work = work.plus(step.cycles)
    return op.takes(work, direction.layout)
