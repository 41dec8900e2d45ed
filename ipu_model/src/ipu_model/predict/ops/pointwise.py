"""Element-wise ops: an element of the result depends on one element of each operand."""

from __future__ import annotations

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Layout, OpView, OpWork, costs
from ipu_model.predict.program import remembered
from ipu_model.step import Step, Tensor

CHAINS = vertices.chains_of("elementwise")
_BY_TANH = vertices.chains_of("by_tanh")
_POWERS = {float(exponent): chain for exponent, chain in vertices.chains_of("powers").items()}

# Ops that draw random numbers; those that draw the mask of a dropout, with the place of the mask among their results.
_DRAWING = frozenset(kind for kind, chain in CHAINS.items() if "random" in chain)
_MASKS = {"bernoulli": 0, "native_dropout": 1}


def dropout_masks(step: Step) -> tuple[Tensor, ...]:
    """Return the masks of dropouts: the backward pass draws them again from the same seed (PopART's DropoutGradOp).

    One number for each sample is stochastic depth, random numbers like any others.
    """
    masks = (m for op in step.ops if op.kind in _MASKS for m in step.results_of(op) if m.index == _MASKS[op.kind])
    return tuple(mask for mask in masks if mask.elements > (mask.shape or (1,))[0])


def pointwise(
    device: Device,
    n: float,
    element: Element,
    ops: tuple[str, ...],
    operands: int = 1,
    *,
    moved: int = 0,
    broadcast: bool = False,
    in_place: bool = False,
) -> Work:
    """Return the work of `ops`, a chain of `vertices.VECTOR_OPS`, on `n` elements of the busiest tile.

    `operands` tensors of the full size are read; `moved` of those lie elsewhere and are exchanged first. `broadcast`
    tells whether a value for each channel takes part, instead of (or besides) full tensors.
    """
    if broadcast and operands <= 1 and len(ops) == 1:
        compute = vertices.broadcast_vector(device, n, element)
    else:
        if operands >= 2:
            overheads = vertices.BINARY_IN_PLACE if in_place else vertices.BINARY
        else:
            overheads = vertices.UNARY_IN_PLACE if in_place else vertices.UNARY
        compute = vertices.elementwise(device, n, element, ops, overheads, max(0, operands - 2))
    cycles, received = Cycles(compute=compute), moved * n * element.bytes
    if moved:
        cycles = cycles + device.exchange(received)
    if broadcast:
        # A tile holds few channels of a tensor; their values are sent to all tiles that hold one of them.
        cycles = cycles + device.exchange(0.0)
    return Work("elementwise", cycles, temporary_bytes=received, outputs_on_busiest_tile=n)


def chained(op: OpView, chain: tuple[str, ...]) -> tuple[Work, Layout]:
    """Return the work of a chain and where its result lies; operands that lie elsewhere are brought there.

    The result lies where an op in place has it, else like the operand that is spread best, else evenly.
    """
    operands = list(op.operands())
    elements = max([op.output().elements, *(operand.elements for operand in operands)])
    full = [operand for operand in operands if operand.stored == operand.elements == elements]
    layout = Layout(float(op.device.spread(elements, op.element)), op.output().name)
    if full:
        layouts = [operand.layout for operand in full]
        layout = layouts[0] if op.op.is_in_place else min(layouts, key=lambda layout: layout.on_tile)
    element = op.element
    if element is Element.BYTE:
        element = max((operand.element for operand in full), key=lambda kind: kind.bytes, default=element)
    work = pointwise(
        op.device,
        layout.on_tile,
        element,
        chain,
        max(1, len(full)),
        moved=sum(operand.layout.origin != layout.origin for operand in full),
        broadcast=any(operand.stored < elements and operand.shape != () for operand in operands),
        in_place=op.op.is_in_place,
    )
    return work, layout


@costs(*CHAINS, words={"threshold": "relu", "bernoulli": "random mask"})
def cost_pointwise(op: OpView) -> OpWork:
    if op.kind == "div" and op.op.is_in_place and op.tensor(1) is None:
        maker = op.step.producer(op.needed(0).tensor.name)
        if maker is not None and maker.kind == "bernoulli":
            # The mask of a dropout: poprand's vertex draws one that is scaled already.
            return OpWork({}, (op.needed(0).layout,))
    chain = CHAINS[op.kind]
    if op.kind in ("mul", "div") and (op.tensor(1) is None or op.needed(1).shape == ()):
        chain = ("scale",)  # by a number
    elif op.kind == "pow" and isinstance(exponent := op.argument(1), (int, float)):
        chain = _POWERS.get(exponent, chain)
    elif op.kind in _BY_TANH and op.argument(2 if op.kind == "gelu_backward" else 1, "approximate") == "tanh":
        chain = _BY_TANH[op.kind]
    work, layout = chained(op, chain)
    roots = {op.step.root(name).name for name in op.op.reads if name in op.step.tensors}
    if op.kind in _DRAWING or (op.is_backward and roots & _roots_of_masks(op.step)):
        work = work.plus(Cycles(compute=op.device.constants.random_fixed_cycles))
    return op.takes(work, layout)


@remembered
def _roots_of_masks(step: Step) -> frozenset[str]:
    return frozenset(step.root(mask.name).name for mask in dropout_masks(step))


@costs("relu")
def cost_relu(op: OpView) -> OpWork:
    source = op.needed(0)
    compute = vertices.elementwise(op.device, source.on_tile, op.element, ("relu",), vertices.RELU)
    work = Work("elementwise", Cycles(compute=compute), outputs_on_busiest_tile=source.on_tile)
    return op.takes(work, source.layout)


@costs("threshold_backward sigmoid_backward tanh_backward", words={"threshold_backward": "relu backward"})
def cost_nonlinearity_gradient(op: OpView) -> OpWork:
    """Cost the gradient of a rectifier, sigmoid or tanh: three thread cycles a vector.

    It lies where the activation lies (the second argument); an incoming gradient that lies elsewhere is brought there.
    """
    gradient, activation = op.needed(0), op.needed(1)
    n, element = activation.on_tile, op.element
    cycles = Cycles(compute=vertices.elementwise(op.device, n, element, ("add",), vertices.NONLINEARITY_GRADIENT))
    moved = 0.0
    if gradient.layout.origin != activation.layout.origin:
        moved = n * element.bytes
        cycles = cycles + op.device.exchange(moved)
    return op.takes(Work("elementwise", cycles, temporary_bytes=moved, outputs_on_busiest_tile=n), activation.layout)
