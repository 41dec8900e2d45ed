"""The performance model: op costs, the order of execution, the memory of every tile, and the time of a call."""

from __future__ import annotations

from dataclasses import replace

from ipu_model.errors import Error
from ipu_model.predict.assembly import Parts, assembled
from ipu_model.predict.costs import Costs, costs_of
from ipu_model.predict.host import HostWork, call_time
from ipu_model.predict.memory import memory_of
from ipu_model.predict.order import Order, order_of
from ipu_model.predict.profile import Memory, Profile
from ipu_model.predict.program import Program
from ipu_model.predict.remembered import Recent
from ipu_model.predict.time import time_of

_memories: Recent[Memory] = Recent()
_profiles: Recent[Profile] = Recent()


def profile_program(program: Program, host: HostWork | None = None) -> Profile:
    """Return everything the model says about a program.

    Raises:
        Error: more IPUs than the machine has, or hints that no device can follow.
    """
    host = host or HostWork()
    check_machine(program)
    costs = costs_of(program.step, program.settings)
    order = order_of(program)
    memory = _memory(program, costs, order)
    time = time_of(program, costs, order)
    call = call_time(program, host, device_seconds=program.system.chip.seconds(time.device_cycles))
    return assembled(Parts(program, host, costs, order, memory, time, call))


def profile_lately(program: Program, host: HostWork | None = None) -> Profile:
    """Return the profile of a program, from the cache if it was computed recently.

    Raises:
        Error: as `profile_program`.
    """
    key = program.choices, host or HostWork()
    known = _profiles.get(program.step, key)
    if known is None:
        # The cache lasts as long as the step, so that what is in it must not hold the step.
        known = _profiles.keep(program.step, key, replace(profile_program(program, host), program=None))
    return replace(known, program=program)


def samples_per_second(program: Program, host: HostWork | None = None) -> float:
    """Return the throughput of a program from end to end, without its memory and the rest of its profile.

    Raises:
        Error: as `profile_program`.
    """
    check_machine(program)
    time = time_of(program, costs_of(program.step, program.settings), order_of(program))
    device_seconds = program.system.chip.seconds(time.device_cycles)
    return program.samples_per_call / call_time(program, host or HostWork(), device_seconds=device_seconds).total


def memory_of_program(program: Program) -> Memory:
    """Return the memory of a program, without the rest of its profile.

    Raises:
        Error: hints that no device can follow.
    """
    return _memory(program, costs_of(program.step, program.settings), order_of(program))


def _memory(program: Program, costs: Costs, order: Order) -> Memory:
    """Return the memory of a program, cached across programs that use the same memory.

    The number of micro-batches or updates does not matter; only whether gradients are accumulated does.
    """
    batching = replace(program.batching, device_iterations=1, accumulation=min(2, program.batching.accumulation))
    key = replace(program, batching=batching, name="").choices
    known = _memories.get(program.step, key)
    return _memories.keep(program.step, key, memory_of(program, costs, order)) if known is None else known


def check_machine(program: Program) -> None:
    """Refuse a program that needs more IPUs than its machine has.

    Raises:
        Error: names both numbers.
    """
    needed = program.ipus_per_replica * program.replicas
    if needed > program.system.ipus:
        raise Error(
            f"The program needs {needed} IPUs ({program.ipus_per_replica} for each of {program.replicas} replicas), "
            f"and {program.system.name} has {program.system.ipus}. Use a larger machine or fewer replicas."
        )
