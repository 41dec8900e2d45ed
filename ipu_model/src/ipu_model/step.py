"""One micro-batch as plain data without PyTorch objects; names are those of the captured graph's nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Placement:
    """Where an op runs: block id, stage number and IPU index; `phase` only for phased execution."""

    block: str
    stage: int
    ipu: int
    phase: int | None = None


class Phase(str, Enum):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class DType:
    """An element type: its name in PyTorch, and the bytes of one element on the host."""

    name: str
    bytes: int
    is_floating: bool = False
    is_complex: bool = False

    def __str__(self) -> str:
        return self.name


FLOAT16 = DType("float16", 2, is_floating=True)
FLOAT32 = DType("float32", 4, is_floating=True)
INT32 = DType("int32", 4)
UINT8 = DType("uint8", 1)


class Ref(str):
    """The name of a tensor, where an op takes one as an argument."""

    __slots__ = ()


Argument: TypeAlias = Ref | str | int | float | complex | bool | DType | tuple["Argument", ...] | None


@dataclass(frozen=True)
class Tensor:
    """One tensor and its storage; those that enter have no producer; `of_weight`: a weight, its view or cast."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    stride: tuple[int, ...]
    storage: str
    producer: str | None = None
    index: int = 0
    of_weight: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stored(self) -> int:
        """The number of elements in memory; an expanded dimension counts once."""
        return math.prod(size if stride else min(size, 1) for size, stride in zip(self.shape, self.stride))

    @property
    def is_storage(self) -> bool:
        """Whether its storage was made for this tensor, so that it is not a view of another one."""
        return self.name == self.storage


class Source(Enum):
    OP = "op"
    VARIABLE = "variable"
    INPUT = "input"
    SEED = "seed"
    CONSTANT = "constant"


@dataclass(frozen=True)
class Serialisation:
    """A product computed in `factor` slices along one dimension; `mode` is a `poptorch.MatMulSerializationMode`."""

    mode: str
    factor: int
    keep_precision: bool = False


@dataclass(frozen=True)
class MultiConvolution:
    """Convolutions planned together: `group` names the first of the `size` convolutions; `None` means not set."""

    group: str
    size: int
    available_memory_proportion: float | None = None
    partials_type: str | None = None
    plan_type: str | None = None
    per_conv_reserved_tiles: int | None = None
    cycle_back_off: float | None = None
    conv_dithering: bool | None = None


@dataclass(frozen=True)
class Hints:
    """The program's own settings for an op; a backward op has the planning hints of its forward op."""

    recomputation_checkpoint: bool = False
    is_nop: bool = False
    is_printed: bool = False
    is_anchor: bool = False
    available_memory_proportion: float | None = None
    serialisation: Serialisation | None = None
    multi_convolution: MultiConvolution | None = None


NO_HINTS = Hints()
NOWHERE = Placement(block="", stage=0, ipu=0)


@dataclass(frozen=True)
class Op:
    """One op of the device; `kind` is the aten op's name without namespace, overload and an in-place op's underscore.

    A result is `None` if it is no tensor. `writes` names storages. `scope` is the dotted name of the module ("" for the
    model itself), `stage` an index of `Step.stages`, and `placement.stage` what the program gave. `forward_op` counts
    ops of the forward pass as traced, for a backward op that of its own. `is_known`: it depends on nothing that
    changes, so that the compiler can compute it; `makes_constant`: without reading any tensor. `is_repeated`: it runs
    the code of an op before it, in a later repeat of a loop.
    """

    name: str
    kind: str
    results: tuple[Tensor | None, ...]
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()
    target: str = ""
    phase: Phase = Phase.FORWARD
    placement: Placement = NOWHERE
    stage: int = 0
    scope: str = ""
    forward_op: int | None = None
    hints: Hints = NO_HINTS
    writes: tuple[str, ...] = ()
    is_in_place: bool = False
    is_view: bool = False
    is_known: bool = False
    makes_constant: bool = False
    name_scopes: tuple[tuple[int, str], ...] = ()
    attributes: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    line: str = ""
    is_repeated: bool = False

    @property
    def ipu(self) -> int:
        return self.placement.ipu

    @property
    def is_backward(self) -> bool:
        return self.phase is Phase.BACKWARD

    @cached_property
    def reads(self) -> tuple[Ref, ...]:
        return tuple(dict.fromkeys(_refs((*self.arguments, *(value for _, value in self.keywords)))))

    def argument(self, position: int, name: str = "", default: Argument = None) -> Argument:
        if position < len(self.arguments):
            return self.arguments[position]
        return next((value for key, value in self.keywords if key == name), default)


def _refs(arguments: Iterable[Argument]) -> Iterator[Ref]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument
        elif isinstance(argument, tuple):
            yield from _refs(argument)


@dataclass(frozen=True)
class Variable:
    """A weight or buffer that lives on the device between steps; `names` are all names of one tied tensor."""

    name: str
    names: tuple[str, ...]
    tensor: str
    trainable: bool
    is_buffer: bool = False


@dataclass(frozen=True)
class Stage:
    """A stretch of the forward pass on one IPU, with its backward ops: its number along the data flow, and the IPU."""

    index: int
    ipu: int


