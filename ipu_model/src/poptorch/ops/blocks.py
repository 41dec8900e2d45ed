"""Annotations that place parts of a model: `Block`, `BeginBlock`, `BlockFunction`.

Outside a trace they do nothing, so an annotated model is an ordinary module on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import nn

from ipu_model.capture import tracing
from ipu_model.errors import require
from poptorch._impl import createPoptorchError
from poptorch.ops._tracing import check

Function = TypeVar("Function", bound=Callable[..., Any])


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
        _enter(self)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def _enter(owner: _BlockHook | LegacyBeginBlockFn) -> None:
    """Start a block; its owner keeps the id, because another trace must put it in the same stage."""
    trace = tracing.current()
    if trace is not None:
        trace.begin_block(owner._user_id, owner._ipu_id)
        owner._user_id = trace.block_entries[-1].block


class LegacyBeginBlockFn(nn.Module):
    """A callable that starts a block whenever it is called; an automatic id is drawn once and kept."""

    def __init__(
        self, layer_to_call: Callable[..., Any], user_id: str | None = None, ipu_id: int | None = None
    ) -> None:
        super().__init__()
        self._user_id, self._ipu_id, self._layer_to_call = user_id, ipu_id, layer_to_call

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        _enter(self)
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

    def decorate(function: Function) -> Function:
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
