"""Ops that only move data, create it or view it differently."""

from __future__ import annotations

import math

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Layout, Operand, OpView, OpWork, Rule

# Views that the schema does not declare as such (lists of views among them): reshapes without a copy on the
# device.
VIEWS = frozenset({
    "_unsafe_view", "_reshape_alias", "resize", "resize_as", "reshape", "alias", "detach", "squeeze", "unsqueeze",
    "transpose", "t", "as_strided", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "view_as",
    "real", "view_as_real", "view_as_complex", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "native_channel_shuffle", "unfold", "split", "split_with_sizes", "unbind", "chunk", "tensor_split",
})  # fmt: skip


def rearranged(device: Device, n: float, element: Element) -> Work:
    """Return the work of a transposed copy: n elements on the busiest tile change places."""
    moved = n * element.bytes
    cycles = Cycles(compute=vertices.layout_copy(device, moved, element.bytes)) + device.exchange(moved)
    return Work("copy", cycles, temporary_bytes=moved, outputs_on_busiest_tile=n)


def converted(device: Device, n: float, source: Element, target: Element) -> Work:
    """Return the work of converting n elements of the busiest tile to another type."""
    if {source, target} == {Element.HALF, Element.FLOAT}:
        compute = vertices.cast(device, n)
    else:
        scalar = source if target.is_floating else target
        compute = vertices.elementwise(device, n, scalar, ("copy",), vertices.CAST)
    return Work("cast", Cycles(compute=compute), outputs_on_busiest_tile=n)


def filled(device: Device, n: float, element: Element) -> Work:
    """Return the work of writing a constant to n elements of the busiest tile."""
    return Work("copy", Cycles(compute=vertices.fill(device, n, element)), outputs_on_busiest_tile=n)


def copied(device: Device, n: float, element: Element, *, moved: float = 0.0) -> Work:
    """Return the work of copying n elements on the busiest tile, `moved` of them from other tiles."""
    cycles = Cycles(compute=vertices.copy(device, n, element))
    if moved:
        cycles = cycles + device.exchange(moved * element.bytes)
    return Work("copy", cycles, temporary_bytes=moved * element.bytes, outputs_on_busiest_tile=n)


def view_layout(source: Operand, elements: int) -> Layout:
    """Return the layout of a view of `elements` elements: that of its source, scaled to the view's size."""
    stored = max(1, source.stored)
    share = min(1.0, elements / stored)
    return Layout(max(min(1.0, elements), math.ceil(source.on_tile * share)), source.layout.origin)


def cost_view(op: OpView) -> OpWork:
    """Cost a view: nothing moves."""
    source = op.needed(0)
    layouts = tuple(None if output is None else view_layout(source, output.elements) for output in op.outputs)
    return OpWork((), layouts)


def cost_joined(op: OpView) -> OpWork:
    """Cost a concatenation: each tile copies what it holds, nothing is exchanged."""
    on_tile = sum(o.on_tile for o in op.operands())
    n = max(op.spread(op.output()), float(min(on_tile, op.output().elements)))
    return op.takes(copied(op.device, n, op.element))


def cost_padded(op: OpView) -> OpWork:
    """Cost a tensor put into a larger one of zeros (or a copy of another): each tile keeps what it holds."""
    source = op.needed(0)
    n = max(op.spread(op.output()), source.on_tile)
    work = filled(op.device, n, op.element)
    return op.takes(work.plus(copied(op.device, source.on_tile, op.element).cycles))


def cost_moved(op: OpView) -> OpWork:
    """Cost a copy in which elements change tiles."""
    n = op.spread(op.output())
    return op.takes(copied(op.device, n, op.element, moved=n))


def cost_filled(op: OpView) -> OpWork:
    """Cost writing a constant."""
    source = op.needed(0)
    return op.takes(filled(op.device, source.on_tile, op.element), source.layout)


def cost_clone(op: OpView) -> OpWork:
    """Cost a copy: inside each tile if the order of elements stays, a rearrangement if it changes."""
    source = op.needed(0)
    if op.hints.is_nop or op.hints.is_printed:  # the cost of printing is on the host
        return OpWork((), (source.layout,))
    if source.stored < source.elements:
        return cost_repeated(op)
    if _order(source.stride, source.shape) == _order(op.output().stride, op.output().shape):
        return op.takes(copied(op.device, source.on_tile, op.element), source.layout)
    n = max(op.spread(op.output()), source.on_tile)
    return op.takes(rearranged(op.device, n, op.element))


def _order(stride: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Return the dimensions longer than one from slowest to fastest."""
    long = [index for index, size in enumerate(shape) if size > 1]
    return sorted(long, key=lambda index: -stride[index])


def cost_conversion(op: OpView) -> OpWork:
    """Cost a change of element type; types that are one type on the device stay as they are."""
    source = op.needed(0)
    if source.element is op.element:
        return OpWork((), (source.layout,))
    work = converted(op.device, source.on_tile, source.element, op.element)
    return op.takes(work, source.layout)


def cost_overwritten(op: OpView) -> OpWork:
    """Cost writing one tensor over another."""
    target, source = op.needed(0), op.tensor(1)
    n = target.on_tile
    same = source is None or source.layout.origin == target.layout.origin
    work = copied(op.device, n, op.element, moved=0.0 if same else n)
    return op.takes(work, target.layout)


def cost_repeated(op: OpView) -> OpWork:
    """Cost a broadcast that is written out: every copy is sent from where the original lies."""
    n = op.spread(op.output())
    return op.takes(copied(op.device, n, op.element, moved=n))


_PADDED_IMAGES = tuple(
    f"{kind}_pad{rank}d{suffix}"
    for kind in ("reflection", "replication", "circular")
    for rank in (1, 2, 3)
    for suffix in ("", "_backward")
)

RULES = (
    Rule(tuple(VIEWS), cost_view),
    Rule(("cat", "stack", "hstack", "vstack", "block_diag"), cost_joined),
    Rule(("select_backward", "slice_backward", "constant_pad_nd", "diagonal_backward", "diag_embed", "slice_scatter",
          "select_scatter", "diagonal_scatter"), cost_padded),
    Rule(("roll", "flip", "rot90", "unfold_backward", "im2col", "col2im", "max_unpool2d", "max_unpool3d",
          *_PADDED_IMAGES), cost_moved),
    Rule(("fill", "zero"), cost_filled),
    Rule(("clone", "contiguous", "diagonal_copy"), cost_clone),
    Rule(("_to_copy", "to"), cost_conversion),
    Rule(("copy",), cost_overwritten),
    Rule(("repeat", "expand_copy", "repeat_interleave"), cost_repeated),
)  # fmt: skip
