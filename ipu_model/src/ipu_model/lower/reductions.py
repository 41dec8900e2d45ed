"""Rules for reductions and what is made of them: norms, softmax and losses."""

from __future__ import annotations

from ipu_model.cost import embedding, normalisation, reduction, softmax
from ipu_model.cost.elementwise import Pointwise, pointwise
from ipu_model.cost.normalisation import Normalised
from ipu_model.lower.view import Operand, OpView, Part, Result, Rule, result

# Reductions -> the chain of vector operations on each element before it is added up.
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "sum": (), "mean": (), "amax": (), "amin": (), "max": (), "min": (), "prod": (), "any": (), "all": (),
    "nansum": ("plain",), "logsumexp": ("add", "exp"), "linalg_vector_norm": ("square",), "norm": ("square",),
    "var": ("add", "square"), "std": ("add", "square"), "var_mean": ("add", "square"),
    "std_mean": ("add", "square"), "count_nonzero": ("compare",), "trace": (), "aminmax": (),
    "_adaptive_avg_pool2d": (), "_adaptive_avg_pool3d": (), "dist": ("add", "square"),
}  # fmt: skip

_ORDERED = (
    "sort", "topk", "argsort", "kthvalue", "median", "mode", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
)  # fmt: skip

# A weight and its length along some dimensions -> the weight in that direction; and its two gradients. The
# operations on each element before the reduction and after it.
_WEIGHT_NORMS = {"_weight_norm_interface": (("square",), ("scale",)),
                 "_weight_norm_interface_backward": (("add",), ("scale", "scale", "add"))}  # fmt: skip


def rules() -> dict[str, Rule]:
    """Return the rule of each reduction, norm, softmax and loss."""
    found: dict[str, Rule] = dict.fromkeys(REDUCTIONS, lower_reduction)
    found |= dict.fromkeys(("argmax", "argmin"), lower_arg) | dict.fromkeys(_ORDERED, lower_ordered)
    norms = ("native_batch_norm", "native_group_norm", "native_layer_norm")
    found |= dict.fromkeys(norms, lower_norm) | dict.fromkeys(_WEIGHT_NORMS, lower_weight_norm)
    found |= dict.fromkeys((f"{name}_backward" for name in norms), lower_norm_gradient)
    found |= dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), lower_softmax)
    found |= dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), lower_softmax_gradient)
    found |= dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), lower_loss)
    found |= dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), lower_loss_gradient)
    return found


def lower_reduction(op: OpView) -> Result:
    """Cost a reduction over some or all dimensions; one over nothing is a copy."""
    source = op.needed(0)
    other = op.tensor(1)
    if op.name in ("max", "min") and other is not None:
        return _larger_of(op, source, other)
    elements, n = source.elements, source.on_tile
    work = reduction.reduced(op.device, elements, n, op.output().elements, source.element)
    chain = REDUCTIONS[op.name]
    if chain:
        work = work.plus(pointwise(op.device, Pointwise(n=n, element=source.element, ops=chain)).cycles)
    if len(op.outputs) > 1 and op.name in ("max", "min"):
        work = work.plus(reduction.arg_reduced(op.device, n, op.output().elements).cycles)
    return result(op, work)


def _larger_of(op: OpView, left: Operand, right: Operand) -> Result:
    layout = min((left.layout, right.layout), key=lambda layout: layout.on_tile)
    moved = int(left.layout.origin != right.layout.origin)
    chain = Pointwise(n=layout.on_tile, element=op.element, ops=("maximum",), operands=2, moved=moved)
    return result(op, pointwise(op.device, chain), layout)


def lower_arg(op: OpView) -> Result:
    """Cost finding the places of maxima or minima."""
    return result(op, reduction.arg_reduced(op.device, op.needed(0).on_tile, op.output().elements))


def lower_ordered(op: OpView) -> Result:
    """Cost sorting (or scanning) along a dimension."""
    source = op.needed(0)
    dim = op.argument(2 if op.name in ("topk", "kthvalue") else 1, "dim", -1)
    shape = source.shape or (1,)
    length = shape[dim if isinstance(dim, int) else -1]
    rows = source.elements // max(1, length)
    return result(op, embedding.ordered(op.device, source.elements, source.on_tile, rows, source.element))


