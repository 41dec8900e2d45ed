"""What several ops ask of their arguments and of the trace under way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
import torch.fx

from ipu_model.capture import tracing
from ipu_model.capture.graph import aliased_argument, info_of, mark, written_arguments
from ipu_model.capture.tracing import Trace
from poptorch._impl import createPoptorchError

Node = torch.fx.Node


@dataclass(frozen=True)
class Body:
    """A place in a trace; `ops()` returns what was recorded after it."""

    trace: Trace
    before: Node | None

    @classmethod
    def begin(cls, trace: Trace) -> Body:
        """Remember the present end of the trace."""
        return cls(trace, next(iter(reversed(trace.nodes.nodes)), None))

    def ops(self) -> list[Node]:
        later = takewhile(lambda node: node is not self.before, reversed(self.trace.nodes.nodes))
        return [node for node in later if node.op == "call_function"][::-1]

    def refuse_writes_outside(self, name: str) -> None:
        ops = dict.fromkeys(self.ops())
        for op in ops:
            check(
                all(_owner(tensor) in ops for tensor in written_arguments(op)),
                f"{name}: the body changes a tensor from outside in place ({op.target}). It may read such "
                "tensors; to change one, pass it in the list of inputs and return its new value.",
            )

    def fix_outside(self, what: str) -> None:
        """Let no custom op of the body change a tensor from outside: the error says `what` it is."""
        ops = dict.fromkeys(self.ops())
        for op in ops:
            function = info_of(op).marks.function
            if function is not None and function.may_write:
                operands: Any = op.args[0]
                fixed = {i: what for i, operand in enumerate(operands) if _owner(operand) not in ops}
                mark(op, function=replace(function, fixed=fixed))


def _owner(node: Node) -> Node:
    source = aliased_argument(node)
    while source is not None:
        node, source = source, aliased_argument(source)
    return node


_REMEDY = (
    "In a training model write the loop in Python and select values with torch.where, torch.gather or torch.scatter."
)


def refuse_training(name: str, remedy: str = _REMEDY) -> None:
    trace = tracing.current()
    if trace is not None and trace.training:
        raise createPoptorchError(f"{name} is only supported in inference. {remedy}")


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check(fits: object, message: str) -> None:
    if not fits:
        raise createPoptorchError(message)


def require_tensors(function: str, **arguments: object) -> None:
    for name, value in arguments.items():
        check(isinstance(value, torch.Tensor), f"{function}: {name} must be a tensor, not {type(value)}.")


def require_tensor(function: str, value: object) -> None:
    check(isinstance(value, torch.Tensor), f"{function} must take a torch.tensor argument, not {type(value)}.")
