"""A program with other options, without capturing it again: what sweeps and explorers are made of."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.hardware import System, machine
from ipu_model.optimiser import OptimiserSpec
from ipu_model.pipeline import training_stages
from ipu_model.program import Execution, Program, Recomputation
from ipu_model.splits import split_before
from ipu_model.stages import stages_of
from ipu_model.transform import in_half_precision, with_byte_inputs


def changed(program: Program, **changes: Any) -> Program:
    """Return the program with other options, named as in `KNOBS`.

    Raises:
        Error: an unknown knob, a value it cannot have, or a pipeline that is not kept busy.
    """
    for name, value in changes.items():
        if name not in KNOBS:
            near = difflib.get_close_matches(name, KNOBS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Error(f"There is no option {name!r} to change.{hint} Options: {', '.join(KNOBS)}.")
        program = KNOBS[name](program, value)
    if changes:
        _check_pipeline(program)
    return program


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Error(f"{name} must be a whole number from 1 on, not {value!r}.")
    return value


def _batching(field: str) -> Callable[[Program, Any], Program]:
    def change(program: Program, value: Any) -> Program:
        changes: dict[str, Any] = {field: _count(field, value)}
        batching = replace(program.batching, **changes)
        return replace(program, batching=batching, reserved_ipus=None)

    return change


def _choice(field: str, kind: Callable[[Any], Any]) -> Callable[[Program, Any], Program]:
    def change(program: Program, value: Any) -> Program:
        try:
            return replace(program, **{field: kind(value)})
        except ValueError:
            known = ", ".join(repr(each.value) for each in kind)  # type: ignore[attr-defined]  # an Enum
            raise Error(f"{field} must be one of {known}, not {value!r}.") from None

    return change


def _proportion(program: Program, value: Any) -> Program:
    if isinstance(value, Mapping):
        by_ipu = {_ipu(program, name): share for name, share in value.items()}
    else:
        by_ipu = dict.fromkeys(program.graph.ipus, value)
    return replace(program, settings=replace(program.settings, available_memory_proportion=by_ipu))


def _ipu(program: Program, name: object) -> int:
    """Return the number of an IPU that is named as a number or, as PopTorch does, as "IPU0"."""
    number = name.removeprefix("IPU") if isinstance(name, str) else str(name)
    if isinstance(name, bool) or not number.isdecimal() or int(number) not in program.graph.ipus:
        known = ", ".join(f"IPU{ipu}" for ipu in program.graph.ipus)
        raise Error(f"available_memory_proportion: the program has no IPU {name!r}. It has {known}.")
    return int(number)


def _half_partials(program: Program, value: Any) -> Program:
    settings = replace(program.settings, half_partials=bool(value), half_partials_of_convolutions=None)
    return replace(program, settings=settings)


def _half(program: Program, value: Any) -> Program:
    return replace(program, graph=in_half_precision(program.graph)) if value else program


def _eight_bit(program: Program, value: Any) -> Program:
    return replace(program, graph=with_byte_inputs(program.graph)) if value else program


def _optimiser(**fields: Callable[[Any], Any]) -> Callable[[Program, Any], Program]:
    def change(program: Program, value: Any) -> Program:
        location = replace(program.locations.optimiser, **{name: make(value) for name, make in fields.items()})
        return replace(program, locations=replace(program.locations, optimiser=location))

    return change


def _optimiser_itself(program: Program, value: Any) -> Program:
    if not program.training or not isinstance(value, OptimiserSpec):
        raise Error(
            f"optimiser takes the OptimiserSpec of another training program, and only training has one; got {value!r}."
        )
    value.validate()
    return replace(program, optimiser=value, groups={})


def _split(program: Program, value: Any) -> Program:
    names = [value] if isinstance(value, str) else list(value)
    return split_before(program, names)


def _machine(program: Program, value: Any) -> Program:
    system = value if isinstance(value, System) else machine(str(value))
    device = replace(program.settings.device, chip=system.chip)
    return replace(program, system=system, settings=replace(program.settings, device=device))


def _output_mode(program: Program, value: Any) -> Program:
    try:
        return replace(program, returns=replace(program.returns, keep=Keep(value)))
    except ValueError:
        raise Error(f"output_mode must be one of {', '.join(repr(k.value) for k in Keep)}, not {value!r}.") from None


KNOBS: Mapping[str, Callable[[Program, Any], Program]] = {
    "gradient_accumulation": _batching("accumulation"),
    "device_iterations": _batching("device_iterations"),
    "replicas": _batching("replicas"),
    "processes": lambda program, value: replace(program, processes=_count("processes", value)),
    "execution": _choice("execution", Execution),
    "recomputation": _choice("recomputation", Recomputation),
    "available_memory_proportion": _proportion,
    "split": _split,
    "half_partials": _half_partials,
    "half_precision": _half,
    "eight_bit_inputs": _eight_bit,
    "optimiser": _optimiser_itself,
    "optimiser_off_chip": _optimiser(on_chip=lambda value: not value),
    "optimiser_sharded": _optimiser(sharded=bool),
    "prefetch_depth": lambda program, value: replace(program, prefetch_depth=_count("prefetch_depth", value)),
    "synthetic_data": lambda program, value: replace(program, synthetic_data=bool(value)),
    "output_mode": _output_mode,
    "machine": _machine,
}
"""What can be changed: option names and functions of a program and the new value."""


def _check_pipeline(program: Program) -> None:
    """Refuse what PopTorch would refuse: a pipeline with fewer micro-batches than stages."""
    stages = len(stages_of(program.graph))
    if stages == 1 or program.execution is Execution.SHARDED:
        return
    if program.training and program.batching.accumulation < training_stages(stages):
        raise Error(
            f"gradient_accumulation must be at least 2 x {stages} - 1 = {training_stages(stages)} for a pipeline of "
            f"{stages} stages; it is {program.batching.accumulation}. execution='sharded' has no such minimum."
        )
    if not program.training and program.batching.device_iterations < stages:
        raise Error(
            f"device_iterations must be at least {stages}, the number of stages of the pipeline; it is "
            f"{program.batching.device_iterations}. execution='sharded' has no such minimum."
        )
