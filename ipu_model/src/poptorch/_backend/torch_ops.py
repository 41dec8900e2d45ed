"""`torch.ops.poptorch`: the ops that programs call there, which are those of `poptorch`.

PopTorch registers them with PyTorch from C++. They are plain Python functions here, so that each is recorded as the
function of `poptorch` that does the same is.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.step import Placement
from poptorch import _impl, ops
from poptorch._impl import refusal
from poptorch._utils import accessAttributes
from poptorch.enums import OverlapMode
from poptorch.ops._tracing import check
from poptorch.ops.annotations import clear_attribute, pop_name_scope, push_name_scope, set_attribute

_NAME = "torch.ops.poptorch"
_TYPES = {"FLOAT": torch.float32, "FLOAT32": torch.float32, "FLOAT16": torch.float16, "HALF": torch.float16}
_REDUCTIONS = ("sum", "mean", "none")


def begin_ipu_block(stage_id: int, phase_id: int, ipu_id: int) -> None:
    """Place the following ops in this stage and phase (-1 if phases are not used), on this IPU."""
    given: dict[str, object] = {"stage_id": stage_id, "phase_id": phase_id, "ipu_id": ipu_id}
    for name, number in given.items():
        least = -1 if name == "phase_id" else 0
        fits = isinstance(number, int) and number >= least
        check(fits, f"{_NAME}.begin_ipu_block: {name} must be an int, {least} or more; got {number!r}.")
    trace = tracing.current()
    if trace is not None:
        trace.placement = Placement(block="", stage=stage_id, ipu=ipu_id, phase=phase_id if phase_id >= 0 else None)


def end_ipu_block() -> None:
    trace = tracing.current()
    if trace is not None:
        trace.end_block()


def internal_cast(self: Tensor, dtype: str) -> Tensor:
    check(dtype in _TYPES, f"{_NAME}.internal_cast: the type must be one of {', '.join(_TYPES)}; got {dtype!r}.")
    return _impl.internal_cast(self, _TYPES[dtype])


def identity_loss(x: Tensor, reduction: int) -> Tensor:
    fits = reduction in range(len(_REDUCTIONS))
    check(fits, f"{_NAME}.identity_loss: the reduction must be 0 (sum), 1 (mean) or 2 (none); got {reduction!r}.")
    return ops.identity_loss(x, _REDUCTIONS[reduction])


def custom_operation(
    inputs: list[Tensor],
    name: str,
    domain: str,
    domain_version: int,
    num_outputs: int,
    example_outputs: list[Tensor],
    attributes_id_str: str,
) -> list[Tensor]:
    """Call a custom op; its attributes are given as the text that `accessAttributes` understands."""
    attributes = accessAttributes(attributes_id_str)
    return ops.custom_op(inputs, name, domain, domain_version, list(example_outputs)[:num_outputs], attributes)


def _overlap(mark: Callable[[Tensor, OverlapMode], Tensor]) -> Callable[[Tensor, str], Tensor]:
    return lambda tensor, mode: mark(tensor, OverlapMode(mode))


def optimizer_group(group: int, inputs: list[Tensor]) -> None:
    """Do nothing: the executor reads the groups from the optimiser."""


_OWN = (begin_ipu_block, end_ipu_block, internal_cast, identity_loss, custom_operation, optimizer_group)
_SCOPES = (push_name_scope, pop_name_scope, set_attribute, clear_attribute)
_HINTS = (ops.ipu_print_tensor, ops.nop, ops.set_available_memory)
_SELECTIONS = (ops.dynamic_slice, ops.dynamic_update, ops.ctc_beam_search_decoder, ops.fps, ops.nearest)
_OPS: dict[str, Callable[..., Any]] = {op.__name__: op for op in (*_OWN, *_SCOPES, *_HINTS, *_SELECTIONS)}
_OPS["recomputation_checkpoint"] = ops.recomputationCheckpoint
_OPS |= {mark.__name__: _overlap(mark) for mark in (ops.set_overlap_for_input, ops.set_overlap_for_output)}

# Ops of PopTorch that come in pairs around a body, which they do not receive, with the function to use instead.
_REFUSED = {
    name: refusal(f"{_NAME}.{name}", f"Use {instead}.")
    for instead, names in (
        ("poptorch.for_loop", "start_for_loop end_for_loop"),
        ("poptorch.cond", "start_if_true start_if_false end_if"),
        ("poptorch.MultiConv", "begin_multi_conv end_multi_conv"),
        ("poptorch.CPU", "call_cpu_op end_cpu_op"),
        ("poptorch.serializedMatMul", "set_matmul_serialization"),
    )
    for name in names.split()
}


class _Operations(types.ModuleType):
    """The namespace; unlike PyTorch's own namespaces, its errors list the ops that exist."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(_OPS))
        raise AttributeError(f"'_OpNamespace' 'poptorch' object has no attribute '{name}'. Available: {known}.")


def register() -> None:
    namespace = _Operations(_NAME)
    vars(namespace).update(_OPS, **_REFUSED)
    torch.ops.poptorch = namespace  # type: ignore[attr-defined]  # made by registrations otherwise
