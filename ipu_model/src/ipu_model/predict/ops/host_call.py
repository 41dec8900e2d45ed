"""An op that the host computes in the middle of a program (`poptorch.CPU`): operands are sent there, and results come
back.

The IPU waits in the meantime. The host's computing time is not modelled, because it depends on the function and the
host.
"""

from __future__ import annotations

from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops.rule import OpView, OpWork, Rule


def host_call(device: Device, sent: float, received: float) -> Work:
    """Return the work of sending bytes to the host, waiting for it once, and receiving bytes."""
    link = device.calibration.stream
    seconds = link.run_wait_seconds + (sent + received) / link.ipu_bytes_per_second
    seconds += sent / link.completion_bytes_per_second + received / link.refill_bytes_per_second
    return Work("host call", Cycles(exchange=seconds * device.chip.clock_hz))


def cost_host_call(op: OpView) -> OpWork:
    """Cost the transfers to the host and back."""
    sent = sum(operand.elements * operand.element.bytes for operand in op.operands())
    received = sum(each.elements * Element.of(each.dtype).bytes for each in op.outputs if each is not None)
    return op.takes(host_call(op.device, sent, received))


RULES = (Rule(("host_call",), cost_host_call),)
