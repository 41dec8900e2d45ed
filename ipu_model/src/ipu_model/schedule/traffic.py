"""Bytes that one micro-batch moves: from the host, to the host, and between neighbouring stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.predict.device import Element
from ipu_model.step import Step, Tensor


@dataclass(frozen=True)
class Traffic:
    """Bytes of one micro-batch by stage: read from and written to the host, sent on and sent back.

    `on[k]` goes from stage k to k + 1, `back[k]` from stage k to k - 1. What a later stage needs passes through all
    stages between.
    """

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]
    on: tuple[float, ...]
    back: tuple[float, ...]


def traffic_of(step: Step) -> Traffic:
    """Return the bytes that a micro-batch moves; 64-bit elements travel as 32-bit ones."""
    inputs, outputs, on, back = ([0.0] * len(step.stages) for _ in range(4))
    entering = input_stages(step)
    for tensor in step.inputs:
        if tensor.name in entering:
            inputs[entering[tensor.name]] += device_bytes(tensor)
    for name in step.outputs:
        maker = step.producer(name)
        outputs[0 if maker is None else maker.stage] += device_bytes(step.tensors[name])
    for tensor, source, target in _crossings(step, entering):
        size = device_bytes(tensor)
        for stage in range(source, target):
            on[stage] += size
        for stage in range(source, target, -1):
            back[stage] += size
    return Traffic(tuple(inputs), tuple(outputs), tuple(on), tuple(back))


def input_stages(step: Step) -> dict[str, int]:
    """Return the stage that first reads each input, by tensor name; inputs that nothing reads are not sent."""
    return {
        tensor.name: min(reader.stage for reader in readers)
        for tensor in step.inputs
        if (readers := step.readers.get(tensor.name))
    }


def device_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor as the device holds it."""
    return tensor.elements * Element.of(tensor.dtype).bytes


def _crossings(step: Step, entering: dict[str, int]) -> Iterator[tuple[Tensor, int, int]]:
    """Yield every tensor that stages other than its own read, its stage, and the farthest reader on either side."""
    if len(step.stages) == 1:
        return
    for tensor in step.tensors.values():
        maker = step.producer(tensor.name)
        own = entering.get(tensor.name) if maker is None else maker.stage
        if own is None:
            continue
        reading = {reader.stage for reader in step.readers.get(tensor.name, ())}
        if reading and max(reading) > own:
            yield tensor, own, max(reading)
        if reading and min(reading) < own:
            yield tensor, own, min(reading)
