"""Ops that only move data, create it or view it differently; and calls of the host (`poptorch.CPU`)."""

from __future__ import annotations

import math

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Layout, OpView, OpWork, costs

_IMAGE_PADDINGS = ("reflection", "replication", "circular")


def filled(device: Device, n: float, element: Element) -> Work:
    return Work("copy", Cycles(compute=vertices.fill(device, n, element)), outputs_on_busiest_tile=n)


def copied(device: Device, n: float, element: Element, *, moved: float = 0.0) -> Work:
    """Return the work of copying n elements on the busiest tile, `moved` of them from other tiles."""
    cycles = Cycles(compute=vertices.copy(device, n, element))
    if moved:
        cycles = cycles + device.exchange(moved * element.bytes)
    return Work("copy", cycles, temporary_bytes=moved * element.bytes, outputs_on_busiest_tile=n)


@costs(  # also views that the schema does not declare as such, lists of views among them: reshapes without a copy
    "_unsafe_view _reshape_alias resize resize_as reshape alias detach squeeze unsqueeze transpose t as_strided "
    "unsafe_split unsafe_split_with_sizes unsafe_chunk view_as real view_as_real view_as_complex pixel_shuffle "
    "pixel_unshuffle channel_shuffle native_channel_shuffle unfold split split_with_sizes unbind chunk tensor_split"
)
def cost_view(op: OpView) -> OpWork:
    """Cost a view: nothing moves. Its layout is that of its source, scaled to the view's size."""
    source = op.needed(0)

    def layout(elements: int) -> Layout:
        share = min(1.0, elements / max(1, source.stored))
        return Layout(max(min(1.0, elements), math.ceil(source.on_tile * share)), source.layout.origin)

    return OpWork({}, tuple(None if output is None else layout(output.elements) for output in op.outputs))


@costs("cat stack hstack vstack block_diag", words={"cat": "concatenation"})
def cost_joined(op: OpView) -> OpWork:
    """Cost a concatenation: each tile copies what it holds, nothing is exchanged."""
    on_tile = sum(operand.on_tile for operand in op.operands())
    n = max(op.spread(op.output()), float(min(on_tile, op.output().elements)))
    return op.takes(copied(op.device, n, op.element))


@costs(
    "select_backward slice_backward constant_pad_nd diagonal_backward diag_embed slice_scatter select_scatter "
    "diagonal_scatter",
    words={"constant_pad_nd": "padding"},
)
def cost_padded(op: OpView) -> OpWork:
    """Cost a tensor put into a larger one of zeros (or a copy of another): each tile keeps what it holds."""
    source = op.needed(0)
    n = max(op.spread(op.output()), source.on_tile)
    work = filled(op.device, n, op.element)
    return op.takes(work.plus(copied(op.device, source.on_tile, op.element).cycles))


@costs(
    "roll flip rot90 unfold_backward im2col col2im max_unpool2d max_unpool3d repeat expand_copy repeat_interleave",
    *(f"{kind}_pad{rank}d{end}" for kind in _IMAGE_PADDINGS for rank in (1, 2, 3) for end in ("", "_backward")),
)
def cost_moved(op: OpView) -> OpWork:
    """Cost a copy in which elements change tiles, such as a broadcast that is written out."""
    n = op.spread(op.output())
    return op.takes(copied(op.device, n, op.element, moved=n))


@costs("fill zero")
def cost_filled(op: OpView) -> OpWork:
    source = op.needed(0)
    return op.takes(filled(op.device, source.on_tile, op.element), source.layout)


@costs("clone contiguous diagonal_copy", words={"clone": "rearrangement"})
def cost_clone(op: OpView) -> OpWork:
    """Cost a copy: inside each tile if the order of elements stays, a rearrangement if it changes."""
    source, device, element = op.needed(0), op.device, op.element
    if op.op.hints.is_nop or op.op.hints.is_printed:  # the cost of printing is on the host
        return OpWork({}, (source.layout,))
    if source.stored < source.elements:
        return cost_moved(op)
    if _order(source.tensor.stride, source.shape) == _order(op.output().stride, op.output().shape):
        return op.takes(copied(device, source.on_tile, element), source.layout)
    n = max(op.spread(op.output()), source.on_tile)
    moved = n * element.bytes
    cycles = Cycles(compute=vertices.layout_copy(device, moved, element.bytes)) + device.exchange(moved)
    return op.takes(Work("copy", cycles, temporary_bytes=moved, outputs_on_busiest_tile=n))


def _order(stride: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    long = [index for index, size in enumerate(shape) if size > 1]
    return sorted(long, key=lambda index: -stride[index])


@costs("_to_copy to", words={"_to_copy": "cast"})
def cost_conversion(op: OpView) -> OpWork:
    """Cost a change of element type; types that are one type on the device stay as they are."""
    source, element = op.needed(0), op.element
    if source.element is element:
        return OpWork({}, (source.layout,))
    if {source.element, element} == {Element.HALF, Element.FLOAT}:
        compute = vertices.cast(op.device, source.on_tile)
    else:
        scalar = source.element if element.is_floating else element
        compute = vertices.elementwise(op.device, source.on_tile, scalar, ("copy",), vertices.CAST)
    return op.takes(Work("cast", Cycles(compute=compute), outputs_on_busiest_tile=source.on_tile), source.layout)


@costs("copy")
def cost_overwritten(op: OpView) -> OpWork:
    target, source = op.needed(0), op.tensor(1)
    same = source is None or source.layout.origin == target.layout.origin
    work = copied(op.device, target.on_tile, op.element, moved=0.0 if same else target.on_tile)
    return op.takes(work, target.layout)


@costs("host_call")
def cost_host_call(op: OpView) -> OpWork:
    """Cost the transfers to the host and back of an op that the host computes, and one wait for it.

    The host's computing time is not modelled, because it depends on the function and the host.
    """
    sent = sum(operand.elements * operand.element.bytes for operand in op.operands())
    received = sum(each.elements * Element.of(each.dtype).bytes for each in op.outputs if each is not None)
    link = op.device.calibration.stream
    seconds = link.run_wait_seconds + (sent + received) / link.ipu_bytes_per_second
    seconds += sent / link.completion_bytes_per_second + received / link.refill_bytes_per_second
    return op.takes(Work("host call", Cycles(exchange=seconds * op.device.chip.clock_hz)))
