"""What forward says about its ops while values stay as they are: hints, losses, names, attributes, prints, `MultiConv`.

While a model is traced it is noted on the ops; on the CPU all of this does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import astuple
from operator import attrgetter, getitem
from typing import Any

import torch
import torch.fx
from torch import Tensor
from typing_extensions import Self

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.recurrent_layers import LAYER_OPS
from ipu_model.capture.graph import Printed, mark
from ipu_model.capture.torch_private import switched
from ipu_model.compute.printing import PrintLayout
from ipu_model.errors import require
from ipu_model.step import MultiConvolution, Serialisation
from poptorch._impl import PARTIALS
from poptorch._options_impl import check_type
from poptorch._utils import same_sequence
from poptorch.enums import MatMulSerializationMode, MultiConvPlanType
from poptorch.ops._tracing import Body, as_list, check, require_tensor

aten = torch.ops.aten


def _overloads(names: str) -> frozenset[Any]:
    """Find ops of aten; one without an overload's name has only a default."""
    return frozenset(attrgetter(name if "." in name else f"{name}.default")(aten) for name in names.split())


_PRODUCTS = _overloads("mm addmm bmm baddbmm dot mv addmv")
_IN_PLACE_OR_NOT = "scatter{0}.src scatter{0}.value scatter_add{0} index_put{0} index_add{0}"
# The ops that plan their temporary memory: these, and the matrix products.
_PLANNED = _PRODUCTS.union(
    _overloads("convolution embedding index_select gather index.Tensor"),
    *(_overloads(_IN_PLACE_OR_NOT.format(suffix)) for suffix in ("", "_")),
    (ops.forward for ops in LAYER_OPS.values()),
)

# What torch puts between such an op and the tensor that the program sees: bias additions, reshapes, casts, choices
# among several results.
_WRAPPERS = {getitem} | _overloads(
    "add.Tensor add_.Tensor view _unsafe_view clone permute transpose.int t squeeze.dim unsqueeze expand _to_copy alias"
)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these tensors between forward and backward when activations are recomputed; return them.

    One tensor comes back as that tensor, several as a tuple, a list or tuple of tensors as the same kind of
    container. In a model, only what is computed with the returned tensors counts: a mark that nothing uses is dropped.
    Raises `ValueError` for anything that is not a tensor.
    """
    kept = tensors[0] if len(tensors) == 1 else tensors
    container = kept if isinstance(kept, (list, tuple)) else [kept]
    if not all(isinstance(tensor, torch.Tensor) for tensor in container):
        raise ValueError(
            "poptorch.recomputationCheckpoint: inputs must be tensors, or one list or tuple of tensors; "
            f"got {[type(item).__name__ for item in container]}."
        )
    trace = tracing.current()
    if trace is None or not container or not _are_checkpoints_noted.get():
        return kept
    # An op of its own carries the mark until the trace is cleaned up.
    marked = [tensor if trace.node_of(tensor) is None else aten.alias.default(tensor) for tensor in container]
    for before, after in zip(container, marked):
        if after is not before:
            trace.hint(after, recomputation_checkpoint=True)
    return same_sequence(kept, marked) if isinstance(kept, (list, tuple)) else marked[0]


_are_checkpoints_noted: ContextVar[bool] = ContextVar("are_checkpoints_noted", default=True)


def checkpoints_noted(noted: bool = True) -> AbstractContextManager[None]:
    """Capture a model with its own recomputation checkpoints, or without them if they are not to be noted."""
    return switched(_are_checkpoints_noted.get, _are_checkpoints_noted.set, noted)


def nop(tensor: Tensor) -> Tensor:
    """Return `tensor` through an op of its own, which graph optimisation leaves in place."""
    require_tensor("poptorch.nop", tensor)
    trace = tracing.current()
    if trace is not None:
        tensor = tensor.clone()
        trace.hint(tensor, is_nop=True)
    return tensor


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Limit the share of tile memory that the op computing `tensor` uses for temporary data; return `tensor`.

    Meant for convolutions, matrix products, embeddings, gathers, scatters and recurrent layers; behind a bias addition
    or a reshape the op is found by itself.
    """
    require_tensor("poptorch.set_available_memory", tensor)
    _hint_producer(tensor, _PLANNED, available_memory_proportion=available_memory_proportion)
    return tensor


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    """Return `torch.matmul(lhs, rhs)`, computed on the device in `factor` slices along one dimension.

    Of `[m, n] x [n, p]`: `InputChannels` slices m, `ReducingDim` n, `OutputChannels` p, `Disabled` none. Raises
    `AssertionError` for other types; when traced, `poptorch.Error` for a factor that does not divide the dimension.
    """
    check_type("keep_precision", keep_precision, bool)
    check_type("factor", factor, int)
    check_type("mode", mode, MatMulSerializationMode)
    if tracing.is_tracing() and mode is not MatMulSerializationMode.Disabled:
        length = {
            MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
            MatMulSerializationMode.ReducingDim: lhs.shape[-1],
            MatMulSerializationMode.OutputChannels: rhs.shape[-1] if rhs.dim() > 1 else 1,
        }[mode]
        check(
            factor >= 1 and length % factor == 0,
            f"poptorch.serializedMatMul: factor {factor} does not divide the dimension of {mode.name}, "
            f"which has {length} elements ({list(lhs.shape)} x {list(rhs.shape)}). Use a divisor of "
            f"{length}, or MatMulSerializationMode.Disabled.",
        )
    product = torch.matmul(lhs, rhs)
    _hint_producer(product, _PRODUCTS, serialisation=Serialisation(mode.value, factor, keep_precision))
    return product


