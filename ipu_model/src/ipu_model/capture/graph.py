"""The captured graph: what a replay runs, and what `ipu_model.capture.describe` makes a `Step` of.

A `Graph` holds an `fx.Graph` of aten ops. Every op node carries in `node.meta`:

=============  =======================================================================================
``spec``       `TensorSpec` of the result, or a tuple of them (`None` for results that are not tensors)
``phase``      `ipu_model.step.Phase`: which pass of the training step the op belongs to
``placement``  `ipu_model.step.Placement`: block, stage and IPU
``scope``      dotted name of the submodule whose `forward` recorded it ("" for the model itself)
``forward_op`` the number of the forward op, in order, that the op is or belongs to
``line``       `ipu_model.source_lines.SourceLine` that it comes from, or `None`
``hints``      dict of what the program said about this value: ``recomputation_checkpoint``, ``nop``,
               ``available_memory_proportion``, ``serialized``, ``multi_conv``, ``printed`` (a `Printed`),
               ``function`` (a `capture.device_ops.python_ops.PythonFunction`);
               placeholders of inputs ``overlap_input``, ops of outputs ``overlap_output`` (values of
               `poptorch.OverlapMode`)
``name_scope`` prefix from `poptorch.NameScope`; ``name_scopes``: its parts, each with how many submodules were
               entered outside it; ``attributes``: graph attributes from `poptorch.Attribute`
=============  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.step import DType, Placement


@lru_cache(maxsize=64)
def dtype_of(dtype: torch.dtype) -> DType:
    """Describe an element type of torch."""
    name = str(dtype).removeprefix("torch.")
    return DType(name, dtype.itemsize, dtype.is_floating_point, dtype.is_complex)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's element type of a description."""
    found: torch.dtype = getattr(torch, dtype.name)
    return found


@dataclass(frozen=True)
class TensorSpec:
    """Shape, element type and strides (in elements) of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Describe `tensor`."""
        return cls(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
        """Describe a row-major tensor of this shape."""
        stride, step = [], 1
        for size in reversed(shape):
            stride.append(step)
            step *= max(size, 1)
        return cls(tuple(shape), dtype, tuple(reversed(stride)))

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes of a dense tensor of this description."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class Variable:
    """A weight or buffer that lives on the device between steps.

    `names` are all the dotted names of one tied tensor, the first one is `name`; `node` is its placeholder.
    """

    name: str
    names: tuple[str, ...]
    spec: TensorSpec
    trainable: bool
    is_buffer: bool
    node: str


@dataclass(frozen=True)
class Output:
    """One leaf of what `forward` returned: a node of the graph, or a value fixed at compile time.

    Outputs that are `anchored` come after those of `forward`: the program asked for them by name.
    """

    node: str | None
    spec: TensorSpec | None
    value: Any = None
    anchored: bool = False


@dataclass(frozen=True)
class Printed:
    """How a value is printed whenever it is computed; `gradient_of` names the node whose gradient it is.

    `layout` are the fields of `ipu_model.compute.printing.PrintLayout`, in order.
    """

    title: str
    layout: tuple[Any, ...]
    gradient_of: str | None = None


@dataclass(frozen=True, eq=False)  # a graph is itself: comparing two op by op would be slow and say little
class Graph:
    """One micro-batch of a program, forward and (for training) backward.

    `ops` ends in one output node holding `(outputs..., gradients...)` in the order of `outputs` that have a
    node and of `gradients`. Placeholders come in the order: variables, inputs, then `seed` for training.
    `mutated` names the placeholders and constants that a micro-batch changes in place; `assigned` those that the
    program itself changes, as opposed to running statistics that batch normalisation keeps.
    `forgotten` are the integer and bool buffers of the module that a micro-batch changes: its changes do not last.
    `activation_gradients` maps forward nodes to the nodes that hold the gradients of the loss with respect to them.
    `layers` maps the dotted names of modules to their classes.
    """

    ops: torch.fx.Graph
    constants: Mapping[str, Tensor]
    variables: tuple[Variable, ...]
    inputs: tuple[TensorSpec, ...]
    input_nodes: tuple[str, ...]
    outputs: tuple[Output, ...]
    rebuild_outputs: Callable[[list[Any]], Any]
    gradients: Mapping[str, str]
    loss: str | None
    loss_spec: TensorSpec | None
    block_entries: tuple[Placement, ...]
    mutated: frozenset[str] = field(default_factory=frozenset)
    assigned: frozenset[str] = field(default_factory=frozenset)
    forgotten: tuple[str, ...] = ()
    draws_random_numbers: bool = False
    activation_gradients: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
