"""Element-wise ops: an element of the result depends on one element of each operand.

`CHAINS` says which vector operations each of them is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import Layout, Operand, OpView, OpWork, Rule

# aten op (without the underscore of its in-place form) -> chain of `vertices.VECTOR_OPS`.
CHAINS: Mapping[str, tuple[str, ...]] = {
    # arithmetic
    "add": ("add",), "sub": ("add",), "rsub": ("add",), "mul": ("add",), "div": ("divide",),
    "neg": ("negate",), "abs": ("negate",), "square": ("square",), "reciprocal": ("reciprocal",),
    "sqrt": ("sqrt",), "rsqrt": ("rsqrt",), "fmod": ("divide", "plain"), "remainder": ("divide", "plain"),
    "floor_divide": ("divide", "plain"), "addcmul": ("add", "add"), "addcdiv": ("divide", "add"),
    "lerp": ("add", "add"), "maximum": ("maximum",), "minimum": ("maximum",), "clamp_min": ("maximum",),
    "clamp_max": ("maximum",), "clamp": ("maximum", "maximum"), "floor": ("plain",), "ceil": ("plain",),
    "round": ("plain",), "trunc": ("plain",), "frac": ("plain",), "sign": ("plain",), "sgn": ("plain",),
    "logaddexp": ("log-add",), "hypot": ("square", "square", "add", "sqrt"), "special_entr": ("log", "add", "negate"),
    # exponentials and trigonometry
    "exp": ("exp",), "exp2": ("exp",), "expm1": ("exp", "add"), "log": ("log",), "log2": ("log", "scale"),
    "log10": ("log", "scale"), "log1p": ("add", "log"), "erf": ("erf",), "erfc": ("erf", "add"),
    "erfinv": ("log", "sqrt", "add", "sqrt", "add"), "sin": ("sine",), "cos": ("sine",),
    "tan": ("sine", "sine", "divide"), "asin": ("sine",), "acos": ("sine",), "atan": ("sine",),
    "atan2": ("sine", "divide"), "sinh": ("exp", "reciprocal", "add"), "cosh": ("exp", "reciprocal", "add"),
    "sinc": ("sine", "divide"), "xlogy": ("log", "add"), "logit": ("log", "divide"),
    "asinh": ("square", "add", "sqrt", "add", "log"), "acosh": ("square", "add", "sqrt", "add", "log"),
    "atanh": ("add", "divide", "log"), "logaddexp2": ("log-add", "scale"), "special_xlog1py": ("add", "log", "add"),
    "rad2deg": ("scale",), "deg2rad": ("scale",), "ldexp": ("exp", "add"), "linalg_cross": ("add", "add", "add"),
    # special functions: as many terms as the series of Cephes (Moshier) has for them; estimated
    "lgamma": (*("divide", "add") * 6, "log", "log", "add", "add"), "digamma": (*("divide", "add") * 8, "log", "add"),
    "polygamma": ("divide", "add", "add") * 8, "mvlgamma": (*("divide", "add") * 6, "log", "log", "add", "add"),
    "i0": ("add",) * 60 + ("exp",), "special_i1": ("add",) * 58 + ("exp",), "special_i0e": ("add",) * 60,
    "special_i1e": ("add",) * 58, "special_bessel_j0": (*("add",) * 32, "sqrt", "sine", "sine"),
    "special_bessel_j1": (*("add",) * 32, "sqrt", "sine", "sine"), "special_ndtri": (*("add",) * 32, "log", "sqrt"),
    "special_log_ndtr": ("erf", "log", "add"), "special_erfcx": (*("add",) * 14, "divide"),
    "igamma": ("divide", "add", "add") * 20, "igammac": ("divide", "add", "add") * 20,
    # comparisons and choices
    "eq": ("compare",), "ne": ("compare",), "lt": ("compare",), "le": ("compare",), "gt": ("compare",),
    "ge": ("compare",), "isnan": ("compare",), "isinf": ("compare",), "isposinf": ("compare",),
    "isneginf": ("compare",), "logical_and": ("compare",),
    "logical_or": ("compare",), "logical_not": ("compare",), "logical_xor": ("compare",),
    "bitwise_and": ("compare",), "bitwise_or": ("compare",), "bitwise_not": ("compare",),
    "bitwise_xor": ("compare",), "bitwise_left_shift": ("plain",), "bitwise_right_shift": ("plain",),
    "__lshift__": ("plain",), "__rshift__": ("plain",), "where": ("plain",), "masked_fill": ("plain",),
    "heaviside": ("plain",), "copysign": ("plain",), "signbit": ("compare",), "frexp": ("plain", "plain"),
    "fmin": ("maximum",), "fmax": ("maximum",),
    "gcd": ("plain",) * 16, "nan_to_num": ("plain",), "tril": ("plain",), "triu": ("plain",),
    # activations
    "tanh": ("tanh",), "sigmoid": ("sigmoid",), "silu": ("sigmoid", "add"), "elu": ("exp", "maximum"),
    "gelu": ("gelu",), "softplus": ("exp", "add", "log"), "mish": ("exp", "add", "log", "tanh", "add"),
    "hardswish": ("add", "maximum", "maximum", "add"), "hardsigmoid": ("add", "maximum", "maximum"),
    "hardtanh": ("maximum", "maximum"), "leaky_relu": ("scale", "maximum"),
    "_prelu_kernel": ("add", "maximum"), "log_sigmoid_forward": ("exp", "add", "log"),
    "threshold": ("plain",), "hardshrink": ("plain",), "softshrink": ("plain", "add"),
    "rrelu_with_noise": ("random", "scale", "maximum"), "glu": ("sigmoid", "add"), "celu": ("exp", "maximum"),
    # gradients of activations
    "silu_backward": ("sigmoid", "add", "add", "add"), "elu_backward": ("exp", "plain"),
    "gelu_backward": ("erf", "exp", "add", "add"), "softplus_backward": ("sigmoid", "add"),
    "mish_backward": ("exp", "log", "tanh", "sigmoid", "add", "add"), "hardswish_backward": ("plain", "add"),
    "hardsigmoid_backward": ("plain", "add"), "hardtanh_backward": ("plain", "add"),
    "leaky_relu_backward": ("plain", "add"), "_prelu_kernel_backward": ("plain", "add"),
    "log_sigmoid_backward": ("exp", "divide", "add"), "logit_backward": ("add", "divide"),
    "hardshrink_backward": ("plain",), "softshrink_backward": ("plain",),
    "rrelu_with_noise_backward": ("plain", "add"), "glu_backward": ("sigmoid", "add", "add", "add"),
    # random numbers
    "bernoulli": ("random",), "uniform": ("random",), "rand": ("random",), "rand_like": ("random",),
    "random": ("random",), "randint": ("random",), "randint_like": ("random",),
    "exponential": ("random", "log"), "normal": ("random", "random", "add"),
    "randn": ("random", "random", "add"), "randn_like": ("random", "random", "add"),
    "poisson": ("random", "log", "add", "compare") * 4, "_standard_gamma": ("random", "log", "sqrt", "add") * 2,
    "_standard_gamma_grad": ("divide", "add", "add") * 8,
}  # fmt: skip

# Ops whose result lies where the activation lies (their second argument), and which take three cycles a
# vector.
GRADIENTS_OF_NONLINEARITIES = ("threshold_backward", "sigmoid_backward", "tanh_backward")


@dataclass(frozen=True)
class Pointwise:
    """One element-wise op on `n` elements of the busiest tile.

    `ops` is the chain of `vertices.VECTOR_OPS` that is computed for each vector; `operands` how many tensors
    of the full size it reads, `moved` how many of those lie elsewhere and are exchanged first; `broadcast`
    whether a value for each channel takes part, instead of (or besides) full tensors.
    """

    n: float
    element: Element
    ops: tuple[str, ...]
    operands: int = 1
    moved: int = 0
    broadcast: bool = False
    in_place: bool = False


def pointwise(device: Device, op: Pointwise) -> Work:
    """Return the work of an element-wise op."""
    cycles = Cycles(compute=_compute(device, op))
    if op.moved:
        cycles = cycles + device.exchange(op.moved * op.n * op.element.bytes)
    if op.broadcast:
        # A tile holds few channels of a tensor; their values are sent to all tiles that hold one of them.
        cycles = cycles + device.exchange(0.0)
    temporary = op.moved * op.n * op.element.bytes
    return Work("elementwise", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=op.n)


def _compute(device: Device, op: Pointwise) -> float:
    if op.broadcast and op.operands <= 1 and len(op.ops) == 1:
        return vertices.broadcast_vector(device, op.n, op.element)
    if op.operands >= 2:
        overheads = vertices.BINARY_IN_PLACE if op.in_place else vertices.BINARY
    else:
        overheads = vertices.UNARY_IN_PLACE if op.in_place else vertices.UNARY
    extra = max(0, op.operands - 2)
    return vertices.elementwise(device, op.n, op.element, op.ops, overheads, extra)


def relu(device: Device, n: float, element: Element) -> Work:
    """Return the work of a rectifier in place."""
    compute = vertices.elementwise(device, n, element, ("relu",), vertices.RELU)
    return Work("elementwise", Cycles(compute=compute), outputs_on_busiest_tile=n)


def nonlinearity_gradient(device: Device, n: float, element: Element, *, moved: int = 1) -> Work:
    """Return the work of the gradient of a rectifier, sigmoid or tanh: three thread cycles a vector.

    The incoming gradient has another layout than the activation (`moved` = 1) or the same.
    """
    compute = vertices.elementwise(device, n, element, ("add",), vertices.NONLINEARITY_GRADIENT)
    cycles = Cycles(compute=compute)
    if moved:
        cycles = cycles + device.exchange(moved * n * element.bytes)
    temporary = moved * n * element.bytes
    return Work("elementwise", cycles, temporary_bytes=temporary, outputs_on_busiest_tile=n)


def cost_pointwise(op: OpView) -> OpWork:
    """Cost an element-wise op by its chain in `CHAINS`."""
    if _scales_a_mask(op):
        return OpWork((), (op.needed(0).layout,))
    return op.takes(*chained(op, _simplified(op, CHAINS[op.kind])))


def cost_power(op: OpView) -> OpWork:
    """Cost a power: small whole exponents are multiplications, halves are roots."""
    exponent = op.argument(1)
    special: dict[object, tuple[str, ...]] = {
        1: ("copy",), 2: ("square",), 3: ("square", "add"), 4: ("square", "square"), 0.5: ("sqrt",),
        -0.5: ("rsqrt",), -1: ("reciprocal",), -2: ("square", "reciprocal"), 0: ("copy",),
    }  # fmt: skip
    number = exponent if isinstance(exponent, (int, float)) else None
    chain = ("power",) if number is None else special.get(number, ("power",))
    return op.takes(*chained(op, chain))


def cost_relu(op: OpView) -> OpWork:
    """Cost a rectifier, which the device computes in place."""
    source = op.needed(0)
    return op.takes(relu(op.device, source.on_tile, op.element), source.layout)


def cost_nonlinearity_gradient(op: OpView) -> OpWork:
    """Cost a gradient that lies where its activation lies; the incoming gradient is brought there."""
    gradient, activation = op.needed(0), op.needed(1)
    moved = int(gradient.layout.origin != activation.layout.origin)
    work = nonlinearity_gradient(op.device, activation.on_tile, op.element, moved=moved)
    return op.takes(work, activation.layout)


def _scales_a_mask(op: OpView) -> bool:
    """Whether it divides the mask of a dropout, in place: poprand's vertex draws a mask that is scaled already."""
    if op.kind != "div" or not op.in_place or op.tensor(1) is not None:
        return False
    maker = op.step.producer(op.needed(0).tensor.name)
    return maker is not None and maker.kind == "bernoulli"