@dataclass(frozen=True, eq=False)  # compared by identity: comparing op by op would be slow and of little use
class Step:
    """One micro-batch, forward and (for training) backward; `step_of_ops` makes one by hand.

    Storages have the name of the tensor that they were made for, and are, like tensors, in the order of making.
    `inputs` are what the host sends. `gradients` maps variables to tensors, `layers` dotted names of modules to
    classes. `notes` are what a user must know about the whole program.
    """

    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    storages: Mapping[str, Source]
    variables: tuple[Variable, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    gradients: Mapping[str, str] = field(default_factory=dict)
    loss: str | None = None
    stages: tuple[Stage, ...] = (Stage(0, 0),)
    block_entries: tuple[Placement, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def last_stage(self) -> int:
        return len(self.stages) - 1

    @cached_property
    def ipus(self) -> tuple[int, ...]:
        placed = {op.ipu for op in self.ops} | {entry.ipu for entry in self.block_entries}
        return tuple(sorted(placed)) or (0,)

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def forward(self) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.phase is Phase.FORWARD)

    @cached_property
    def readers(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops that read each tensor, in order; tensors that no op reads are missing."""
        readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.reads:
                readers.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in readers.items()}

    @cached_property
    def returned(self) -> frozenset[str]:
        return frozenset((*self.outputs, *self.gradients.values()))

    def read_by(self, op: Op) -> tuple[Tensor, ...]:
        """Return the tensors that an op reads, each once; arguments that are not tensors are left out."""
        return tuple(self.tensors[name] for name in op.reads if name in self.tensors)

    def results_of(self, op: Op) -> tuple[Tensor, ...]:
        return tuple(result for result in op.results if result is not None and result.name in self.tensors)

    def source(self, tensor: str) -> Source:
        return self.storages[self.tensors[tensor].storage]

    def producer(self, tensor: str) -> Op | None:
        """Return the op that makes a tensor; `None` for variables, inputs and constants."""
        name = self.tensors[tensor].producer
        return None if name is None else self.by_name[name]

    def root(self, tensor: str) -> Tensor:
        """Return the tensor whose storage `tensor` uses: `tensor` itself, unless it is a view."""
        return self.tensors[self.tensors[tensor].storage]

    def maker(self, tensor: str) -> Op | None:
        """Return the op that made the storage of a tensor; `None` for variables, inputs and constants."""
        return self.producer(self.tensors[tensor].storage)


def step_of_ops(ops: Iterable[Op], entering: Iterable[tuple[Tensor, Source]], **fields: Any) -> Step:
    """Build a step with stages by placement; `fields` are others of `Step`: `inputs` default to those entering."""
    placed, stages = _staged(tuple(ops))
    sources = dict(entering)
    results = [result for op in placed for result in op.results if result is not None]
    tensors = {tensor.name: tensor for tensor in (*sources, *results)}
    storages = {tensor.name: source for tensor, source in sources.items()}
    storages |= {result.name: Source.OP for result in results if result.is_storage}
    fields.setdefault("inputs", tuple(tensor for tensor, source in sources.items() if source is Source.INPUT))
    return Step(placed, tensors, storages, stages=stages, **fields)


def _staged(ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], tuple[Stage, ...]]:
    """Number the stages: consecutive blocks on the same IPU form one stage."""
    keys = dict.fromkeys((op.placement.stage, op.ipu) for phase in Phase for op in ops if op.phase is phase)
    stages: list[Stage] = []
    index_of: dict[tuple[int, int], int] = {}
    for key in sorted(keys, key=lambda key: key[0]):  # a stable sort: equal numbers stay in order of appearance
        if not stages or stages[-1].ipu != key[1]:
            stages.append(Stage(len(stages), key[1]))
        index_of[key] = len(stages) - 1
    numbered = tuple(
        op if op.stage == (stage := index_of[op.placement.stage, op.ipu]) else replace(op, stage=stage) for op in ops
    )
    return numbered, tuple(stages) or (Stage(0, 0),)


def with_ops(step: Step, change: Callable[[Op], Op], block_entries: tuple[Placement, ...] | None = None) -> Step:
    ops, stages = _staged(tuple(change(op) for op in step.ops))
    entries = step.block_entries if block_entries is None else block_entries
    return replace(step, ops=ops, stages=stages, block_entries=entries)


def with_tensors(step: Step, change: Callable[[Tensor], Tensor]) -> Step:
    """Return the step with `change` applied to every tensor; names and storages must stay the same."""
    ops = tuple(replace(op, results=tuple(r if r is None else change(r) for r in op.results)) for op in step.ops)
    return replace(
        step,
        ops=ops,
        tensors={name: change(tensor) for name, tensor in step.tensors.items()},
        inputs=tuple(change(tensor) for tensor in step.inputs),
    )


def forward_stages(entries: Iterable[Placement]) -> int:
    """Count forward stages: one, plus one each time a block begins on another IPU than before (at first: IPU 0)."""
    return 1 + sum(before != after for before, after in pairwise((0, *(entry.ipu for entry in entries))))


def ipus_in_use(step: Step) -> frozenset[int]:
    """Return the IPUs that run ops of one replica; blocks without any op do not count."""
    return frozenset(op.ipu for op in step.ops)


def fewest_micro_batches(stages: int, *, training: bool) -> int:
    """Return how many micro-batches fill a pipeline; in training 2 N - 1, since both passes share the last stage."""
    return 2 * stages - 1 if training else stages
