"""Make a captured graph callable: one call computes one micro-batch, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from ipu_model.capture.aliases import storage_roots
from ipu_model.capture.graph import Graph, TensorSpec
from ipu_model.compute.clipping_report import report_first_clipping
from ipu_model.compute.exceptions import check_every_result
from ipu_model.compute.failures import located
from ipu_model.compute.half_precision import to_containers
from ipu_model.compute.kernels import call_python_functions, choose_layer_kernels
from ipu_model.compute.layouts import lay_out_group_norms, let_views_copy
from ipu_model.compute.partials import use_half_partials
from ipu_model.compute.printing import print_where_asked
from ipu_model.compute.rounding import Overflow
from ipu_model.errors import Error

Node = torch.fx.Node


@dataclass(frozen=True)
class Arithmetic:
    """How a program computes: what `Options.Precision` decides besides element types, and two switches of the model.

    `overflow` decides about half-precision results beyond the range; with `reports_clipping`, a warning names the
    first op whose results were clipped.
    """

    half_partials: bool = False
    floating_point_exceptions: bool = False
    overflow: Overflow = Overflow.CLIP
    reports_clipping: bool = False


@dataclass(frozen=True)
class Replay:
    """A callable micro-batch.

    `module(*variables, *inputs, [seed])` returns `(outputs, gradients)`. `fresh_outputs` and `fresh_gradients` say
    which results own their storage and may be kept or changed; the others must be copied first.
    """

    module: torch.fx.GraphModule
    fresh_outputs: tuple[bool, ...]
    fresh_gradients: tuple[bool, ...]

    def micro_batch(self, *values: Tensor) -> Any:
        """Compute one micro-batch; the program's global module hooks do not see it.

        Raises:
            Error: an op failed, as for an index out of range; the message names the op and the line of the program.
        """
        try:
            return self.module.forward(*values)
        except Exception as error:
            failure = located(error, self.module.graph)
            if failure is None:
                raise
            raise failure from error


def container_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that holds device values of `dtype` here: fp16 lives in fp32."""
    return torch.float32 if dtype is torch.float16 else dtype


def build(graph: Graph, arithmetic: Arithmetic) -> Replay:
    """Compile `graph` into a `Replay`; the graph itself is left as it is.

    Raises:
        Error: a constant without data.
    """
    ops = _copied(graph.ops)
    outputs, gradients = _results(ops)
    fresh = _fresh_flags([*outputs, *gradients], storage_roots(ops))
    _protect_constants(graph, ops)
    let_views_copy(ops)
    if arithmetic.half_partials:
        use_half_partials(ops, arithmetic.overflow)
    choose_layer_kernels(ops, arithmetic.overflow)
    looks = arithmetic.floating_point_exceptions or arithmetic.reports_clipping
    to_containers(ops, arithmetic.overflow, clips_apart=looks)
    if arithmetic.reports_clipping:
        report_first_clipping(ops)
    if arithmetic.floating_point_exceptions:
        check_every_result(ops)
    print_where_asked(ops)
    call_python_functions(ops)
    lay_out_group_norms(ops)
    ops.lint()
    holder = nn.Module()
    for name, tensor in graph.constants.items():
        if tensor.is_meta:
            raise Error(
                f"A constant of the program, a tensor of shape {list(tensor.shape)} that is a plain attribute or an "
                "integer buffer of the model, is on the device 'meta' and has no data. Give it data on the CPU before "
                "you call or compile the model."
            )
        holder.register_buffer(name, tensor.to(container_dtype(tensor.dtype)))
    module = torch.fx.GraphModule(holder, ops)
    return Replay(module, tuple(fresh[: len(outputs)]), tuple(fresh[len(outputs) :]))


def _copied(ops: torch.fx.Graph) -> torch.fx.Graph:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(ops, {}))
    return copy


def _results(ops: torch.fx.Graph) -> tuple[list[Node], list[Node]]:
    results: Any = ops.output_node().args[0]
    outputs, gradients = results
    return list(outputs), list(gradients)


def _fresh_flags(results: list[Node], roots: dict[Node, Node]) -> list[bool]:
    """Return for each result whether it is the only owner of dense storage made in this micro-batch."""
    owners = [roots[node] for node in results]
    return [
        owner.op == "call_function" and owners.count(owner) == 1 and _is_dense(node.meta["spec"])
        for node, owner in zip(results, owners)
    ]


def _is_dense(spec: TensorSpec) -> bool:
    """Whether elements lie in row-major order without gaps; the stride of a dimension of size 1 means nothing."""
    row_major = TensorSpec.contiguous(spec.shape, spec.dtype).stride
    return all(size == 1 or a == b for size, a, b in zip(spec.shape, spec.stride, row_major))


def _protect_constants(graph: Graph, ops: torch.fx.Graph) -> None:
    """Give every replay its own copy of each constant that it changes, so that constants keep their value."""
    for node in list(ops.nodes):
        if node.op == "get_attr" and node.name in graph.mutated:
            with ops.inserting_after(node):
                copy = ops.call_function(torch.ops.aten.clone.default, (node,))
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
            copy.meta = dict(node.meta)
