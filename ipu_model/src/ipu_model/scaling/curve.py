"""A program with more and more replicas: modelled throughput beside what perfect scaling would give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ipu_model.entry_points import program_of
from ipu_model.errors import Error
from ipu_model.hardware import system_with
from ipu_model.host_work import HostWork
from ipu_model.knobs import changed
from ipu_model.profiling.build import profile_program
from ipu_model.profiling.data import Profile
from ipu_model.program import Program


@dataclass(frozen=True)
class ScalingPoint:
    """One number of replicas; `profile` is `None` where the program cannot have it, for the reason in `refused`.

    `theoretical_samples_per_second` are R times those of one replica. `instances` are host processes,
    `global_batch` the samples of one weight update of all replicas.
    """

    replicas: int
    instances: int
    accumulation: int
    global_batch: int
    theoretical_samples_per_second: float
    profile: Profile | None
    refused: str = ""

    @property
    def samples_per_second(self) -> float:
        """Modelled samples a second; not a number where there is no profile."""
        return self.profile.samples_per_second if self.profile is not None else float("nan")

    @property
    def efficiency(self) -> float:
        """Modelled against theoretical samples a second."""
        return self.samples_per_second / self.theoretical_samples_per_second


def scaling(
    executor: Any,
    replicas: Iterable[int],
    *,
    host: HostWork | None = None,
    replicas_per_instance: int | None = None,
    constant_global_batch: bool = False,
    **changes: Any,
) -> tuple[ScalingPoint, ...]:
    """Return one point for each number of replicas, each on the smallest machine of its chip that has enough IPUs.

    `executor` is a compiled executor or a `Program`. Host processes run `replicas_per_instance` replicas each, all of
    them in one process if it is `None`. The accumulation stays (the global batch grows) or, with
    `constant_global_batch`, is that of one replica divided by the number of replicas. `changes` are made to all points,
    named as in `ipu_model.knobs.KNOBS`. A point that is impossible has no profile.

    Raises:
        Error: unknown options, or one replica that is impossible.
    """
    one = changed(program_of(executor), **{**changes, "replicas": 1, "processes": 1})
    alone = profile_program(_on_machine(one), host).samples_per_second
    return tuple(
        _point(one, count, alone * count, host, replicas_per_instance, constant_global_batch) for count in replicas
    )


def _point(
    one: Program, count: int, theory: float, host: HostWork | None, per_instance: int | None, constant: bool
) -> ScalingPoint:
    instances = 1 if per_instance is None else max(1, count // max(1, per_instance))
    accumulation = one.batching.accumulation
    profile, refused = None, ""
    try:
        if constant:
            accumulation = _divided(accumulation, count)
        profile = profile_program(_replicated(one, count, instances, accumulation), host)
    except Error as problem:
        refused = problem.message
    return ScalingPoint(
        count, instances, accumulation, one.samples_per_micro_batch * accumulation * count, theory, profile, refused
    )  # fmt: skip


def _replicated(one: Program, count: int, instances: int, accumulation: int) -> Program:
    if count < 1:
        raise Error(f"A program has at least one replica, not {count!r}.")
    if count % instances:
        raise Error(
            f"{count} replicas cannot be dealt out evenly over {instances} instances: use a multiple of {instances}."
        )
    more = changed(
        one, replicas=count // instances, processes=instances, gradient_accumulation=accumulation
    )  # fmt: skip
    return _on_machine(more)


def _on_machine(program: Program) -> Program:
    """Return the program on the smallest machine of its chip that has enough IPUs."""
    system = system_with(program.system.chip.name, program.ipus_per_replica * program.replicas)
    return changed(program, machine=system)


def _divided(accumulation: int, replicas: int) -> int:
    if replicas < 1 or accumulation % replicas:
        raise Error(
            f"A gradient accumulation of {accumulation} cannot be shared out evenly among {replicas} replicas at a "
            f"constant global batch: use a number of replicas that divides {accumulation}."
        )
    return accumulation // replicas
