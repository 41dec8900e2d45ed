"""Make a captured graph callable: one call computes one micro-batch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from ipu_model.capture.graph import Graph, PythonFunction, TensorSpec, info_of, is_half, is_random, set_info, spec_of
from ipu_model.capture.torch_private import suggest_memory_format
from ipu_model.compute.checks import check_every_result, failure_at, located, report_first_clipping
from ipu_model.compute.half_precision import UNIFORM, to_containers
from ipu_model.compute.kernels import choose_layer_kernels, use_half_partials
from ipu_model.compute.printing import print_where_asked
from ipu_model.compute.rounding import Overflow, nearest
from ipu_model.errors import Error
from ipu_model.process import ForkSafeLock

Node = torch.fx.Node
aten = torch.ops.aten

_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


@dataclass(frozen=True)
class Arithmetic:
    """How a program computes: what `Options.Precision` decides besides element types, and two switches of the model."""

    half_partials: bool = False
    floating_point_exceptions: bool = False
    overflow: Overflow = Overflow.CLIP
    reports_clipping: bool = False


@dataclass(frozen=True)
class Replay:
    """A callable micro-batch, `module(*variables, *inputs, [seed])`; copy results that are not fresh to keep them."""

    module: torch.fx.GraphModule
    fresh_outputs: tuple[bool, ...]
    fresh_gradients: tuple[bool, ...]
    joint: Mapping[str, _Called]  # ops that compute the results of all replicas at once, by name

    def micro_batch(self, *values: Tensor) -> Any:
        """Compute one micro-batch, unseen by the program's global module hooks; an error names the op and the line."""
        try:
            return self.module.forward(*values)
        except Exception as error:
            failure = located(error, self.module.graph)
            if failure is None:
                raise
            raise failure from error

    def micro_batches(
        self, values: list[list[Tensor]], drawing: Callable[[int], AbstractContextManager[None]]
    ) -> list[Any]:
        """Compute a micro-batch of each replica, op by op: each op for all replicas, or once for all if it is joint."""
        replicas = [torch.fx.Interpreter(self.module) for _ in values]
        for replica, own in zip(replicas, values):
            replica.args_iter = iter(own)
        for node in self.module.graph.nodes:
            try:
                results = self._of_all(node, replicas, drawing)
            except Exception as error:
                raise failure_at(node, error) or error from None
            for replica, result in zip(replicas, results):
                replica.env[node] = result
                for last_used in replica.user_to_last_uses.get(node, []):
                    del replica.env[last_used]
        return results

    def _of_all(
        self, node: Node, replicas: list[torch.fx.Interpreter], drawing: Callable[[int], AbstractContextManager[None]]
    ) -> list[Any]:
        if node.name in self.joint:
            with drawing(0):
                operands = [replica.fetch_args_kwargs_from_env(node)[0][0] for replica in replicas]
                return self.joint[node.name](operands)
        results = []
        for index, replica in enumerate(replicas):
            with drawing(index):
                results.append(replica.run_node(node))
        return results


def container_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype is torch.float16 else dtype


def build(graph: Graph, arithmetic: Arithmetic, generator: torch.Generator) -> Replay:
    """Make a graph callable; what it draws at random, it draws from `generator`."""
    ops = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    ops.output(ops.graph_copy(graph.ops, copies))
    results: Any = graph.ops.output_node().args[0]
    fresh_outputs, fresh_gradients = _fresh_flags(graph, *results)
    # A view must copy if its operand's layout differs from the one that was traced. Strides of fake tensors are not
    # always those of the values: the result of mse_loss_backward, for instance, has the strides of its second operand
    # on fake tensors, but is always dense when it is computed. Views of storage that is written to must stay views.
    for node, copy in copies.items():
        if node.target in _VIEWS and graph.roots[node] not in graph.written:
            copy.target = aten.reshape.default
    _protect_constants(graph, ops)
    if arithmetic.half_partials:
        use_half_partials(ops, arithmetic.overflow)
    choose_layer_kernels(ops, arithmetic.overflow)
    to_containers(ops, arithmetic.overflow)
    if arithmetic.reports_clipping:
        report_first_clipping(ops)
    if arithmetic.floating_point_exceptions:
        check_every_result(ops)
    print_where_asked(ops)
    joint = _call_python_functions(graph, copies, arithmetic.overflow, generator)
    _lay_out_group_norms(ops)
    holder = nn.Module()
    if graph.draws_random_numbers:
        holder.generator = generator  # type: ignore[assignment]  # modules may have any attributes
        _draw_from(ops, generator)
    ops.lint()
    for name, tensor in graph.constants.items():
        if tensor.is_meta:
            raise Error(
                f"A constant of the program, a tensor of shape {list(tensor.shape)} that is a plain attribute or an "
                "integer buffer of the model, is on the device 'meta' and has no data. Give it data on the CPU before "
                "you call or compile the model."
            )
        holder.register_buffer(name, tensor.to(container_dtype(tensor.dtype)))
    return Replay(torch.fx.GraphModule(holder, ops), fresh_outputs, fresh_gradients, joint)


