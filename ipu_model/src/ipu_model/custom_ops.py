"""The CPU arithmetic of custom ops: what a program's `poptorch.custom_op` calls compute here.

PopTorch programs load compiled code for their custom ops with `ctypes`; that code is for IPUs. Register a Python
function for each op instead, before the model is compiled:

    from ipu_model.custom_ops import register

    def cube(x, *, scale=1.0):
        return scale * x**3

    register("Cube", "custom.ops", 1, cube)

`forward(*inputs, **attributes)` returns a tensor or a sequence of tensors, of the shapes and types that the program
gives as `example_outputs`; tensors in half precision arrive as float32 and results are rounded once. What it changes
in place is changed for the program, too, also if nobody uses its results. In training PyTorch differentiates `forward`,
unless there is a `backward(inputs, outputs, gradients, attributes)` that returns the gradient of each input (`None`:
zero) from those of the outputs. A `torch.autograd.Function` is such a pair; attributes follow its inputs in order.

The functions of an op that is registered with `cross_replica=True` see all replicas at once: every tensor above becomes
the list of the replicas' tensors, and they return a list of what they return for each replica:

    def all_gather(xs):
        return [torch.stack(xs)] * len(xs)

    register("AllGather", "custom.ops", 1, all_gather, cross_replica=True)

In the performance model a custom op costs what an op without a formula costs: every operand comes from other tiles and
passes through plain code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ipu_model.errors import Error

Results = Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor]]
Backward = Callable[[Any, Any, Any, Mapping[str, Any]], Sequence[Any] | Tensor]


@dataclass(frozen=True)
class CustomOp:
    name: str
    domain: str
    version: int
    forward: Callable[..., Results]
    backward: Backward | None = None
    cross_replica: bool = False


# As in PopTorch, where loading a library makes its ops known to the process.
_registered: dict[tuple[str, str, int], CustomOp] = {}


def register(
    name: str,
    domain: str,
    version: int,
    forward: Callable[..., Results] | type[torch.autograd.Function],
    backward: Backward | None = None,
    *,
    cross_replica: bool = False,
) -> CustomOp:
    """Say what a custom op computes, in place of earlier registrations; models that are compiled keep theirs."""
    if [type(part) for part in (name, domain, version)] != [str, str, int]:
        raise Error(f"A custom op has a name, a domain (strings) and a version (int), not {(name, domain, version)}.")
    for role, function in (("forward", forward), ("backward", backward or forward)):
        if not callable(function):
            raise Error(f"The {role} of custom op {domain}.{name} must be callable, not {type(function)}.")
    is_pair = isinstance(forward, type) and issubclass(forward, torch.autograd.Function)
    call: Any = partial(_applied, forward) if is_pair else forward
    op = CustomOp(name, domain, version, call, backward, cross_replica)
    _registered[name, domain, version] = op
    return op


def _applied(function: Any, *inputs: Tensor, **attributes: Any) -> Any:
    return function.apply(*inputs, *attributes.values())


def unregister(op: CustomOp) -> None:
    if _registered.get((op.name, op.domain, op.version)) is op:
        del _registered[op.name, op.domain, op.version]


def find(name: str, domain: str, version: int) -> CustomOp:
    """Return the registered op; an `Error` says how to register one that is missing."""
    op = _registered.get((name, domain, version))
    if op is None:
        known = ", ".join(sorted(f"{op.domain}.{op.name}:{op.version}" for op in _registered.values()))
        raise Error(
            f"poptorch.custom_op: the op {name!r} of domain {domain!r}, version {version}, has no CPU arithmetic, and "
            "compiled code for IPUs cannot run on the IPU Model. Give it a Python function before the model is "
            f"compiled: ipu_model.custom_ops.register({name!r}, {domain!r}, {version}, forward). "
            f"Registered: {known or 'none'}."
        )
    return op
