"""Trace one micro-batch of a model, forward and backward, into a `Graph`; title its prints, and add results to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from ipu_model.capture import graph as graphs
from ipu_model.capture import python_backward, torch_private, tracing, variables
from ipu_model.capture.device_tensors import DeviceParameter, become, parameters_stay
from ipu_model.capture.functions import DeviceFunctions
from ipu_model.capture.graph import Graph, Marks, Output, TensorSpec, changeable_arguments, info_of, mark, set_info
from ipu_model.capture.operators import has_handler, name_of, poptorchs_words, table, without_handler
from ipu_model.capture.recorder import Recorder
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.tracing import Placer, Trace
from ipu_model.capture.variables import Origins, Slot, fake_like
from ipu_model.errors import Error
from ipu_model.process import ForkSafeLock, no_garbage_collection
from ipu_model.source_lines import line_that_raised
from ipu_model.step import Phase, Variable

Node = torch.fx.Node

# Some settings of torch that a trace changes belong to the process: traces in several threads take turns.
_one_at_a_time = ForkSafeLock()

_FRAMES_OF_A_CALL = 5

_ADVICE = "Wrap the value to differentiate in poptorch.identity_loss(value, reduction='none'|'sum'|'mean') in forward."

Call = Callable[[nn.Module, list[Tensor]], Any]
Flatten = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]]]

_IDENTITIES = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
)


@dataclass
class Traced:
    """What tracing a step left: output leaves, the loss and the gradients, all fake tensors."""

    leaves: list[Any]
    rebuild: Callable[[list[Any]], Any]
    loss: Tensor | None = None
    gradients: Sequence[Tensor | None] = ()
    activation_gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@no_garbage_collection()
def capture(
    module: nn.Module,
    inputs: Sequence[TensorSpec],
    call: Call,
    flatten: Flatten,
    *,
    training: bool,
    placer: Placer,
    before_forward: Callable[[], None] = lambda: None,
    warns: bool = True,
) -> Graph:
    """Trace `module` on fake tensors into a graph; `call(module, tensors)` calls it, `flatten` takes results apart."""
    trace = Trace(placer, training, warns, records_gradients=training)
    variables.restore_attributes(module)
    slots = variables.slots_of(module)
    recorder = Recorder(trace, Origins(module, slots, training=training))
    torch_private.start_autograd()
    with ExitStack() as stack:
        stack.enter_context(_one_at_a_time.lock)
        stack.enter_context(tracing.active(trace))
        stack.enter_context(variables.registries_restored(module))
        stack.callback(recorder.release)
        before_forward()
        # With hooks, each call of a module needs more Python frames than in plain PyTorch.
        depth = 1 + max(name.count(".") for name, _ in module.named_modules())
        deeper = sys.getrecursionlimit() + _FRAMES_OF_A_CALL * depth
        stack.enter_context(torch_private.switched(sys.getrecursionlimit, sys.setrecursionlimit, deeper))
        stack.enter_context(torch_private.plain_ops_traced())
        stack.enter_context(python_backward.without_effect(trace))
        stack.enter_context(parameters_stay())
        stack.enter_context(torch_private.FakeTensorMode(allow_non_fake_inputs=True))
        # Constants are added when they are met.
        fakes = {slot: fake_like(slot.spec, slot.trainable) for slot in slots if not slot.is_constant}
        become(DeviceParameter, [fake for slot, fake in fakes.items() if not slot.is_buffer])
        fake_inputs = [fake_like(spec) for spec in inputs]
        for number, slot in enumerate(slots):
            if slot in fakes:
                recorder.placeholder(f"variable_{number}", fakes[slot])
        for number, fake in enumerate(fake_inputs):
            recorder.placeholder(f"input_{number}", fake)
        own = {name: slot.tensor for slot in fakes for name in slot.names}
        trace.on_host = lambda: torch_private.tensors_swapped(module, own)
        stack.enter_context(_scopes(module, trace))
        stack.enter_context(recorder)
        swapped = {name: fake for slot, fake in fakes.items() for name in slot.names}
        # Backward sees the swapped tensors, too: hooks of the program may use them.
        for slot in slots if training else ():
            python_backward.warn_of_hooks(trace, torch_private.gradient_hooks(slot.tensor), f"'{slot.names[0]}'")
        with _static_only(trace, module), torch_private.tensors_swapped(module, swapped, tie_weights=True):
            result = _forward(module, call, flatten, fake_inputs, recorder)
            if training:
                trained = {slot: fake for slot, fake in fakes.items() if slot.trainable}
                for slot, fake in trained.items():
                    if not fake.requires_grad:
                        raise Error(
                            f"forward switches the gradient of '{slot.names[0]}' off, as requires_grad_(False) does. "
                            "What is trained is fixed when the model is wrapped: do it before trainingModel."
                        )
                _differentiate(result, list(trained.values()), recorder)
    return assemble(recorder, slots, inputs, result)


def _forward(module: nn.Module, call: Call, flatten: Flatten, tensors: list[Tensor], recorder: Recorder) -> Traced:
    with (
        variables.tensors_unchanged(module),
        torch.set_grad_enabled(recorder.trace.training),
        DeviceFunctions(recorder.trace, recorder.origins),
    ):
        outputs = call(module, tensors)
    leaves, rebuild = flatten(outputs)
    result = Traced([recorder.on_device(leaf) for leaf in leaves], rebuild)
    _refuse_hidden_tensors(result.leaves)
    return result


def _differentiate(result: Traced, weights: list[Tensor], recorder: Recorder) -> None:
    loss = final_loss(recorder.trace, [leaf for leaf in result.leaves if isinstance(leaf, Tensor)])
    result.loss = loss
    recorder.trace.phase = Phase.BACKWARD
    seed = fake_like(TensorSpec.contiguous(tuple(loss.shape), loss.dtype))
    with recorder.graph.inserting_before(recorder.first_op()):
        recorder.placeholder("seed", seed)
    if loss.requires_grad and weights:

        def note(activation: Tensor, gradient: Tensor | None) -> None:
            if gradient is not None:
                result.activation_gradients.append((activation, gradient))

        with ExitStack() as hooks:  # no op comes of them
            for activation in recorder.differentiable():
                hooks.enter_context(activation.register_hook(partial(note, activation)))
            result.gradients = torch.autograd.grad(loss, weights, grad_outputs=seed, allow_unused=True)


def final_loss(trace: Trace, outputs: Sequence[Tensor]) -> Tensor:
    """Return the marked loss that no other depends on; marks that no output depends on count if there are no others."""
    every: dict[Node, Tensor] = {}
    for loss in trace.loss_marks:
        node = trace.node_of(loss)
        if node is None:
            raise Error("A loss was computed from tensors that are not part of the traced model.")
        every[node] = loss
    wanted = _ancestors([node for node in (trace.node_of(t) for t in outputs) if node is not None])
    marked = {node: loss for node, loss in every.items() if node in wanted} or every
    if not marked:
        raise Error(f"Couldn't find a loss in graph! {_ADVICE}")
    demoted = _ancestors([source for node in marked for source in node.all_input_nodes])
    remaining = [loss for node, loss in marked.items() if node not in demoted]
    if len(remaining) > 1:
        names = ", ".join(str(node) for node in marked if node not in demoted)
        raise Error(f"Multiple independent losses found in graph ({names}). {_ADVICE}")
    return remaining[0]


def _ancestors(nodes: Sequence[Node]) -> set[Node]:
    seen: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(node.all_input_nodes)
    return seen


def _refuse_hidden_tensors(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        inside = list(leaf) if isinstance(leaf, (set, frozenset)) else list(getattr(leaf, "__dict__", {}).values())
        hides = any(isinstance(value, FakeTensor) for value in tree_leaves(inside))
        if hides and not isinstance(leaf, Tensor):
            raise Error(
                f"forward returns tensors inside an object of type {type(leaf).__name__}, which PopTorch cannot take "
                "apart. Return tensors in tuples, named tuples, lists, dicts or data classes, or register a parser "
                "with poptorch.registerCustomArgParser."
            )


@contextmanager
def _scopes(module: nn.Module, trace: Trace) -> Iterator[None]:
    """Keep `trace.scopes` in step with the running submodule; torch's global hooks also fire for other threads."""
    names = {id(child): name for name, child in module.named_modules()}
    trace.layers.update({name: type(child).__name__ for name, child in module.named_modules()})

    def enter(child: nn.Module, args: Any) -> None:
        if tracing.current() is trace:
            trace.scopes.append(names.get(id(child), trace.scopes[-1]))

    def leave(child: nn.Module, args: Any, output: Any) -> None:
        if tracing.current() is trace:
            trace.scopes.pop()

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
        yield


