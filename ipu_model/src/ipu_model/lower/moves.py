"""Rules for ops that only move data, make it, or look at it in another way."""

from __future__ import annotations

import math

from ipu_model.cost import copies
from ipu_model.lower.result import Layout
from ipu_model.lower.view import Operand, OpView, Result, Rule, result

# Views that the schema does not declare as such (lists of views among them): reshapes without a copy on the
# device.
VIEWS = frozenset({
    "_unsafe_view", "_reshape_alias", "resize", "resize_as", "reshape", "alias", "detach", "squeeze", "unsqueeze",
    "transpose", "t", "as_strided", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "view_as",
    "real", "view_as_real", "view_as_complex", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "native_channel_shuffle", "unfold", "split", "split_with_sizes", "unbind", "chunk", "tensor_split",
})  # fmt: skip


def rules() -> dict[str, Rule]:
    """Return the rule of each op that moves data."""
    found: dict[str, Rule] = dict.fromkeys(VIEWS, lower_view)
    found |= dict.fromkeys(("cat", "stack", "hstack", "vstack", "block_diag"), lower_joined)
    found |= dict.fromkeys(("select_backward", "slice_backward", "constant_pad_nd", "diagonal_backward", "diag_embed",
                            "slice_scatter", "select_scatter", "diagonal_scatter"), lower_padded)  # fmt: skip
    found |= dict.fromkeys(("roll", "flip", "rot90", "unfold_backward", "im2col", "col2im", "max_unpool2d",
                            "max_unpool3d"), lower_moved)  # fmt: skip
    found |= dict.fromkeys(_image_paddings(), lower_moved)
    found |= dict.fromkeys(("fill", "zero"), lower_filled)
    return found | {
        "clone": lower_clone, "contiguous": lower_clone, "_to_copy": lower_conversion, "to": lower_conversion,
        "copy": lower_overwritten, "repeat": lower_repeated, "expand_copy": lower_repeated,
        "diagonal_copy": lower_clone,
        "repeat_interleave": lower_repeated,
    }  # fmt: skip


def _image_paddings() -> list[str]:
    kinds = [f"{kind}_pad{rank}d" for kind in ("reflection", "replication", "circular") for rank in (1, 2, 3)]
    return [*kinds, *(f"{kind}_backward" for kind in kinds)]


def view_layout(source: Operand, elements: int) -> Layout:
    """Return where a view of `elements` elements lies: where its source lies, a part of it in proportion."""
    stored = max(1, source.stored)
    share = min(1.0, elements / stored)
    return Layout(max(min(1.0, elements), math.ceil(source.on_tile * share)), source.layout.origin)


def lower_view(op: OpView) -> Result:
    """Cost a view: nothing moves."""
    source = op.needed(0)
    layouts = tuple(None if output is None else view_layout(source, output.elements) for output in op.outputs)
    return Result((), layouts)


def lower_joined(op: OpView) -> Result:
    """Cost a concatenation: each tile copies what it holds, nothing is exchanged."""
    on_tile = sum(o.on_tile for o in op.operands())
    n = max(op.spread(op.output()), float(min(on_tile, op.output().elements)))
    return result(op, copies.copied(op.device, n, op.element))


def lower_padded(op: OpView) -> Result:
    """Cost a tensor put into a larger one of zeros (or a copy of another): each tile keeps what it holds."""
    source = op.needed(0)
    n = max(op.spread(op.output()), source.on_tile)
    work = copies.filled(op.device, n, op.element)
    copied = copies.copied(op.device, source.on_tile, op.element)
    return result(op, work.plus(copied.cycles))


def lower_moved(op: OpView) -> Result:
    """Cost a copy in which elements change tiles."""
    n = op.spread(op.output())
    return result(op, copies.copied(op.device, n, op.element, moved=n))


def lower_filled(op: OpView) -> Result:
    """Cost writing a constant."""
    source = op.needed(0)
    return result(op, copies.filled(op.device, source.on_tile, op.element), source.layout)


def lower_clone(op: OpView) -> Result:
    """Cost a copy: inside each tile if the order of elements stays, a rearrangement if it changes."""
    source = op.needed(0)
    if op.hints.is_nop or op.hints.is_printed:  # what printing costs is the host's business
        return Result((), (source.layout,))
    if source.stored < source.elements:
        return lower_repeated(op)
    if _order(source.stride, source.shape) == _order(op.output().stride, op.output().shape):
        return result(op, copies.copied(op.device, source.on_tile, op.element), source.layout)
    n = max(op.spread(op.output()), source.on_tile)
    return result(op, copies.rearranged(op.device, n, op.element))


def _order(stride: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Return the dimensions longer than one from slowest to fastest."""
    long = [index for index, size in enumerate(shape) if size > 1]
    return sorted(long, key=lambda index: -stride[index])


def lower_conversion(op: OpView) -> Result:
    """Cost a change of element type; types that are one type on the device stay as they are."""
    source = op.needed(0)
    if source.element is op.element:
        return Result((), (source.layout,))
    work = copies.cast(op.device, source.on_tile, source.element, op.element)
    return result(op, work, source.layout)


def lower_overwritten(op: OpView) -> Result:
    """Cost writing one tensor over another."""
    target, source = op.needed(0), op.tensor(1)
    n = target.on_tile
    same = source is None or source.layout.origin == target.layout.origin
    work = copies.copied(op.device, n, op.element, moved=0.0 if same else n)
    return result(op, work, target.layout)


def lower_repeated(op: OpView) -> Result:
    """Cost a broadcast that is written out: every copy is sent from where the original lies."""
    n = op.spread(op.output())
    return result(op, copies.copied(op.device, n, op.element, moved=n))


def free(op: OpView) -> Result:
    """Return a result that costs nothing and lies evenly."""
    return Result((), tuple(None if output is None else op.own_layout(index=i) for i, output in enumerate(op.outputs)))
