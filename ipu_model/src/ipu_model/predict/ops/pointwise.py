"""Element-wise ops: an element of the result depends on one element of each operand."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Layout, OpView, OpWork, costs, kinds
from ipu_model.step import Step, Tensor

# Chains of `vertices.VECTOR_OPS`, and the aten ops (without the underscore of their in-place forms) that they compute.
_KINDS_BY_CHAIN = {
    **{name: name for name in kinds("square reciprocal sqrt rsqrt erf log tanh sigmoid gelu")},
    "add": "add sub rsub mul",
    "divide": "div",
    "negate": "neg abs",
    "divide plain": "fmod remainder floor_divide",
    "add add": "addcmul lerp",
    "divide add": "addcdiv",
    "maximum": "maximum minimum clamp_min clamp_max fmin fmax",
    "maximum maximum": "clamp hardtanh",
    "plain": (
        "floor ceil round trunc frac sign sgn bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ where "
        "masked_fill heaviside copysign nan_to_num tril triu threshold hardshrink hardshrink_backward "
        "softshrink_backward"
    ),
    "log-add": "logaddexp",
    "square square add sqrt": "hypot",
    "log add negate": "special_entr",
    "exp": "exp exp2",
    "exp add": "expm1 ldexp",
    "log scale": "log2 log10",
    "add log": "log1p",
    "erf add": "erfc",
    "log sqrt add sqrt add": "erfinv",
    "sine": "sin cos asin acos atan",
    "sine sine divide": "tan",
    "sine divide": "atan2 sinc",
    "exp reciprocal add": "sinh cosh",
    "log add": "xlogy",
    "log divide": "logit",
    "square add sqrt add log": "asinh acosh",
    "add divide log": "atanh",
    "log-add scale": "logaddexp2",
    "add log add": "special_xlog1py",
    "scale": "rad2deg deg2rad",
    3 * "add ": "linalg_cross",
    # Special functions: as many terms as the series of Cephes (Moshier) has for them; estimated.
    6 * "divide add " + "log log add add": "lgamma mvlgamma",
    8 * "divide add " + "log add": "digamma",
    8 * "divide add add ": "polygamma _standard_gamma_grad",
    60 * "add " + "exp": "i0",
    58 * "add " + "exp": "special_i1",
    60 * "add ": "special_i0e",
    58 * "add ": "special_i1e",
    32 * "add " + "sqrt sine sine": "special_bessel_j0 special_bessel_j1",
    32 * "add " + "log sqrt": "special_ndtri",
    "erf log add": "special_log_ndtr",
    14 * "add " + "divide": "special_erfcx",
    20 * "divide add add ": "igamma igammac",
    "compare": (
        "eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or logical_not logical_xor "
        "bitwise_and bitwise_or bitwise_not bitwise_xor signbit"
    ),
    "plain plain": "frexp",
    16 * "plain ": "gcd",
    "sigmoid add": "silu glu softplus_backward",
    "exp maximum": "elu celu",
    "exp add log": "softplus log_sigmoid_forward",
    "exp add log tanh add": "mish",
    "add maximum maximum add": "hardswish",
    "add maximum maximum": "hardsigmoid",
    "scale maximum": "leaky_relu",
    "add maximum": "_prelu_kernel",
    "plain add": (
        "softshrink hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward "
        "_prelu_kernel_backward rrelu_with_noise_backward"
    ),
    "random scale maximum": "rrelu_with_noise",
    "sigmoid add add add": "silu_backward glu_backward",
    "exp plain": "elu_backward",
    "erf exp add add": "gelu_backward",
    "exp log tanh sigmoid add add": "mish_backward",
    "exp divide add": "log_sigmoid_backward",
    "add divide": "logit_backward",
    "random": "bernoulli uniform rand rand_like random randint randint_like",
    "random log": "exponential",
    "random random add": "normal randn randn_like",
    4 * "random log add compare ": "poisson",
    "random log sqrt add random log sqrt add": "_standard_gamma",
}
CHAINS: Mapping[str, tuple[str, ...]] = {
    kind: kinds(chain) for chain, computed in _KINDS_BY_CHAIN.items() for kind in kinds(computed)
}

# Ops that draw the mask of a dropout, with the place of the mask among their results.
_MASKS = {"bernoulli": 0, "native_dropout": 1}


def dropout_masks(step: Step) -> tuple[Tensor, ...]:
    """Return the masks of dropouts: the backward pass draws them again from the same seed (PopART's DropoutGradOp)."""
    return tuple(
        mask for op in step.ops if op.kind in _MASKS for mask in step.results_of(op) if mask.index == _MASKS[op.kind]
    )


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
    elif op.kind == "gelu" and op.argument(1, "approximate") == "tanh":
        chain = ("square", "scale", "add", "tanh", "add")
    elif op.kind == "gelu_backward" and op.argument(2, "approximate") == "tanh":
        chain = ("square", "tanh", "add", "square", "add", "add", "add")
    return op.takes(*chained(op, chain))


_POWERS: Mapping[float, tuple[str, ...]] = {
    -2: ("square", "reciprocal"),
    -1: ("reciprocal",),
    -0.5: ("rsqrt",),
    0: ("copy",),
    0.5: ("sqrt",),
    1: ("copy",),
    2: ("square",),
    3: ("square", "add"),
    4: ("square", "square"),
}


@costs("pow")
def cost_power(op: OpView) -> OpWork:
    """Cost a power: small whole exponents are multiplications, halves are roots."""
    exponent = op.argument(1)
    chain = _POWERS.get(exponent, ("power",)) if isinstance(exponent, (int, float)) else ("power",)
    return op.takes(*chained(op, chain))


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
    work = Work("elementwise", cycles, temporary_bytes=moved, outputs_on_busiest_tile=n)
    return op.takes(work, activation.layout)