@contextmanager
def _static_only(trace: Trace, module: nn.Module) -> Iterator[None]:
    try:
        yield
    except torch_private.DataDependentOutputException as error:
        scope = trace.scope_of_error or trace.scopes[-1]
        if getattr(dict(module.named_modules()).get(scope), "momentum", 0) is None:
            raise Error(
                f"BatchNorm(momentum=None) is not supported in training (module '{scope}'): its cumulative average "
                "reads num_batches_tracked in Python. Give the layer a momentum, such as momentum=0.1."
            ) from None
        raise Error(
            f"The model branches on data: it reads the value of a tensor in Python ({_place(trace, error)}). "
            "The graph is static, forward runs once for each compilation. Use torch.where, masks or a "
            "registered buffer instead of `if tensor:`, `.item()`, `.tolist()` or `float(tensor)`."
        ) from None
    except torch_private.DynamicOutputShapeException as error:
        instead = next(words for name, words in table().of_fixed_shape.items() if name in str(error))
        refused = "" if has_handler(error.func) else f"{poptorchs_words([name_of(error.func)])} "
        raise Error(
            f"{refused}The shape of a result depends on data ({error}; {_place(trace, error)}). Every shape must be "
            f"known when the model is compiled. {instead}"
        ) from None
    except RuntimeError as error:
        if ".numpy() is not supported" not in str(error):
            raise
        raise Error(
            f"Illegal move to CPU: forward converts a device tensor to NumPy ({_place(trace, error)})."
        ) from None


