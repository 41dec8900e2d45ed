"""Annotations of where parts of a model run, `Block` and its kin, and of what transfers with the host may overlap.

Outside a trace they do nothing, so an annotated model is an ordinary module on the CPU. What overlaps is noted on ops
for the performance model; no value depends on it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from ipu_model.capture import tracing
from ipu_model.capture.tracing import Trace
from ipu_model.errors import require
from poptorch._impl import Function, createPoptorchError
from poptorch._utils import flattenTensorStructure, reconstructTensorStructure
from poptorch.enums import OverlapMode
from poptorch.ops._tracing import check
from poptorch.options.strategies import runs_stages_at_once


class Block(nn.Module):
    """Place the ops of a `with` body in one block; leaving it leaves no block active.

    A module without `forward`, as in PopTorch; `user_id` names the block, `ipu_id` is an index inside the model.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.end_block()

    @staticmethod
    def useAutoId() -> None:
        """Restart automatic block ids at "0"; call it first in forward."""
        trace = tracing.current()
        if trace is not None:
            trace.placer.use_auto_id()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Start a block that lasts until another one starts."""
        trace = tracing.current()
        if trace is not None:
            trace.begin_block(user_id, ipu_id)


class _BlockHook:
    """The forward pre-hook that `BeginBlock` registers; an automatic id is drawn once and kept."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self._user_id, self._ipu_id = user_id, ipu_id

    def __call__(self, module: nn.Module, input: Any) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.begin_block(self._user_id, self._ipu_id)
            # Another trace must put it in the same stage.
            self._user_id = trace.block_entries[-1].block

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


# Annotated modules are read back as other modules are: the hook holds a name and a number.
torch.serialization.add_safe_globals([_BlockHook])


class LegacyBeginBlockFn(nn.Module):
    """A callable that starts a block whenever it is called; an automatic id is drawn once and kept."""

    def __init__(
        self, layer_to_call: Callable[..., Any], user_id: str | None = None, ipu_id: int | None = None
    ) -> None:
        super().__init__()
        self._hook, self._layer_to_call = _BlockHook(user_id, ipu_id), layer_to_call

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        self._hook(self, input)
        return self._layer_to_call(*input, **kwargs)


def BeginBlock(
    layer_to_call: nn.Module | Callable[..., Any], user_id: str | None = None, ipu_id: int | None = None
) -> nn.Module:
    """Start a block whenever `layer_to_call` is called, lasting until another starts; return the same module.

    Raises `poptorch.Error` for a module that is annotated already, and for what is neither a module nor a function.
    """
    if not callable(layer_to_call):
        raise createPoptorchError(
            f"BeginBlock: {layer_to_call!r} is not an instance of torch.nn.Module or function. Pass the layer itself."
        )
    if not isinstance(layer_to_call, nn.Module):
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    check(
        not any(isinstance(hook, _BlockHook) for hook in layer_to_call._forward_pre_hooks.values()),
        "module has already been assigned to a block. Call poptorch.removeBlocks(module) first to annotate it again.",
    )
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Function], Function]:
    """Decorate a function or method so that each call runs inside `with Block(user_id, ipu_id)`."""
    is_name = isinstance(user_id, str) or not user_id
    require(is_name, f"BlockFunction takes a name, as in @poptorch.BlockFunction('name'); got {user_id!r}.")

    def decorate(function: Function) -> Function:
        require(callable(function), f"BlockFunction('name') decorates a function or method; got {function!r}.")

        @functools.wraps(function)
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return cast(Function, in_block)

    return decorate


def removeBlocks(module: nn.Module) -> None:
    """Remove every `BeginBlock` annotation from a module and its submodules; other hooks stay."""
    require(isinstance(module, nn.Module), f"removeBlocks takes a torch.nn.Module, not {type(module)}.")
    for child in module.modules():
        for handle, hook in list(child._forward_pre_hooks.items()):
            if isinstance(hook, _BlockHook):
                del child._forward_pre_hooks[handle]


