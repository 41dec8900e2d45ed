"""The captured graph, an `fx.Graph` of aten ops: what a replay runs. `info_of` returns what is known about a node."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.source_lines import SourceLine
from ipu_model.step import DType, Hints, Phase, Placement, Variable

Node = torch.fx.Node

_INFO = "ipu_model"
# Its schema does not declare that training mode (argument 5) updates the running statistics (arguments 3 and 4).
BATCH_NORM = torch.ops.aten.native_batch_norm.default

# Ops whose result depends on no more of their first argument than its shape and type.
_FILLS = ("ones", "zeros", "full", "empty")
SHAPE_ONLY = frozenset(name for fill in _FILLS for name in (f"{fill}_like", f"new_{fill}"))


@lru_cache(maxsize=64)
def dtype_of(dtype: torch.dtype) -> DType:
    return DType(str(dtype).removeprefix("torch."), dtype.itemsize, dtype.is_floating_point, dtype.is_complex)


def torch_dtype(dtype: DType) -> torch.dtype:
    named: torch.dtype = getattr(torch, dtype.name)
    return named


@dataclass(frozen=True)
class TensorSpec:
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
        stride = (math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))
        return cls(tuple(shape), dtype, tuple(stride))


@dataclass(frozen=True)
class Printed:
    """How a value, or its gradient (`gradient_of`), is printed; `layout`: the fields of `PrintLayout`, in order."""

    title: str
    layout: tuple[Any, ...]
    gradient_of: str | None = None


@dataclass(frozen=True)
class PythonFunction:
    """What computes an op: `call(operands of each replica)` returns the results of each; errors name it by `label`.

    It gets the operands of one replica at a time unless it is `joint`. If it `may_write`, nobody knows before it runs
    which of its operands it changes in place; `fixed` says what those are, by position, that it must not change.
    """

    label: str
    call: Callable[[list[list[Tensor]]], Sequence[object]]
    may_write: bool = False
    joint: bool = False
    fixed: Mapping[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class Loop:
    """A loop that is written out: the number of the repeat that is traced, and copies of what the last one returned."""

    repeat: int = 0
    results: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Marks(Hints):
    """What the program said about a value; overlaps are a `poptorch.OverlapMode`, and a loop's repeats hand on what
    `is_carried`.
    """

    printed: Printed | None = None
    function: PythonFunction | None = None
    overlap_input: str | None = None
    overlap_output: str | None = None
    is_carried: bool = False


@dataclass(frozen=True)
class NodeInfo:
    """What is known about one node; variables, inputs and constants have only a `spec` and marks.

    `spec` is a tuple if the node has several results. `scope` is the dotted name of the submodule that recorded it,
    `forward_op` the number of its forward op, and `name_scopes` say how many submodules are outside each. Nodes of a
    `loop` that belong to the second repeat or a later one are `repeated`.
    """

    spec: TensorSpec | tuple[TensorSpec | None, ...] | None = None
    phase: Phase | None = None
    placement: Placement | None = None
    scope: str = ""
    line: SourceLine | None = None
    forward_op: int | None = None
    marks: Marks = Marks()
    name_scopes: tuple[tuple[int, str], ...] = ()
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    loop: Loop | None = None
    repeated: bool = False


NOTHING = NodeInfo()


def info_of(node: Node) -> NodeInfo:
    """Return what is known about a node: nothing for one that a pass has added without a word."""
    info: NodeInfo = node.meta.get(_INFO, NOTHING)
    return info


def set_info(node: Node, info: NodeInfo) -> None:
    node.meta[_INFO] = info


def mark(node: Node, **marks: Any) -> None:
    info = info_of(node)
    set_info(node, replace(info, marks=replace(info.marks, **marks)))


def spec_of(value: Any) -> TensorSpec | None:
    spec = info_of(value).spec if isinstance(value, Node) else None
    return spec if isinstance(spec, TensorSpec) else None


def is_half(value: Any) -> bool:
    spec = spec_of(value)
    return spec is not None and spec.dtype is torch.float16


@dataclass(frozen=True)
class Output:
    """A leaf of what `forward` returned: a node, or a fixed value; `anchored` ones, asked for by name, come last."""

    node: str | None
    spec: TensorSpec | None
    value: Any = None
    anchored: bool = False


@dataclass(frozen=True, eq=False)  # a graph is itself: comparing two op by op would be slow and say little
class Graph:
    """One micro-batch of a program, forward and (for training) backward.

    `ops` ends in `(outputs..., gradients...)`; placeholders are variables, inputs, then `seed` for training. `frozen`
    maps constants to the integer or bool buffers that they are, `activation_gradients` forward nodes to their
    gradients. `unsupported` has the names of ops in the forward pass that PopTorch would refuse, with advice.
    """

    ops: torch.fx.Graph
    constants: Mapping[str, Tensor]
    variables: tuple[Variable, ...]
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[Output, ...]
    rebuild_outputs: Callable[[list[Any]], Any]
    gradients: Mapping[str, str]
    loss: str | None
    loss_spec: TensorSpec | None
    block_entries: tuple[Placement, ...]
    frozen: Mapping[str, str] = field(default_factory=dict)
    draws_random_numbers: bool = False
    activation_gradients: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.ops.nodes}

    @cached_property
    def roots(self) -> Mapping[Node, Node]:
        return storage_roots(self.ops)

    @cached_property
    def written(self) -> frozenset[Node]:
        return frozenset(self.roots[target] for node in self.ops.nodes for target in written_arguments(node))

    @cached_property
    def changeable(self) -> frozenset[Node]:
        """`written`, and what custom ops may write."""
        return frozenset(self.roots[target] for node in self.ops.nodes for target in changeable_arguments(node))

    @cached_property
    def mutated(self) -> frozenset[str]:
        """The variables, inputs and constants that a micro-batch may change in place."""
        return _entering_names(self.changeable)

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Those of `mutated` that the program itself changes: not statistics that batch normalisation keeps."""
        writers = [node for node in self.ops.nodes if node.target is not BATCH_NORM]
        return _entering_names({self.roots[target] for node in writers for target in written_arguments(node)})

    @property
    def forgotten(self) -> tuple[str, ...]:
        """The integer and bool buffers of the module that a micro-batch changes: its changes do not last."""
        return tuple(buffer for constant, buffer in self.frozen.items() if constant in self.assigned)

    def spec(self, name: str) -> TensorSpec:
        spec = spec_of(self.by_name[name])
        assert spec is not None, f"{name} is not one tensor"
        return spec