def _place(trace: Trace, error: BaseException) -> str:
    scope = trace.scope_of_error or trace.scopes[-1]
    return f"module '{scope or 'model'}', {line_that_raised(error) or 'unknown line'}"


# --- from what the recorder saw to a graph without what tracing leaves behind: identities, dead ops and counters


def assemble(recorder: Recorder, slots: list[Slot], inputs: Sequence[TensorSpec], result: Traced) -> Graph:
    weights = [slot.names[0] for slot in slots if slot.trainable and not slot.is_constant]
    gradients = {
        name: recorder.node_for(gradient) for name, gradient in zip(weights, result.gradients) if gradient is not None
    }
    returned = [recorder.node_for(leaf) for leaf in result.leaves if isinstance(leaf, FakeTensor)]
    loss = recorder.node_for(result.loss) if result.loss is not None else None
    recorder.graph.output((tuple(returned), tuple(gradients.values())))
    settled = _ancestors(recorder.settled)
    stand_ins = clean(recorder.graph, loss)
    compiled = settled.union(recorder.graph.nodes)
    unsupported: dict[str, str] = {}
    for node in recorder.unsupported:
        if node in compiled:
            name, info = name_of(node.target), info_of(node)
            unsupported.setdefault(name, without_handler(name, info.scope, info.line))
    names = iter([stand_ins.get(node, node).name for node in returned])
    used = [str(node.target) for node in recorder.graph.nodes if node.op == "get_attr"]
    frozen = {recorder.constant_names.get(id(slot.tensor)): slot.names[0] for slot in slots if slot.is_constant}
    return Graph(
        ops=recorder.graph,
        constants={name: recorder.constants[name] for name in used},
        variables=tuple(
            Variable(slot.names[0], slot.names, f"variable_{number}", slot.trainable, slot.is_buffer)
            for number, slot in enumerate(slots)
            if not slot.is_constant
        ),
        inputs={f"input_{number}": spec for number, spec in enumerate(inputs)},
        outputs=tuple(
            Output(next(names), TensorSpec.of(leaf)) if isinstance(leaf, FakeTensor) else Output(None, None, leaf)
            for leaf in result.leaves
        ),
        rebuild_outputs=result.rebuild,
        gradients={name: stand_ins.get(node, node).name for name, node in gradients.items()},
        loss=None if loss is None else stand_ins.get(loss, loss).name,
        loss_spec=TensorSpec.of(result.loss) if result.loss is not None else None,
        block_entries=tuple(recorder.trace.block_entries),
        frozen={constant: name for constant, name in frozen.items() if constant is not None},
        draws_random_numbers=recorder.draws_random_numbers,
        activation_gradients=_activation_gradients(recorder, result, stand_ins),
        unsupported=unsupported,
        layers=recorder.trace.layers,
    )


