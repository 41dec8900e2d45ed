"""Costs and memory of a step, remembered: many programs that differ in their options only share one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from ipu_model.memory import memory_of
from ipu_model.per_graph import remembered_of
from ipu_model.predict.costs import Costs, costs_of
from ipu_model.predict.device import CostSettings
from ipu_model.profiling.data import Memory
from ipu_model.program import Program
from ipu_model.recompute import Kept
from ipu_model.step import Step

Key = TypeVar("Key")
Value = TypeVar("Value")
_KEPT_PER_STEP = 8


class _Recent(Generic[Key, Value]):
    """The values found lately for each step, by keys that can be compared but need not be hashable."""

    def __init__(self) -> None:
        # The key of this kind of values among all that is remembered of a step.
        self._own = object()

    def get(self, step: Step, key: Key, find: Callable[[], Value]) -> Value:
        """Return the value of `key`, found now if it is not remembered. Threads may find one value twice."""
        of_step = remembered_of(step)
        known: tuple[tuple[Key, Value], ...] = of_step.get(self._own, ())
        for kept, value in known:
            if kept == key:
                return value
        found = find()
        of_step[self._own] = (*known[1 - _KEPT_PER_STEP :], (key, found))
        return found


_costs: _Recent[CostSettings, Costs] = _Recent()
_memories: _Recent[Program, Memory] = _Recent()


def lowered(step: Step, settings: CostSettings) -> Costs:
    """Return `costs_of(step, settings)`, at once if it was asked for lately.

    Raises:
        Error: a hint that no device can follow.
    """
    return _costs.get(step, settings, lambda: costs_of(step, settings))


def memory_for(program: Program, costs: Costs, kept: Kept) -> Memory:
    """Return `memory_of` these, at once if it was asked for lately of a program with the same memory.

    How often a micro-batch or an update is repeated changes nothing: only whether gradients are accumulated does.
    """
    batching = replace(program.batching, device_iterations=1, accumulation=min(2, program.batching.accumulation))
    key = replace(program, batching=batching, name="")
    return _memories.get(program.step, key, lambda: memory_of(program, costs, kept))