def storage_roots(graph: torch.fx.Graph) -> dict[Node, Node]:
    """Map every node to the node that made the storage its result lives in (itself if fresh)."""
    roots: dict[Node, Node] = {}
    for node in graph.nodes:
        source = aliased_argument(node)
        roots[node] = roots[source] if source is not None else node
    return roots


def aliased_argument(node: Node) -> Node | None:
    """Return the argument that the result of `node` is a view of (or is), if there is one."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return aliased_argument(op_of(node))
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns or schema.returns[0].alias_info is None:
        return None
    wanted = schema.returns[0].alias_info.before_set
    for value, aliases in _aliasing(node.target, node.args, node.kwargs):
        if aliases.before_set == wanted and isinstance(value, Node):
            return value
    return None


def _aliasing(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the values that an op's results may share memory with or that it may write, and what its schema says."""
    schema = getattr(target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None:
            yield args[position] if position < len(args) else kwargs.get(argument.name), argument.alias_info


def is_view(node: Node) -> bool:
    """Whether `node` only reinterprets storage: nothing is computed and nothing is written."""
    return aliased_argument(node) is not None and not written_arguments(node)


def op_of(node: Node) -> Node:
    if node.target is not operator.getitem:
        return node
    parent = node.args[0]
    assert isinstance(parent, Node)
    return parent


def written_arguments(node: Node) -> list[Node]:
    if node.op != "call_function":
        return []
    if node.target is BATCH_NORM:
        written: Sequence[Any] = node.args[3:5] if node.args[5] else ()
    else:
        written = written_by(node.target, node.args, node.kwargs)
    return [value for value in written if isinstance(value, Node)]


def written_by(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of a call that its schema says are written to."""
    written = [value for value, aliases in _aliasing(target, args, kwargs) if aliases.is_write]
    return [item for value in written for item in (value if isinstance(value, (list, tuple)) else [value])]


def changeable_arguments(node: Node) -> list[Node]:
    """Return what an op writes or, as a custom op, may write: all its operands."""
    function = info_of(node).marks.function
    return node.all_input_nodes if function is not None and function.may_write else written_arguments(node)


def _entering_names(roots: Set[Node]) -> frozenset[str]:
    return frozenset(node.name for node in roots if node.op in ("placeholder", "get_attr"))


def is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