def _activation_gradients(recorder: Recorder, result: Traced, stand_ins: Mapping[Node, Node]) -> dict[str, str]:
    left = set(recorder.graph.nodes)
    names: dict[str, str] = {}
    for pair in result.activation_gradients:
        nodes = [stand_ins.get(node, node) for node in map(recorder.trace.node_of, pair) if node is not None]
        if len(nodes) == 2 and left.issuperset(nodes):
            names.setdefault(nodes[0].name, nodes[1].name)
    return names


def clean(graph: torch.fx.Graph, loss: Node | None = None) -> dict[Node, Node]:
    """Simplify `graph` in place, but for `loss`; return what stands in for each erased node that repeated another."""
    stand_ins = _skip_identities(graph, loss)
    kept = None if loss is None else stand_ins.get(loss, loss)
    _drop_dead(graph, kept)
    _drop_dead_counters(graph)
    _drop_dead(graph, kept)
    graph.lint()
    return stand_ins


def _skip_identities(graph: torch.fx.Graph, loss: Node | None) -> dict[Node, Node]:
    needed: set[Node] = set()  # results, the loss or what is written depend on these: their marks count
    for node in reversed(graph.nodes):
        if node is loss or node.op == "output" or changeable_arguments(node) or not needed.isdisjoint(node.users):
            needed.add(node)
    stand_ins: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _IDENTITIES:
            source = node.args[0]
            assert isinstance(source, Node)
            marks = vars(info_of(node).marks)
            own = {name: value for name, value in marks.items() if value is not None and value is not False}
            if node in needed and own:
                mark(source, **own)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            stand_ins[node] = source
    return stand_ins


def _drop_dead(graph: torch.fx.Graph, kept: Node | None) -> None:
    """Erase what nothing needs; as PopART prunes, a loop with a result that is used runs every repeat."""

    def stays(node: Node) -> bool:
        if node is kept or node.op in ("placeholder", "output") or changeable_arguments(node):
            return True
        info = info_of(node)
        results = info.loop.results if info.loop is not None and info.marks.is_carried else []
        return any(result.users for result in results)

    graph.eliminate_dead_code(stays)


def _drop_dead_counters(graph: torch.fx.Graph) -> None:
    """Erase in-place updates of constants that nothing reads, such as BatchNorm's `num_batches_tracked`."""
    members: dict[Node, list[Node]] = {}
    for node, root in graphs.storage_roots(graph).items():
        members.setdefault(root, []).append(node)
    for root, nodes in members.items():
        if root.op == "get_attr" and all(user in nodes for node in nodes for user in node.users):
            for node in reversed(nodes):
                graph.erase_node(node)


def title_prints(graph: Graph, title_of: Callable[[str, bool], str]) -> None:
    """Give the prints of a graph that have no title one: `title_of(tensor, is_gradient)` of what is printed."""
    for node in graph.ops.nodes:
        printed = info_of(node).marks.printed
        if printed is not None and not printed.title:
            of = node if printed.gradient_of is None else graph.by_name.get(printed.gradient_of, node)
            title = title_of(of.all_input_nodes[0].name, of is not node)
            mark(node, printed=replace(printed, title=title))


def with_results(graph: Graph, wanted: Sequence[str]) -> Graph:
    """Return the graph with these tensors, as they are when they are computed, as anchored outputs after forward's."""
    ops = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    results: Any = ops.graph_copy(graph.ops, copies)
    returned, gradients = results
    sources = [graph.by_name[name] for name in wanted]
    kept = [_kept(ops, copies[node], overwritten=graph.roots[node] in graph.changeable) for node in sources]
    ops.output(((*returned, *kept), tuple(gradients)))
    ops.lint()
    anchored = tuple(Output(node.name, graphs.spec_of(node), anchored=True) for node in kept)
    return replace(graph, ops=ops, outputs=(*graph.outputs, *anchored))


def _kept(ops: torch.fx.Graph, node: Node, *, overwritten: bool) -> Node:
    """Return a node with the value that `node` has when it is computed: a copy if something changes it later."""
    if not overwritten:
        return node
    first = next(op for op in ops.nodes if op.op == "call_function")
    info = info_of(node)
    with ops.inserting_after(node) if node.op == "call_function" else ops.inserting_before(first):
        copy = ops.call_function(torch.ops.aten.clone.default, (node,))
    if info.placement is None:  # a variable or input has no place of its own: its copy goes with the first op
        place = info_of(first)
        info = replace(info, phase=Phase.FORWARD, placement=place.placement, scope=place.scope)
    set_info(copy, replace(info, marks=Marks(is_nop=True, is_anchor=True)))
    return copy
