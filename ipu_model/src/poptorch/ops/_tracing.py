"""What several ops ask of the trace under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.fx

from ipu_model.capture import tracing
from ipu_model.capture.aliases import aliased_argument, written_arguments
from poptorch._impl import createPoptorchError

if TYPE_CHECKING:
    from ipu_model.capture.tracing import Trace


Node = torch.fx.Node


@dataclass(frozen=True)
class Body:
    """A place in a trace; `ops()` returns what was recorded after it."""

    trace: Trace
    before: Node | None

    @classmethod
    def begin(cls) -> Body | None:
        """Remember the present end of the trace under way; `None` outside a trace."""
        trace = tracing.current()
        if trace is None:
            return None
        return cls(trace, next(iter(reversed(trace.nodes.nodes)), None))

    @property
    def is_current(self) -> bool:
        """Whether the trace that it belongs to is still under way."""
        return tracing.current() is self.trace

    def ops(self) -> list[Node]:
        """Return the ops recorded since, in order."""
        found = []
        for node in reversed(self.trace.nodes.nodes):
            if node is self.before:
                break
            if node.op == "call_function":
                found.append(node)
        return found[::-1]

    def writes_outside(self) -> Node | None:
        """Return an op of the body that changes a tensor made before it in place, or `None`."""
        ops = self.ops()
        inside = set(ops)
        for node in ops:
            if any(_owner(argument) not in inside for argument in written_arguments(node)):
                return node
        return None


def _owner(node: Node) -> Node:
    """Return the node that made the storage `node` is a view of."""
    source = aliased_argument(node)
    while source is not None:
        node, source = source, aliased_argument(source)
    return node


_REMEDY = (
    "In a training model write the loop in Python and select values with torch.where, torch.gather or torch.scatter."
)


def refuse_training(name: str, remedy: str = _REMEDY) -> None:
    """Raise `poptorch.Error` if a training model is being traced; `name` is what the program called."""
    trace = tracing.current()
    if trace is not None and trace.training:
        raise createPoptorchError(f"{name} is only supported in inference. {remedy}")