T = TypeVar("T")

_NO_OUTPUT = (
    "poptorch.set_overlap_for_output applied on a node which is not a tensor output to the model. Apply it to what "
    "forward returns, after everything else."
)


def set_overlap_for_input(input_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model inputs to overlap the computation; return `input_tensors` unchanged.

    `input_tensors` is a tensor or any nesting of tuples, lists and dicts; leaves that are no tensors pass through.
    Raises `AssertionError` if `mode` is no `OverlapMode`; when traced, `poptorch.Error` for a tensor that is not a
    model input or has other uses, and for a pipelined strategy; when compiled, also without I/O tiles and for output
    modes other than `All` and `Sum`.
    """
    trace = _trace_taking(mode, "input")
    if trace is None:
        return input_tensors
    inputs = flattenTensorStructure(input_tensors)
    for tensor in inputs:
        node = trace.node_of(tensor)
        if node is None or node.op != "placeholder" or not node.name.startswith("input_"):
            raise createPoptorchError(
                "poptorch.set_overlap_for_input applied on a node which is not a tensor input to the model. "
                "Apply it to the arguments of forward, before anything else."
            )
        _check_users([user.name for user in node.users])
    # An op of its own tells later uses of what is returned from uses of the input itself; it is dropped afterwards.
    marked = [torch.ops.aten.alias.default(tensor) for tensor in inputs]
    for tensor in marked:
        trace.hint(tensor, overlap_input=mode.value)
    return cast(T, reconstructTensorStructure(input_tensors, marked))


def set_overlap_for_output(output_tensors: T, mode: OverlapMode) -> T:
    """Ask for the transfer of model outputs to overlap the computation; return `output_tensors` unchanged.

    Takes the same structures and raises the same errors as `set_overlap_for_input`, but for a tensor that forward does
    not return, or returns twice.
    """
    trace = _trace_taking(mode, "output")
    if trace is not None:
        for tensor in flattenTensorStructure(output_tensors):
            check(trace.node_of(tensor) is not None, _NO_OUTPUT)
            trace.hint(tensor, overlap_output=mode.value)
    return output_tensors


def check_marks(outputs: Any) -> None:
    """Raise `poptorch.Error` for marked inputs used elsewhere and outputs not returned once; call as forward ends."""
    trace = tracing.current()
    if trace is None:
        raise AssertionError("forward is not being traced")
    returned = Counter(trace.node_of(tensor) for tensor in flattenTensorStructure(outputs))
    for mark in trace.marked(lambda marks: marks.overlap_input is not None):
        (source,) = mark.all_input_nodes
        others = [node.name for node in source.users if node is not mark]
        _check_users([*others, "the output of forward"] if returned[source] else others)
    for node in trace.marked(lambda marks: marks.overlap_output is not None):
        check(returned[node], _NO_OUTPUT)
        check(
            returned[node] == 1,
            "poptorch.set_overlap_for_output: the tensor is returned twice. Return it once, or return a copy of it "
            "(poptorch.nop(tensor)) in the other place.",
        )


def _trace_taking(mode: OverlapMode, kind: str) -> Trace | None:
    is_mode = isinstance(mode, OverlapMode)
    require(is_mode, f"set_overlap_for_{kind} takes a poptorch.OverlapMode as mode; got {mode!r}.")
    trace = tracing.current()
    check(
        trace is None or mode is OverlapMode.NoOverlap or not runs_stages_at_once(trace.placer),
        f"poptorch.set_overlap_for_{kind}: overlapping host I/O is not supported with poptorch.PipelinedExecution. If "
        "you are only using a single IPU, please switch to poptorch.ShardedExecution.",
    )
    return trace


def _check_users(others: list[str]) -> None:
    if others:
        raise createPoptorchError(
            f"poptorch.set_overlap_for_input must be the only op applied to an input; {others[0]} uses it too. Apply "
            "it first and use what it returns everywhere."
        )
