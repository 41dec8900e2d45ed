"""Record every aten op of a forward and backward pass, on fake tensors, straight into an `fx.Graph`."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from ipu_model.capture import graph as graphs
from ipu_model.capture import torch_private
from ipu_model.capture.device_tensors import IPU, DeviceTensor, KeptTensor, become
from ipu_model.capture.graph import NodeInfo, TensorSpec, is_random, set_info, spec_of
from ipu_model.capture.operators import has_handler, kind_of
from ipu_model.capture.torch_private import FakeTensor, TorchDispatchMode, modes_disabled
from ipu_model.capture.tracing import Trace
from ipu_model.capture.variables import Origins, device_dtype, fake_like, storage_key
from ipu_model.errors import Error
from ipu_model.process import deliver_interrupt
from ipu_model.source_lines import line_running
from ipu_model.step import NOWHERE, Phase

Node = torch.fx.Node
aten = torch.ops.aten

# Queries: like profiler brackets, they compute nothing and must not reach the graph.
_NOT_RECORDED = frozenset({torch.ops.prim.device.default, aten.sym_size.int})

# What constructors such as torch.tensor(...) and torch.LongTensor(...) end in, with a real tensor of the values.
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default})

# PyTorch refuses some of them only when it computes, so not with fake tensors.
_SUBTRACTIONS = frozenset(
    getattr(op, overload) for op in (aten.sub, aten.sub_, aten.rsub) for overload in ("Tensor", "Scalar")
)

_IS_TRAINING = 5  # which argument of `graphs.BATCH_NORM` it is

# tensor.random_(low, high). Its name is a word of Python, so no line of a graph's code can call it.
_RANDOM_BETWEEN = getattr(aten.random_, "from")

_MASKS = (torch.bool, torch.uint8)


class Recorder(TorchDispatchMode):
    """Appends ops to `trace.nodes`, inside a `FakeTensorMode`; keeps tensors alive, as nodes are found by identity."""

    def __init__(self, trace: Trace, origins: Origins) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.trace = trace
        self.origins = origins
        self.graph = trace.nodes
        self.constants: dict[str, Tensor] = {}
        self.draws_random_numbers = False
        self.unsupported: list[Node] = []
        self.settled: list[Node] = []  # whose values were read while recording: ops may depend on them
        self._bound: dict[int, tuple[Tensor, Node]] = {}  # by identity
        # By identity: the real tensor, which version of it (a constant has one only) the fake stands for, and the fake.
        self._stand_ins: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.constant_names: dict[int, str] = {}  # of tensors of the module that forward uses, by identity
        # By memory: the real tensor that owns it, and the fake that the device writes to.
        self._on_device: dict[int, tuple[Tensor, Tensor]] = {}
        self._changeable: set[str] = set()
        self._where: dict[int, NodeInfo] = {}
        self._forward_ops = 0
        trace.node_of = lambda tensor: self._bound.get(id(tensor), (tensor, None))[1]

    def bind(self, tensor: Tensor, node: Node, where: NodeInfo = graphs.NOTHING) -> None:
        self._bound[id(tensor)] = tensor, node
        if type(tensor) is FakeTensor:
            become(DeviceTensor, [tensor])
        set_info(node, replace(where, spec=TensorSpec.of(tensor)))

    def placeholder(self, name: str, tensor: Tensor) -> None:
        self.bind(tensor, self.graph.placeholder(name))

    def node_for(self, tensor: Tensor) -> Node:
        node = self.trace.node_of(tensor)
        if node is None:
            raise Error(
                "A tensor of this trace was made where the recorder could not see it (for instance in another thread, "
                "or by an earlier call). Compute it inside forward, in the thread that calls the model."
            )
        return node

    def on_device(self, value: Any) -> Any:
        """Return the stand-in of a real tensor that the device writes to; return anything else unchanged."""
        real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
        return self._stand_in(value) if real and storage_key(value) in self._on_device else value

    def release(self) -> None:
        """End the trace: its tensors have no values, and host tensors that it wrote to leave its autograd graph."""
        become(KeptTensor, [tensor for tensor, _ in self._bound.values()])
        for tensor, _ in self._on_device.values():
            if tensor.grad_fn is not None:
                tensor.detach_()

    def differentiable(self) -> list[Tensor]:
        # To ask for a gradient can record ops: PyTorch replays how a view came about after a change in place.
        return [tensor for tensor, _ in list(self._bound.values()) if _has_gradient(tensor)]

    def _stand_in(self, tensor: Tensor) -> Tensor:
        """Return a fake for a real tensor: a constant with its present value, as an op in place would change it."""
        if isinstance(tensor, FakeTensor):
            return tensor
        base = self._on_device.get(storage_key(tensor))
        if base is not None:
            where = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
            return base[1] if base[0] is tensor else self._recorded(aten.as_strided.default, base[1], *where)
        known = self._stand_ins.get(id(tensor))
        if known is not None and (known[1] == _version(tensor) or self.origins.is_constant(tensor)):
            return known[2]
        with modes_disabled():
            value = tensor.detach().to_dense().to(device_dtype(tensor.dtype), copy=True)
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        with self.graph.inserting_before(self.first_op()):
            node = self.graph.get_attr(name)
        self.bind(fake, node)
        self._stand_ins[id(tensor)] = tensor, _version(tensor), fake
        self.constant_names[id(tensor)] = name
        if self.origins.is_constant(tensor) or self.origins.is_held(tensor):
            self._changeable.add(name)
        return fake

    def _move_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Move the memory of each host tensor that an op of the device writes to: its views follow the writes."""
        for tensor in graphs.written_by(func, args, kwargs):
            if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor):
                continue
            key = storage_key(tensor)
            if key not in self._on_device and not self.origins.is_constant(tensor):
                whole = tensor if tensor._base is None else tensor._base
                self._on_device[key] = whole, self._stand_in(whole)

    def _stays_on_host(self, func: Any, tensors: list[Tensor]) -> bool:
        """Whether an op has only tensors that never reached the device; random draws on the model's own go there."""
        if func in _LIFTS:
            # Only constructors that are torch functions make tensors of the device: not torch.LongTensor.
            return not self.trace.in_torch_function
        real = [tensor for tensor in tensors if not isinstance(tensor, FakeTensor)]
        strangers = [tensor for tensor in real if self.origins.is_stranger(tensor)]
        anything_there = len(real) < len(tensors) or any(
            self.origins.is_constant(tensor) or storage_key(tensor) in self._on_device for tensor in real
        )
        if strangers:
            if anything_there or self.origins.weight(strangers[0]):
                raise self.origins.refuse(strangers[0], self.trace.scopes[-1])
            return True
        runs_there = torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten"
        return not anything_there and not runs_there

    def _known(self, tensors: list[Tensor]) -> list[Tensor] | None:
        nodes = [self.node_for(tensor) for tensor in tensors]
        values = known_values(nodes, self.constants, self._changeable)
        self.settled += nodes if values is not None else []
        return values

    def _settled(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        if torch.Tag.dynamic_output_shape not in func.tags and torch.Tag.data_dependent_output not in func.tags:
            return None
        leaves, structure = tree_flatten((args, kwargs))
        values = self._known([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        if values is None:
            return None
        known = iter(values)
        with modes_disabled():
            args, kwargs = structure.unflatten([next(known) if isinstance(x, Tensor) else x for x in leaves])
            result = func(*args, **kwargs)
        return (tree_map_only(Tensor, self._stand_in, result),)

    def _places(self, mask: Tensor) -> list[Tensor] | None:
        known = self._known([mask])
        if known is None:
            return None
        with modes_disabled():
            places = torch.nonzero(known[0], as_tuple=True)
        return [self._stand_in(index) for index in places]

    def _without_masks(self, func: Any, args: Any) -> Any:
        if func is not aten.index.Tensor:
            return args
        indices: list[Tensor | None] = []
        for index in args[1]:
            is_mask = isinstance(index, Tensor) and index.dtype in _MASKS
            places = self._places(index) if is_mask else None
            indices += [index] if places is None else places
        return args[0], indices

    def _selected(self, tensor: Tensor, mask: Tensor) -> Tensor | None:
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        indices = self._places(self._recorded(aten.expand.default, mask, shape))
        if indices is None:
            return None
        return self._recorded(aten.index.Tensor, self._recorded(aten.expand.default, tensor, shape), indices)

    def _as_on_device(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of an op with the types that the device has, and without what its model cannot do."""
        if func is not aten.view.dtype:
            args, kwargs = tree_map_only(torch.dtype, device_dtype, (args, kwargs))
            if any(a.name == "dtype" for a in func._schema.arguments) and torch.get_default_dtype() is torch.float64:
                kwargs = {**kwargs, "dtype": kwargs.get("dtype") or self._computed(func, args, kwargs).dtype}
                kwargs["dtype"] = device_dtype(kwargs["dtype"])
        if func in _SUBTRACTIONS:
            args = self._numbers_for_masks(func, args)
        if func is graphs.BATCH_NORM and args[_IS_TRAINING] and not self.trace.training:
            args = (*args[:3], None, None, *args[_IS_TRAINING:])  # only a training model keeps running statistics
        return args, kwargs

    def _numbers_for_masks(self, func: Any, args: Any) -> Any:
        """PopTorch converts a mask that is subtracted from numbers, or they from it, where PyTorch refuses both."""
        dtype = torch.result_type(args[0], args[1])
        in_place = func._schema.name.endswith("_") and args[0].dtype is torch.bool
        if dtype is torch.bool or in_place:
            with modes_disabled():  # PyTorch raises its own error for a difference of bools
                func(*tree_map_only(Tensor, lambda tensor: torch.empty(0, dtype=tensor.dtype), args))

        def number(value: Any) -> Any:
            is_mask = isinstance(value, Tensor) and value.dtype is torch.bool
            return self._recorded(aten._to_copy.default, value, dtype=dtype) if is_mask else value

        return number(args[0]), number(args[1]), *args[2:]

    def _drawn_between(self, tensor: Tensor, low: int, high: int | None) -> Tensor:
        if high is None:  # behind the last whole number that the type holds exactly
            dtype = tensor.dtype
            high = int(2 / torch.finfo(dtype).eps) + 1 if dtype.is_floating_point else torch.iinfo(dtype).max
        drawn = self._recorded(aten.randint_like.low_dtype, tensor, low, high)
        return self._recorded(aten.copy_.default, tensor, drawn)

    def first_op(self) -> Node:
        ops = (node for node in self.graph.nodes if node.op not in ("placeholder", "get_attr"))
        first: Node = next(ops, self.graph._root)
        return first

    def _recorded(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = self._dispatched(func, args, kwargs)
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch_private.without_torch_functions():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _NOT_RECORDED or func.namespace == "profiler":
            return func(*args, **kwargs)
        deliver_interrupt()
        if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == IPU.type:
            kwargs = {**kwargs, "device": torch.device("cpu")}  # where the fake tensors are that pass for the device's
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        any_real = not all(isinstance(tensor, FakeTensor) for tensor in tensors)
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise Error(
                f"A torch.Generator is given to {func.name()} in forward. The device draws random numbers from its own "
                "streams: leave the generator out and set poptorch.Options().randomSeed(seed), or pass the numbers as "
                "an input."
            )
        if any_real and self._stays_on_host(func, tensors):
            with modes_disabled():
                result = func(*args, **kwargs)
            if not any(self.origins.is_stranger(tensor) for tensor in tensors):
                for made in tree_leaves(result):
                    if isinstance(made, Tensor):
                        self.origins.hold(made)
            return result
        where = self._place(func)
        if any_real:
            self._move_written(func, args, kwargs)
            args, kwargs = tree_map_only(Tensor, self._stand_in, (args, kwargs))
        args, kwargs = self._as_on_device(func, args, kwargs)
        settled = self._settled(func, args, kwargs)
        if settled is not None:
            return settled[0]
        if func is aten.masked_select.default:
            selected = self._selected(*args)
            if selected is not None:
                return selected
        if func is _RANDOM_BETWEEN:
            return self._drawn_between(*args)
        args = self._without_masks(func, args)
        node_args, node_kwargs = tree_map_only(Tensor, self.node_for, (args, kwargs))
        result = self._computed(func, args, kwargs)
        node = self.graph.call_function(func, node_args, node_kwargs)
        self._bind_results(node, result, where)
        if where.phase is Phase.FORWARD and not self.trace.in_handler and not has_handler(func):
            self.unsupported.append(node)
        self.draws_random_numbers |= is_random(node)
        return result

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op on fake tensors; if it cannot, remember where: the scopes are left before anyone asks."""
        try:
            return func(*args, **kwargs)
        except Exception as error:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if isinstance(error, (TypeError, ZeroDivisionError)) and any(t.numel() == 0 for t in tensors):
                # Some rules of torch for fake tensors fail on empty ones: fakes like the results of the real op.
                with modes_disabled():
                    args, kwargs = tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), (args, kwargs))
                    result = func(*args, **kwargs)
                return tree_map_only(Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype), result)
            self.trace.scope_of_error = self.trace.scopes[-1]
            raise

    def _bind_results(self, node: Node, result: Any, where: NodeInfo) -> None:
        if isinstance(result, Tensor):
            self.bind(result, node, where)
            return
        items = result if isinstance(result, (tuple, list)) else ()
        specs = tuple(TensorSpec.of(item) if isinstance(item, Tensor) else None for item in items)
        set_info(node, replace(where, spec=specs if items is result else None))
        for index, item in enumerate(items):
            if isinstance(item, Tensor):
                self.bind(item, self.graph.call_function(operator.getitem, (node, index)), where)

    def _place(self, func: Any) -> NodeInfo:
        """Decide phase, placement, scope and line: a backward op belongs where its forward op was."""
        number = torch_private.sequence_number_in_backward()
        if number is not None and number not in self._where:  # the nearest one before it
            number = max((known for known in self._where if known <= number), default=-1)
        if number in self._where:
            return replace(self._where[number], phase=Phase.BACKWARD)
        if number is not None or self.trace.phase is Phase.BACKWARD:
            last = self.trace.block_entries[-1] if self.trace.block_entries else NOWHERE
            return NodeInfo(phase=Phase.BACKWARD, placement=last, forward_op=self._forward_ops)
        placement, loop = self.trace.place_forward_op(func.name()), self.trace.loop
        where = NodeInfo(None, Phase.FORWARD, placement, self.trace.scopes[-1], line_running(), self._forward_ops)
        if loop is not None:
            where = replace(where, loop=loop, repeated=loop.repeat > 0)
        self._forward_ops += 1
        self._where.setdefault(torch_private.last_sequence_number(), where)
        return where


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _has_gradient(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view made without gradients, in a Function's forward, of what has had one since
        return False


def known_values(
    wanted: Sequence[Node], constants: Mapping[str, Tensor], changeable: Collection[str]
) -> list[Tensor] | None:
    """Return present values of unfinished nodes; None: they depend on data, or forward changed the `changeable`."""
    needed = _needed(wanted, changeable) if wanted else None
    if needed is None:
        return None
    values: dict[Node, Any] = {}

    def value_of(node: Node) -> Any:
        if node in values:
            return values[node]
        spec = spec_of(node)  # an op asks no more of it than its shape and type
        assert spec is not None
        return fake_like(spec)

    with modes_disabled(), torch.no_grad():
        for node in needed:
            if node.op == "get_attr":
                values[node] = constants[str(node.target)].clone()
            else:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # an op of torch
        return [values[node].clone() for node in wanted]


def _needed(wanted: Sequence[Node], changeable: Collection[str]) -> list[Node] | None:
    """Return the ops and constants that the present values of `wanted` come from, in order; None if data are."""
    graph = wanted[0].graph
    roots = graphs.storage_roots(graph)
    writers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for argument in graphs.written_arguments(node):
            writers.setdefault(roots[argument], []).append(node)
    needed: set[Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        written = writers.get(roots[node], [])
        is_aten = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
        follows = node.op == "get_attr" or node.target is operator.getitem or (is_aten and not is_random(node))
        if not follows or (node.op == "get_attr" and written and node.target in changeable):
            return None
        needed.add(node)
        unread = node.args[0] if kind_of(node.target) in graphs.SHAPE_ONLY else None
        pending += [*(source for source in node.all_input_nodes if source is not unread), *written, roots[node]]
    return [node for node in graph.nodes if node in needed]