# ------------------------------------------------------------------------------------------- norms


def lower_norm(op: OpView) -> Result:
    """Cost a norm: with the statistics of the micro-batch, or with kept ones (batch norm in inference)."""
    source = op.needed(0)
    norm = _normalised(op, source)
    if op.name == "native_batch_norm" and not op.argument(5):
        work = normalisation.inference(op.device, norm)
    else:
        work = normalisation.forward(op.device, norm, running=_keeps_averages(op))
    return result(op, work, source.layout)


def lower_weight_norm(op: OpView) -> Result:
    """Cost `v * g / |v|`, or its gradients: one reduction to `g`'s shape, the rest is element by element."""
    direction, length = op.needed(int(op.is_backward)), op.needed(1 + int(op.is_backward))
    elements, n = direction.elements, direction.on_tile
    work = reduction.reduced(op.device, elements, n, length.elements, direction.element)
    for chain in _WEIGHT_NORMS[op.name]:
        step = Pointwise(n=n, element=direction.element, ops=chain, operands=1 + int(op.is_backward))
        work = work.plus(pointwise(op.device, step).cycles)
    return result(op, work, direction.layout)


def _keeps_averages(op: OpView) -> bool:
    return op.name == "native_batch_norm" and op.tensor(3) is not None


def lower_norm_gradient(op: OpView) -> Result:
    """Cost the gradients of a norm's input, scale and shift."""
    source = op.needed(1)
    work = normalisation.backward(op.device, _normalised(op, source))
    found = result(op, work, source.layout)
    return found if op.outputs[0] is not None else Result(found.parts, (None, *found.layouts[1:]))


def _normalised(op: OpView, source: Operand) -> Normalised:
    """Return what is normalised: the number of statistics is that of the saved means."""
    shape = source.shape
    if "batch_norm" in op.name:
        statistics = shape[1]
    elif "group_norm" in op.name:
        position = 7 if op.is_backward else 6
        statistics = shape[0] * int(op.argument(position, "group"))
    else:
        normal = op.argument(2 if op.name.endswith("backward") else 1)
        statistics = source.elements
        for size in normal:
            statistics //= size
    return Normalised(
        elements=source.elements, n=source.on_tile, statistics=statistics, element=source.element,
        stable=op.settings.stable_norm,
    )  # fmt: skip


# ------------------------------------------------------------------------------ softmax and losses


def lower_softmax(op: OpView) -> Result:
    """Cost a softmax or its logarithm along one dimension."""
    source = op.needed(0)
    rows = _rows(source, op.argument(1, "dim", -1))
    work = softmax.softmax(
        op.device,
        source.elements,
        source.on_tile,
        rows,
        source.element,
        logarithm="log" in op.name,
    )
    return result(op, work, source.layout)


def lower_softmax_gradient(op: OpView) -> Result:
    """Cost the gradient of a softmax."""
    output = op.needed(1)
    rows = _rows(output, op.argument(2, "dim", -1))
    work = softmax.softmax_gradient(op.device, output.elements, output.on_tile, rows, output.element)
    return result(op, work, output.layout)


def lower_loss(op: OpView) -> Result:
    """Cost the negative log likelihood of integer targets."""
    source, target = op.needed(0), op.needed(1)
    work = softmax.negative_log_likelihood(op.device, source.elements, source.on_tile, target.elements, source.element)
    return result(op, work)


def lower_loss_gradient(op: OpView) -> Result:
    """Cost the gradient of the negative log likelihood."""
    source, target = op.needed(1), op.needed(2)
    work = softmax.negative_log_likelihood_gradient(op.device, source.on_tile, target.elements, source.element)
    return Result((Part(work),), (source.layout,))


def _rows(source: Operand, dim: int) -> int:
    shape = source.shape or (1,)
    return source.elements // max(1, shape[dim])
