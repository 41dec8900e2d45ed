"""The rule for ops that the host computes (`poptorch.CPU`, see `ipu_model.capture.device_ops.python_ops`)."""

from __future__ import annotations

from dataclasses import asdict

from ipu_model.cost.device import Element
from ipu_model.cost.host_call import HostLink, host_call
from ipu_model.lower.view import OpView, Result, Rule, result


def rules() -> dict[str, Rule]:
    """Return the rule of CPU ops."""
    return {"host_call": lower_host_call}


def lower_host_call(op: OpView) -> Result:
    """Cost the way to the host and back."""
    from ipu_model.schedule.constants import stream_constants  # schedules are made from lowered graphs

    link = HostLink(**asdict(stream_constants()))
    sent = sum(operand.elements * operand.element.bytes for operand in op.operands())
    received = sum(each.elements * Element.of(each.dtype).bytes for each in op.outputs if each is not None)
    return result(op, host_call(op.device, link, sent, received))