def _hint_producer(tensor: Tensor, wanted: frozenset[Any], **marks: Any) -> None:
    """Note a hint on the `wanted` op that `tensor` comes from, else on the op that computes `tensor`."""
    trace = tracing.current()
    if trace is not None and (node := trace.node_of(tensor)) is not None:
        mark(_wanted_producer(node, wanted, 2) or node, **marks)


def _wanted_producer(node: torch.fx.Node, wanted: frozenset[Any], steps: int) -> torch.fx.Node | None:
    if node.target in wanted:
        return node
    if steps == 0 or node.target not in _WRAPPERS:
        return None
    producers = (_wanted_producer(source, wanted, steps - 1) for source in node.all_input_nodes)
    return next((producer for producer in producers if producer is not None), None)


class _Entered:
    """Something whose body is a part of `forward`; it can be entered several times, one within another."""

    def __enter__(self) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.entered.append((self, Body.begin(trace)))

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        _leave(lambda scope: scope is self)

    def _note(self, body: Body) -> None:
        raise NotImplementedError


def _leave(is_meant: Callable[[_Entered], bool], *, is_noted: bool = True) -> None:
    """Leave what was entered last of what is meant, if there is any."""
    trace = tracing.current()
    entered = [] if trace is None else trace.entered
    for index, (scope, body) in reversed(list(enumerate(entered))):
        if is_meant(scope):
            del entered[index]
            if is_noted:
                scope._note(body)
            return


class NameScope(_Entered):
    """Put `name/` in front of the names of the ops in the body; scopes nest."""

    def __init__(self, name: str) -> None:
        require(isinstance(name, str), f"A name scope must be a string; got {name!r}.")
        self.name = name

    def _note(self, body: Body) -> None:
        body.trace.name_scope(body.ops(), self.name)


class Attribute(_Entered):
    """Attach `{key: value}` strings to named graph attributes of the ops in the body.

    Practically `Attribute(__outline={"layer": "name"})`, which steers the outlining of repeated layers. An inner value
    of a key hides the outer one until its body ends. Programs also enter and leave it from module hooks.
    """

    def __init__(self, **kwargs: dict[str, str]) -> None:
        self._attributes = {name: dict(pairs) for name, pairs in kwargs.items()}

    def _note(self, body: Body) -> None:
        body.trace.set_attributes(body.ops(), self._attributes)


def push_name_scope(name: str) -> None:
    """Put `name/` in front of the names of the following ops, until `pop_name_scope`."""
    NameScope(name).__enter__()


