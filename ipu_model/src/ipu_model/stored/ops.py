"""Ops by name: those of PyTorch's tensor library and the IPU Model's own; no other name is looked up."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

import ipu_model.capture.ctc  # noqa: F401  # registers the ops of the IPU Model
from ipu_model.stored.values import Invalid, NotStorable

_NAMESPACES = frozenset({"aten", "ipu_model", "torchvision"})
_GETITEM = "getitem"
# A file must not make a replay read or write other files.
_FORBIDDEN = frozenset({"filename"})


def name_of(target: Any) -> str:
    """Return the name under which `op_named` finds `target`.

    Raises:
        NotStorable: an op of another library, or a Python function.
    """
    if target is operator.getitem:
        return _GETITEM
    if not isinstance(target, torch._ops.OpOverload) or not _is_allowed(target):
        raise NotStorable(f"the op {target}")
    return str(target)


def op_named(name: str) -> Callable[..., Any]:
    """Return the op of a name.

    Raises:
        Invalid: unknown, or none that a program may have.
    """
    if name == _GETITEM:
        return operator.getitem
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    op = None
    if namespace in _NAMESPACES and all(part.isidentifier() for part in (packet, overload)):
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if not isinstance(op, torch._ops.OpOverload) or not _is_allowed(op):
        raise Invalid(f"the op {name!r} is not known here")
    return op


def _is_allowed(op: torch._ops.OpOverload) -> bool:
    return op.namespace in _NAMESPACES and not any(a.name in _FORBIDDEN for a in op._schema.arguments)
