"""The trace under way, and how `poptorch`'s annotations reach it; outside a trace they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch.fx
from torch import Tensor

from ipu_model.capture.graph import Loop, Marks, info_of, mark, set_info
from ipu_model.capture.torch_private import replaced
from ipu_model.errors import Error
from ipu_model.step import NOWHERE, Phase, Placement


class Placer(Protocol):
    def place(self, user_id: str | None, ipu_id: int | None) -> Placement:
        """Decide block id, stage and IPU of a block that starts now."""

    def use_auto_id(self) -> None:
        """Restart automatic block ids at "0"."""


@dataclass
class Trace:
    """The mutable state of a recording; `on_host()` gives the module its own tensors for a body, such as a CPU op's."""

    placer: Placer
    training: bool = False
    warns: bool = True
    nodes: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    placement: Placement | None = NOWHERE
    phase: Phase = Phase.FORWARD
    scopes: list[str] = field(default_factory=lambda: [""])
    layers: dict[str, str] = field(default_factory=dict)
    block_entries: list[Placement] = field(default_factory=list)
    loss_marks: list[Tensor] = field(default_factory=list)
    entered: list[tuple[Any, Any]] = field(default_factory=list)  # annotations of what is under way, innermost last
    scope_of_error: str = ""
    records_gradients: bool = True
    in_torch_function: bool = False
    in_function: bool = False  # forward of a `torch.autograd.Function`, where PyTorch has turned gradients off anyway
    in_handler: bool = False
    function_results: list[Tensor] = field(default_factory=list)
    warned: set[object] = field(default_factory=set)
    loop: Loop | None = None
    host_functions: dict[str, Callable[..., object]] = field(default_factory=dict)
    on_host: Callable[[], AbstractContextManager[None]] = nullcontext
    node_of: Callable[[Tensor], torch.fx.Node | None] = field(default=lambda tensor: None)

    def begin_block(self, user_id: str | None, ipu_id: int | None) -> None:
        self.placement = self.placer.place(user_id, ipu_id)
        self.block_entries.append(self.placement)

    def end_block(self) -> None:
        """Leave the current block: ops are refused until another one begins (there is no stack)."""
        self.placement = None

    def is_first(self, subject: object) -> bool:
        """Return whether a trace that warns asks this for the first time: warnings are given once."""
        is_first = self.warns and subject not in self.warned
        self.warned.add(subject)
        return is_first

    def hint(self, tensor: Tensor, **marks: Any) -> None:
        """Set fields of `Marks` of the input or op that `tensor` is, if it belongs to this trace."""
        node = self.node_of(tensor)
        if node is not None:
            mark(node, **marks)

    def marked(self, is_wanted: Callable[[Marks], bool]) -> list[torch.fx.Node]:
        return [node for node in self.nodes.nodes if is_wanted(info_of(node).marks)]

    def name_scope(self, ops: Iterable[torch.fx.Node], name: str) -> None:
        """Put a name in front of those that the ops have, at the depth of the module that is running."""
        scope = self.scopes[-1]
        part = (scope.count(".") + 1 if scope else 0, name)
        for op in ops:
            info = info_of(op)
            set_info(op, replace(info, name_scopes=(part, *info.name_scopes)))

    def set_attributes(self, ops: Iterable[torch.fx.Node], attributes: Mapping[str, Mapping[str, str]]) -> None:
        for op in ops:
            info = info_of(op)
            names = {**attributes, **info.attributes}
            merged = {name: {**attributes.get(name, {}), **info.attributes.get(name, {})} for name in names}
            set_info(op, replace(info, attributes=merged))

    def place_forward_op(self, name: str) -> Placement:
        if self.placement is None:
            raise Error(
                f"No active Block: the operation '{name}' in module '{self.scopes[-1] or 'model'}' is executed after a "
                "`with poptorch.Block(...)` ended and before another one begins. Put it (the loss included) inside a "
                "block, for instance by entering the last block again under the same name."
            )
        return self.placement


_current: ContextVar[Trace | None] = ContextVar("ipu_model_trace", default=None)


def current() -> Trace | None:
    return _current.get()


def is_tracing() -> bool:
    return _current.get() is not None


@contextmanager
def active(trace: Trace | None) -> Iterator[None]:
    """Make `trace` the current one for the body; `None` for what the host computes while a trace is under way."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def one_handler() -> AbstractContextManager[None]:
    """PopTorch has a handler for what the body computes, whatever ops it consists of here."""
    trace = current()
    return nullcontext() if trace is None else replaced(trace, in_handler=True)