def pop_name_scope() -> None:
    """End the innermost scope of `push_name_scope`; do nothing if there is none."""
    _leave(lambda scope: isinstance(scope, NameScope))


def set_attribute(attribute: str, key: str, value: str) -> None:
    """Give the following ops an entry of a graph attribute, until `clear_attribute`."""
    message = f"An attribute, its key and its value must be strings; got {attribute!r}, {key!r} and {value!r}."
    require(all(isinstance(text, str) for text in (attribute, key, value)), message)
    Attribute(**{attribute: {key: value}}).__enter__()


def clear_attribute(attribute: str, key: str) -> None:
    """End the latest `set_attribute` of an entry; do nothing if there is none."""
    _leave(lambda scope: isinstance(scope, Attribute) and key in scope._attributes.get(attribute, {}))


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Return the `"sum"` or `"mean"` of `x` (0-dim), or with `"none"` a copy of it, marked as a loss.

    Back-propagation starts from the marked value, with ones, unless another marked value is computed from it. Raises
    `AssertionError` for other reductions, and if `x` is no tensor.
    """
    require(isinstance(x, torch.Tensor), f"identity_loss takes a torch.Tensor, not {type(x)}.")
    message = f"Unsupported reduction type! identity_loss takes 'sum', 'mean' or 'none'; got {reduction!r}."
    require(reduction in ("sum", "mean", "none"), message)
    result = x.clone() if reduction == "none" else x.sum() if reduction == "sum" else x.mean()
    trace = tracing.current()
    if trace is not None:
        trace.loss_marks.append(result)
    return result


_FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


def ipu_print_tensor(
    tensor: Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> Tensor:
    """Return `tensor`, and print it in every micro-batch that computes it; use what is returned, or nothing prints.

    The device writes to stderr: `title: (...)`, and in training with `print_gradient` the gradient of the loss under
    the title with `_gradient` added. Without a title the name of the tensor (`getTensorNames`) stands there. On the
    CPU nothing is printed.

    `summarise_threshold` is the most elements that are printed in full (0: all), `edge_items` how many of each end are
    left otherwise, `max_line_width` 0 breaks no line. `digits` are significant digits; 0 does not align columns.
    `float_format` is "auto", "fixed", "scientific" or "none". Of `separator` and brackets the first character counts.
    Raises `KeyError` for another `float_format`, `poptorch.Error` for a count that is no whole number from 0 on.
    """
    require_tensor("poptorch.ipu_print_tensor", tensor)
    if float_format not in _FLOAT_FORMATS:
        raise KeyError(f"float_format {float_format!r}: use one of {', '.join(_FLOAT_FORMATS)}")
    marks = (separator[:1], open_bracket[:1], close_bracket[:1])
    layout = PrintLayout(summarise_threshold, edge_items, max_line_width, digits, float_format, *marks)
    for name in ("summarise_threshold", "edge_items", "max_line_width", "digits"):
        count: object = getattr(layout, name)
        fits = isinstance(count, int) and count >= 0
        check(fits, f"poptorch.ipu_print_tensor: {name} must be a whole number from 0 on, not {count!r}.")
    if tracing.current() is None:
        return tensor
    printed = Printed(str(title), astuple(layout))
    if print_gradient and tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = _PrintedWithGradient.apply(tensor, printed)
        return result
    return _noted(tensor.clone(), printed)


class _PrintedWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, printed: Printed) -> Tensor:
        result = _noted(tensor.clone(), printed)
        trace = tracing.current()
        node = trace.node_of(result) if trace is not None else None
        title = printed.title and f"{printed.title}_gradient"
        ctx.printed = Printed(title, printed.layout, gradient_of=node.name if node is not None else "")
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _noted(gradients[0].clone(), ctx.printed), None


def _noted(copy: Tensor, printed: Printed) -> Tensor:
    trace = tracing.current()
    if trace is not None:
        trace.hint(copy, printed=printed)
    return copy


class MultiConv(_Entered):
    """Compute the convolutions of the `with` body as one; their results stay those of separate ones.

    Other ops in the body are allowed. Setters return the object; a single value goes for all convolutions. When traced,
    raises `poptorch.Error` for a body without convolution, a body inside another, and a list of settings whose length
    is not the number of convolutions. Setters raise `ValueError` for other partials types and for dithering that is no
    bool, else `AssertionError` for other types.
    """

    def __init__(self) -> None:
        # By the names of the engine's hints: one value for each convolution, or one for all.
        self._settings: dict[str, list[Any]] = {}

    def availableMemoryProportions(self, value: float | Sequence[float] | None) -> Self:
        """Set the share of tile memory for temporary data: a float, one per convolution, or `None`."""
        values = as_list(value)
        require(
            value is None or (values and all(isinstance(item, float) and 0 <= item <= 1 for item in values)),
            "Invalid available memory proportion! It must be a float from 0 to 1, a list of such floats or None; got "
            f"{value!r}.",
        )
        return self._set("available_memory_proportion", value)

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> Self:
        """Set the accumulator types: `torch.float` or `torch.half`, or one per convolution."""
        values = as_list(value)
        names = [PARTIALS[item] for item in values if isinstance(item, torch.dtype) and item in PARTIALS]
        if not values or len(names) < len(values):
            raise ValueError(
                f"Invalid partials types: they are torch.float or torch.half, or a list of these; got {value!r}."
            )
        return self._set("partials_type", names)

    def planType(self, value: MultiConvPlanType | None) -> Self:
        """Set whether the convolutions run side by side or one after another; `None` leaves it open."""
        message = f"Invalid plan type! It must be a poptorch.MultiConvPlanType or None; got {value!r}."
        require(value is None or isinstance(value, MultiConvPlanType), message)
        return self._set("plan_type", None if value is None else value.name.lower())

    def perConvReservedTiles(self, value: int) -> Self:
        """Set how many tiles each convolution gets at least."""
        given: object = value
        require(
            isinstance(given, int) and given >= 0,
            f"Invalid number of reserved tiles! It must be an int, 0 or more; got {value!r}.",
        )
        return self._set("per_conv_reserved_tiles", value)

    def cycleBackOff(self, value: float) -> Self:
        """Set how far a plan may be from the fastest one, a float."""
        given: object = value
        require(
            isinstance(given, float) and 0 <= given < math.inf,
            f"Invalid cycle back-off! It must be a float, 0 or more; got {value!r}.",
        )
        return self._set("cycle_back_off", value)

    def enableConvDithering(self, value: bool | Sequence[bool] | None) -> Self:
        """Choose whether convolutions start on different tiles: a bool, one per convolution, or `None`."""
        if value is not None and not all(isinstance(item, bool) for item in as_list(value)):
            raise ValueError(f"Convolution dithering must be bool or list of bools; got {value!r}.")
        return self._set("conv_dithering", value)

    def __enter__(self) -> None:
        trace = tracing.current()
        is_nested = trace is not None and any(isinstance(scope, MultiConv) for scope, _ in trace.entered)
        nested = "Nested poptorch.MultiConv operations are not supported."
        check(not is_nested, f"{nested} End one `with` body before the next one begins.")
        super().__enter__()

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        _leave(lambda scope: scope is self, is_noted=type is None)

    def _note(self, body: Body) -> None:
        """Write the settings onto the convolutions of the body; `group` names the first of them."""
        convolutions = [node for node in body.ops() if node.target == torch.ops.aten.convolution.default]
        check(
            convolutions,
            "Unexpected end_multi_conv: the body of poptorch.MultiConv holds no convolution. Remove the context, or "
            "move the convolutions into it.",
        )
        count = len(convolutions)
        for name, values in self._settings.items():
            given = f"{len(values)} values of {name} were set for {count} convolutions"
            check(len(values) in (1, count), f"poptorch.MultiConv: {given}. Give one value, or one for each.")
        for index, node in enumerate(convolutions):
            own: dict[str, Any] = {name: values[index % len(values)] for name, values in self._settings.items()}
            mark(node, multi_convolution=MultiConvolution(convolutions[0].name, count, **own))

    def _set(self, name: str, value: Any) -> Self:
        self._settings.pop(name, None)
        if value is not None:
            self._settings[name] = as_list(value)
        return self
