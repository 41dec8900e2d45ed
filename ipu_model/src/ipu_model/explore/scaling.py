"""How a program scales over replicas, beside perfect scaling, and which part of an update stays constant.

A weight update of G micro-batches takes T(G) = m G + u: m seconds for each of them, and u that do not grow with them;
two runs give both ("Memory and Performance Optimisation on the IPU", section 7.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.options import with_options
from ipu_model.front_ends import program_behind
from ipu_model.predict import profile_program
from ipu_model.predict.hardware import system_with
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update: for each micro-batch, and once (filling the pipeline, collectives, optimiser, call)."""

    micro_batches: int
    per_micro_batch: float
    constant: float

    @property
    def total(self) -> float:
        return self.micro_batches * self.per_micro_batch + self.constant


def update_time(program: Program, host: HostWork | None = None) -> UpdateTime:
    """Return the time of one weight update of a training program, from profiles with G and 2 G micro-batches."""
    if not program.training:
        raise Error("Only training programs have weight updates; this one is for inference.")
    batching = program.batching
    count = batching.accumulation
    once, twice = (
        profile_program(with_options(program, gradient_accumulation=count * times), host).call_seconds
        / batching.device_iterations
        for times in (1, 2)
    )
    per_micro_batch = (twice - once) / count
    return UpdateTime(count, per_micro_batch, max(0.0, once - count * per_micro_batch))


@dataclass(frozen=True)
class ScalingPoint:
    """One number of replicas; `profile` is `None` if `refused`, the `theoretical` speed is R times that of one."""

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
        return self.samples_per_second / self.theoretical_samples_per_second


def scaling(
    executor: Any,
    replicas: Iterable[int],
    *,
    host: HostWork | None = None,
    replicas_per_instance: int | None = None,
    constant_global_batch: bool = False,
    **options: Any,
) -> tuple[ScalingPoint, ...]:
    """Return one point for each number of replicas, each on the smallest machine of its chip with enough IPUs.

    `executor` is a compiled executor or a `Program`. Host processes run `replicas_per_instance` replicas each, all of
    them in one process if it is `None`. The accumulation stays (the global batch grows) or, with
    `constant_global_batch`, is that of one replica divided by the number of replicas. `options` hold
    for all points, named as in `ipu_model.explore.options.OPTIONS`. A point that is impossible has no profile; one
    replica that is impossible raises `Error`.
    """
    one = with_options(program_behind(executor), **{**options, "replicas": 1, "processes": 1})
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
        if constant and (count < 1 or accumulation % count):
            raise Error(
                f"A gradient accumulation of {accumulation} cannot be shared out evenly among {count} replicas at a "
                f"constant global batch: use a number of replicas that divides {accumulation}."
            )
        if count < 1:
            raise Error(f"A program has at least one replica, not {count!r}.")
        accumulation //= count if constant else 1
        if count % instances:
            raise Error(
                f"{count} replicas cannot be dealt out evenly over {instances} instances: use a multiple of "
                f"{instances}."
            )
        wanted = {"processes": instances, "gradient_accumulation": accumulation}
        profile = profile_program(_on_machine(with_options(one, replicas=count // instances, **wanted)), host)
    except Error as problem:
        refused = problem.message
    global_batch = one.samples_per_micro_batch * accumulation * count
    return ScalingPoint(count, instances, accumulation, global_batch, theory, profile, refused)


def _on_machine(program: Program) -> Program:
    system = system_with(program.system.chip.name, program.ipus_per_replica * program.replicas)
    return with_options(program, machine=system)