def _simplified(op: OpView, chain: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the device computes when an operand is a number: a scaling is cheaper than a division."""
    by_number = op.tensor(1) is None or op.needed(1).shape == ()
    if op.kind in ("mul", "div") and by_number:
        return ("scale",)
    if op.kind == "gelu" and op.argument(1, "approximate") == "tanh":
        return ("square", "scale", "add", "tanh", "add")
    if op.kind == "gelu_backward" and op.argument(2, "approximate") == "tanh":
        return ("square", "tanh", "add", "square", "add", "add", "add")
    return chain


def chained(op: OpView, chain: tuple[str, ...]) -> tuple[Work, Layout]:
    """Return the work of a chain and where its result lies; operands that lie elsewhere are brought there."""
    elements = max([op.output().elements, *(o.elements for o in op.operands())])
    full = [o for o in op.operands() if o.stored == elements and o.elements == elements]
    layout = _layout(op, full, elements)
    moved = sum(o.layout.origin != layout.origin for o in full)
    smaller = [o for o in op.operands() if o.stored < elements and o.shape != ()]
    kinds = [o.element for o in full] or [op.element]
    element = max(kinds, key=lambda kind: kind.bytes) if op.element is Element.BYTE else op.element
    work = pointwise(op.device, Pointwise(
        n=layout.on_tile, element=element, ops=chain, operands=max(1, len(full)), moved=moved,
        broadcast=bool(smaller), in_place=op.in_place,
    ))  # fmt: skip
    return work, layout


def _layout(op: OpView, full: list[Operand], elements: int) -> Layout:
    """Return where the result lies: in place, else like the operand that is spread best, else evenly."""
    if not full:
        even = op.device.spread(elements, op.element)
        return Layout(float(even), op.output().name)
    if op.in_place:
        return full[0].layout
    return min((o.layout for o in full), key=lambda layout: layout.on_tile)


RULES = (
    Rule(tuple(CHAINS), cost_pointwise),
    Rule(GRADIENTS_OF_NONLINEARITIES, cost_nonlinearity_gradient),
    Rule(("relu",), cost_relu),
    Rule(("pow",), cost_power),
)