def _fresh_flags(graph: Graph, outputs: list[Node], gradients: list[Node]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    owners = [graph.roots[node] for node in (*outputs, *gradients)]

    def is_fresh(node: Node) -> bool:
        owner = graph.roots[node]
        spec = spec_of(node)
        assert spec is not None
        row_major = TensorSpec.contiguous(spec.shape, spec.dtype).stride
        # The stride of a dimension of size 1 means nothing.
        is_dense = all(size == 1 or a == b for size, a, b in zip(spec.shape, spec.stride, row_major))
        return owner.op == "call_function" and owners.count(owner) == 1 and is_dense

    return tuple(map(is_fresh, outputs)), tuple(map(is_fresh, gradients))


def _protect_constants(graph: Graph, ops: torch.fx.Graph) -> None:
    for node in list(ops.nodes):
        if node.op == "get_attr" and node.name in graph.mutated:
            with ops.inserting_after(node):
                copy = ops.call_function(torch.ops.aten.clone.default, (node,))
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
            set_info(copy, info_of(node))


def _lay_out_group_norms(ops: torch.fx.Graph) -> None:
    """Make operands of group norms dense, as the kernel ignores strides; the last pass, for it adds nodes."""
    for node in list(ops.nodes):
        with ops.inserting_before(node):
            if node.target is aten.native_group_norm.default:
                node.args = (ops.call_function(dense_like, (node.args[0], node.args[0])), *node.args[1:])
            elif node.target is aten.native_group_norm_backward.default:
                gradient, x, *rest = node.args
                laid_out = ops.call_function(dense_like, (x, x))
                node.args = (ops.call_function(dense_like, (gradient, laid_out)), laid_out, *rest)


def dense_like(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the values of `gradient` without gaps, in the order that the strides of `x` suggest."""
    return gradient.contiguous(memory_format=suggest_memory_format(x))


def _draw_from(ops: torch.fx.Graph, generator: torch.Generator) -> None:
    with ops.inserting_before(next(iter(ops.nodes))):
        attribute = ops.get_attr("generator")
    for node in list(ops.nodes):
        if not is_random(node) and node.target not in UNIFORM.values():
            continue
        op = _with_generator(node.target)
        if op is None:
            node.target = _lending(node.target, generator)
        else:
            node.target, node.kwargs = op, {**node.kwargs, "generator": attribute}


_GENERATOR_OVERLOADS = {
    "default": "generator",
    "low": "low_generator",
    "low_dtype": "low_generator_dtype",
    "Tensor": "Tensor_generator",
}


def _with_generator(op: Any) -> Any:
    """Return an op, or another overload of it, that takes a generator; None if there is none."""
    if not isinstance(op, torch._ops.OpOverload) or any(a.name == "generator" for a in op._schema.arguments):
        return op
    return getattr(op.overloadpacket, _GENERATOR_OVERLOADS.get(op._overloadname, "none"), None)


# The host's generator belongs to the process: programs that run in several threads take turns with it.
_one_at_a_time = ForkSafeLock()


@contextmanager
def lent_to_host(generator: torch.Generator) -> Iterator[None]:
    """Let what knows no other than the host's generator draw from this one."""
    with _one_at_a_time.lock:
        host = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(host)


def _lending(op: Any, generator: torch.Generator) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        with lent_to_host(generator):
            return op(*args, **kwargs)

    return draw


def _call_python_functions(
    graph: Graph, copies: Mapping[Node, Node], overflow: Overflow, generator: torch.Generator
) -> dict[str, _Called]:
    """Let the ops of a replay call their functions; return those that need all replicas."""
    joint: dict[str, _Called] = {}
    for node, copy in copies.items():
        function, specs = info_of(node).marks.function, info_of(node).spec
        if function is None:
            continue
        assert isinstance(specs, tuple)
        operands: Any = node.args[0]
        buffers = {index: graph.frozen.get(graph.roots[operand].name) for index, operand in enumerate(operands)}
        frozen = {index: _FROZEN.format(name) for index, name in buffers.items() if name is not None}
        function = replace(function, fixed={**function.fixed, **frozen})
        halves = [is_half(operand) for operand in operands]
        called = _Called(function, tuple(spec for spec in specs if spec is not None), halves, overflow, generator)
        copy.target = called.of_one_replica
        if function.joint:
            joint[copy.name] = called
    return joint


_FROZEN = (
    "the buffer '{}'. Integer and bool buffers are constants of the compiled program: use a floating-point buffer."
)


@dataclass(frozen=True)
class _Called:
    """A function with what is known about its op: its results, and which operands are of half precision."""

    function: PythonFunction
    specs: tuple[TensorSpec, ...]
    halves: list[bool]
    overflow: Overflow
    generator: torch.Generator

    def of_one_replica(self, tensors: list[Tensor], results: str) -> list[Tensor]:
        return self([tensors])[0]

    def __call__(self, replicas: list[list[Tensor]]) -> list[list[Tensor]]:
        dense = torch.contiguous_format
        operands = [[tensor.clone(memory_format=dense) for tensor in tensors] for tensors in replicas]
        with lent_to_host(self.generator):
            results = self.function.call(operands)
        if self.function.may_write:
            for tensors, own in zip(replicas, operands):
                self._write_back(tensors, own)
        return [checked(self.function.label, result, self.specs) for result in results]

    def _write_back(self, tensors: list[Tensor], operands: list[Tensor]) -> None:
        """Let what the function has changed in place reach the operands of the op."""
        pairs = enumerate(zip(tensors, operands))
        # All are compared before any is written: operands may share memory.
        for index, (tensor, operand) in [(index, pair) for index, pair in pairs if _differ(*pair)]:
            changes = f"{self.function.label} changes its input {index} in place"
            if index in self.function.fixed:
                raise Error(f"{changes}, {self.function.fixed[index]}")
            if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
                raise Error(f"{changes}, an expanded tensor. Pass a copy of it, such as tensor.clone().")
            if operand.shape != tensor.shape:
                raise Error(f"{changes}, and its shape with it. Shapes are fixed when the model is compiled.")
            tensor.copy_(operand)
            if self.halves[index]:
                nearest(self.overflow)(tensor)


def _differ(a: Tensor, b: Tensor) -> bool:
    return not (torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()))


def checked(label: str, results: object, specs: tuple[TensorSpec, ...]) -> list[Tensor]:
    """Return a function's results in containers of the types in `specs`; `Error` if they do not match these."""
    listed = [results] if isinstance(results, Tensor) else results
    if not isinstance(listed, (list, tuple)) or not all(isinstance(result, Tensor) for result in listed):
        given = (
            ", ".join(str(type(result)) for result in listed) if isinstance(listed, (list, tuple)) else type(results)
        )
        raise Error(f"{label} must return a tensor or a list of tensors; it returned {given}.")
    if len(listed) != len(specs):
        raise Error(f"{label} must return {len(specs)} tensors; it returned {len(listed)}.")
    for index, (result, spec) in enumerate(zip(listed, specs)):
        same_kind = result.dtype.is_floating_point == spec.dtype.is_floating_point
        if tuple(result.shape) != spec.shape or not same_kind:
            raise Error(
                f"{label} must return {spec.dtype} {list(spec.shape)} as its result {index}; it returned "
                f"{result.dtype} {list(result.shape)}. Shapes and types are fixed when the model is compiled."
            )
    dense = torch.contiguous_format
    return [r.detach().to(container_dtype(s.dtype), copy=True, memory_format=dense) for r, s in zip(listed, specs)]
