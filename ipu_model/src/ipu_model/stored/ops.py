"""Ops by name: those of PyTorch's tensor library and the IPU Model's own; no other name is looked up."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

# They register the ops of the IPU Model.
from ipu_model.capture.device_ops.python_ops import CUSTOM, CUSTOM_GRADIENT, HOST_CALL
from ipu_model.stored.values import Invalid, NotStorable

_NAMESPACES = frozenset({"aten", "ipu_model", "torchvision"})
_GETITEM = "getitem"
# Python functions compute them, and a file holds none.
_OF_PYTHON = frozenset(f"ipu_model::{kind}" for kind in (HOST_CALL, CUSTOM, CUSTOM_GRADIENT))
# A file must not make a replay read or write other files.
_FORBIDDEN = frozenset({"filename"})


def name_of(target: Any) -> str:
    """Return the name under which `op_named` finds `target`.

    Raises:
        NotStorable: an op of another library, or a Python function.
    """
    if target is operator.getitem:
        return _GETITEM
    if isinstance(target, torch._ops.OpOverload) and target._schema.name in _OF_PYTHON:
        raise NotStorable(f"the op {target}, which a Python function computes (a CPU op or a custom op)")
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
    known = op.namespace in _NAMESPACES and op._schema.name not in _OF_PYTHON
    return known and not any(argument.name in _FORBIDDEN for argument in op._schema.arguments)
