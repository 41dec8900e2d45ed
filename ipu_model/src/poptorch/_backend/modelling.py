"""What the performance model is told and asked: program, machine, times of transfers, and whether memory suffices.

The executable cache has one file for each program, named by a digest of the traced program, its options, and the source
code of the engine. It holds what was said of the program's memory, so that another process need not model it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

import ipu_model
from ipu_model.batching import Batching, Keep, ReplicaGroups
from ipu_model.capture.describe import digest_of, step_of
from ipu_model.capture.graph import Graph
from ipu_model.errors import Error, OutOfMemory, replace_message
from ipu_model.predict import hardware, memory_of_program, profile_lately
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import Chip, System
from ipu_model.predict.memory.out_of_memory import note_on_memory, out_of_memory
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.recomputation import default_recomputation
from ipu_model.report.files import FILE_NAME, read
from ipu_model.step import ipus_in_use
from poptorch._backend import settings
from poptorch._backend.weights import Optimisation
from poptorch._logging import logger
from poptorch._poptorch_data import Invalid, options_text, read_values, versions, write_values
from poptorch.options import Options
from poptorch.options.backend import EngineOptions
from poptorch.options.strategies import PipelinedExecution, runs_stages_at_once

_LOCATION_FIELDS = {
    "onChip": "on_chip",
    "useReplicatedTensorSharding": "sharded",
    "minElementsForOffChip": "least_off_chip",
    "minElementsForReplicatedTensorSharding": "least_sharded",
}
_MACHINE = "IPU_MODEL_MACHINE"


def program_of(
    graph: Graph, options: Options, optimisation: Optimisation | None = None, *, machine: str | System | None = None
) -> Program:
    step, training = step_of(graph), graph.loss is not None
    backend, per_replica = options._backend, step.ipus[-1] + 1
    batching, processes = _over_processes(settings.batching_of(options), per_replica)
    processes *= max(1, options.Distributed.numProcesses)
    used = per_replica * batching.replicas
    reserved = (1 << (used - 1).bit_length() if options.auto_round_num_ipus else used) * processes
    if machine is not None:
        system = hardware.system_with_room(machine, reserved, "the argument machine")
    else:
        system = modelled_system(reserved, int(options.ipu_version) if options.exists("ipu_version") else None)
    overlaps_input, overlaps_output = settings.overlaps(graph)
    at_once = runs_stages_at_once(options._execution_strategy) and backend.pipelining
    execution = Execution.PIPELINED if at_once else Execution.SHARDED
    recomputation = default_recomputation(execution, len(ipus_in_use(step)), training=training)
    if training and backend.recomputation is not None:
        # They are in the order of PopART's RecomputationType (options reference, section 9).
        recomputation = list(Recomputation)[backend.recomputation]
    return Program(
        step=step,
        training=training,
        batching=batching,
        returns=settings.returns_of(options),
        system=system,
        execution=execution,
        settings=_settings(options, system),
        optimiser=None if optimisation is None else optimisation.spec,
        groups={} if optimisation is None else optimisation.groups,
        recomputation=recomputation,
        locations=Locations(
            *(_location(options, category) for category in ("activation", "weight", "optimizer", "accumulator"))
        ),
        io_tiles=options.TensorLocations("numIOTiles") if options.TensorLocations.exists("numIOTiles") else 0,
        overlaps_input=backend.explicit_io and overlaps_input,
        overlaps_output=backend.explicit_io and overlaps_output,
        prefetch_depth=backend.prefetch_depth,
        synthetic_data=backend.synthetic_data,
        processes=processes,
        reserved_ipus=reserved if options.auto_round_num_ipus else None,
        name=str(options.model_name) if options.exists("model_name") else "training" if training else "inference",
    )


def _over_processes(batching: Batching, ipus_per_replica: int) -> tuple[Batching, int]:
    """Return the batching of one process and the smallest number of processes that can run all replicas."""
    for processes in range(1, batching.replicas + 1):
        replicas = batching.replicas // processes
        whole = batching.replicas % processes == 0 and replicas % batching.input_group == 0
        if whole and replicas * ipus_per_replica <= settings.MAX_IPUS:
            return replace(batching, replicas=replicas), processes
    raise Error(
        f"inputReplicaGrouping: {batching.input_group} replicas of {ipus_per_replica} IPUs share their input, and one "
        f"process has at most {settings.MAX_IPUS} IPUs. Use smaller groups."
    )


def _settings(options: Options, system: System) -> CostSettings:
    proportions = {}
    for ipu, share in options.available_memory_proportion.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise Error(
                f"setAvailableMemoryProportion: the share of IPU{ipu} must be a number between 0 and 1, not {share!r}."
            )
        proportions[ipu] = float(share)
    return CostSettings(
        device=Device(chip=system.chip),
        half_partials=options._backend.half_matmuls,
        half_partials_of_convolutions=options._backend.half_convolutions,
        available_memory_proportion=proportions,
        stable_norm=options._backend.stable_norm,
    )


def _location(options: Options, category: str) -> Location:
    key = f"location_{category}"
    stored = options.TensorLocations(key) if options.TensorLocations.exists(key) else {}
    chosen: dict[str, Any] = {field: stored[name] for name, field in _LOCATION_FIELDS.items() if name in stored}
    # Phased execution keeps tensors off chip unless told otherwise.
    chosen["on_chip"] = bool(chosen.get("on_chip", isinstance(options._execution_strategy, PipelinedExecution)))
    return Location(**chosen)


def modelled_system(ipus: int, version: int | None = None) -> System:
    """Return the machine for a program that occupies `ipus` IPUs, of the chip of offline version `version`.

    Without a version `POPTORCH_IPU_MODEL_VERSION` chooses the chip. `IPU_MODEL_MACHINE` names the machine if it has
    that chip. Otherwise it is the smallest system of that chip, or of GC200, with enough IPUs. A chip's name stands
    for its smallest system with enough IPUs.
    """
    if version is None:
        version = settings.VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", ""))
    named = os.environ.get(_MACHINE)
    if named and (version is None or version_of(hardware.chip(named)) == version):
        return hardware.system_with_room(named, ipus, f"the environment variable {_MACHINE}")
    chip = "GC200" if version is None else hardware.chip_of_offline_target(version).name
    return hardware.system_with(chip, ipus)


def version_of(chip: Chip) -> int:
    """Return PopTorch's version number of a chip: 1, 2 or 21."""
    by_name = {name: version for version, name in hardware.known_hardware().offline_versions.items()}
    return by_name.get(chip.name, 2)  # a Bow IPU, too, is a Mk2 IPU to PopTorch


# --- the modelled times of one call's input and output transfers, as PopTorch's performance counters in seconds
#
# A call of S = D x A steps is a row of D pipelines of A (training) or one of D (inference) micro-batches, with D
# iterations and an accumulation of A. With K stages a pipeline of M micro-batches has M + K - 1 cycles (training:
# M + 2 (K - 1)). All cycles, including weight updates, are assumed to be equally long and fill the device time from the
# first transfer on.

EVENTS = ("input", "input_complete", "output", "output_complete")

PerfCounters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]
# Seconds since the start of a call at which one transfer begins and ends.
Ticks = tuple[float, float]


def perf_counters(program: Program, profile: Profile, *, anchors: int = 0) -> PerfCounters:
    """Return, by event, the times of each tensor by replica, then by step; the last `anchors` outputs have none."""
    arriving, leaving = ([], []) if program.synthetic_data else _transfers(program, profile)
    inputs, outputs = len(program.step.inputs), len(program.step.outputs) - anchors
    counters = {}
    for name, ticks, tensors in (("input", arriving, inputs), ("output", leaving, outputs)):
        everywhere = ticks * program.batching.replicas
        counters[name] = [[begin for begin, _ in everywhere] for _ in range(tensors)]
        counters[f"{name}_complete"] = [[end for _, end in everywhere] for _ in range(tensors)]
    return counters


def latency(counters: PerfCounters, start: str, end: str) -> Latency:
    """Return the minimum, maximum and average seconds from event `start` to event `end`; zeros without data.

    The earliest start and the latest end count of several tensors, and of several starts that lead to one end.
    """
    starts = [min(ticks) for ticks in zip(*counters[start])]
    ends = [max(ticks) for ticks in zip(*counters[end])]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    group = max(1, len(starts) // len(ends))
    firsts = [min(starts[index : index + group]) for index in range(0, len(starts), group)]
    spans = [max(0.0, last - first) for first, last in zip(firsts, ends)]
    # Rounding must not push the average outside the range from minimum to maximum.
    average = min(max(sum(spans) / len(spans), min(spans)), max(spans))
    return min(spans), max(spans), average


def _transfers(program: Program, profile: Profile) -> tuple[list[Ticks], list[Ticks]]:
    # Inputs travel at the start of a micro-batch's first cycle, results at the end of its last forward cycle. A single
    # result of a call leaves with the last micro-batch.
    batching, returns = program.batching, program.returns
    depth = len(program.step.stages) if program.execution is not Execution.SHARDED else 1
    pipelines = batching.device_iterations if program.training else 1
    micro_batches = batching.steps // pipelines
    cycles = micro_batches + (2 if program.training else 1) * (depth - 1)
    origin = profile.device_seconds_per_call * profile.shares["run start"]  # the device first waits for the host
    cycle = (profile.device_seconds_per_call - origin) / (pipelines * cycles)
    kept = [step for step in range(batching.steps) if returns.kept(step, batching.steps)]
    returned = 1 if returns.keep in (Keep.FINAL, Keep.SUM) else max(1, len(kept))
    seconds_in = min(_seconds(profile, "stream in") / batching.steps, cycle)
    seconds_out = min(_seconds(profile, "stream out") / returned, cycle - seconds_in)
    starts = [origin + (row * cycles + number) * cycle for row in range(pipelines) for number in range(micro_batches)]
    ends = [start + depth * cycle for start in starts]
    chosen = ends[-1:] if returns.keep is Keep.SUM else [ends[step] for step in kept]
    return [(start, start + seconds_in) for start in starts], [(end - seconds_out, end) for end in chosen]


def _seconds(profile: Profile, kind: str) -> float:
    by_resource: defaultdict[str, float] = defaultdict(float)
    for span in profile.timeline:
        if span.kind == kind:
            by_resource[span.resource] += span.seconds
    return max(by_resource.values(), default=0.0)


# --- whether a program fits into memory: remembered in the executable cache, and reported on request

_IGNORE_MEMORY = "IPU_MODEL_IGNORE_MEMORY"
_IGNORED = f"{_IGNORE_MEMORY} is set, so this machine runs the program all the same; IPUs could not."
_UNKNOWN = (
    "The IPU Model cannot say whether this program fits into memory: it failed with {} ({}), which is a bug in the "
    "model. The program's numbers are not affected; ipu_model.profile(model) shows where it happens."
)
_EXPLORE = (
    "ipu_model.make_it_fit({0}_model) searches for options that fit; {0}_model is what poptorch.{0}Model returned."
)
_LONGEST_NAME = 200
"""In bytes: file systems allow 255, and temporary file names need some of them."""

Warnings = tuple[str, ...]


def check_memory(
    program: Program, graph: Graph, options: Options, groupings: Mapping[str, ReplicaGroups], known: Warnings | None
) -> tuple[Warnings, bool]:
    """Return the warnings about a program's memory, and whether they were `known` or stored; write wanted reports."""
    ignored = os.environ.get(_IGNORE_MEMORY, "0") not in ("", "0")
    engine, folder = options._backend.engine_options, options._backend.cache_folder
    judge = partial(refuse_or_warn, program, ignored=ignored)
    try:
        if known is not None:
            warnings, was_stored = known, True
        elif folder is not None:
            key = _key_of(graph, program, options, ignored, groupings)
            warnings, was_stored = recalled(Path(folder), key, judge)
        else:
            warnings, was_stored = judge(), False
    except OutOfMemory as refusal:
        replace_message(refusal, f"{refusal.message} {_next_steps(program, engine)}")
        raise
    for line in warnings:
        logger.warning("%s", line)
    if engine.report:
        _write_report(program, engine)
    return warnings, was_stored


def refuse_or_warn(program: Program, *, ignored: bool) -> Warnings:
    """Refuse a program that clearly does not fit, unless that is `ignored`; return a warning if it is close."""
    try:
        memory = memory_of_program(program)
    except Error:
        raise
    except Exception as problem:  # a bug in the model must not stop a program whose results are right
        return (_UNKNOWN.format(type(problem).__name__, problem),)
    error = out_of_memory(memory, program)
    if error is not None and not ignored:
        refusal = OutOfMemory(error.message, type=error.type)
        refusal.program = program
        raise refusal
    texts = (None if error is None else f"{error.message} {_IGNORED}", note_on_memory(memory, program))
    return tuple(text for text in texts if text is not None)


def _key_of(graph: Graph, program: Program, options: Options, *more: object) -> str:
    chosen = {field.name: getattr(program, field.name) for field in fields(program) if field.name != "step"}
    # Numbers that are streamed to the device, such as the learning rate, do not affect it.
    chosen["optimiser"] = None if program.optimiser is None else program.optimiser.compiled_in
    decisive = (digest_of(graph), chosen, options_text(options), versions(), _own_sources(), more)
    # Memory proportions are by number of IPU, and a sorted dict has keys of text only.
    plain = msgspec.to_builtins(
        decisive, enc_hook=lambda value: dict(value) if isinstance(value, Mapping) else repr(value), str_keys=True
    )
    return hashlib.blake2b(msgspec.msgpack.encode(plain, order="deterministic"), digest_size=20).hexdigest()


@cache
def _own_sources() -> str:
    # Any change of either package may change the warnings.
    digest = hashlib.blake2b(digest_size=16)
    for folder in (Path(str(ipu_model.__file__)).parent, Path(__file__).parent.parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def recalled(directory: Path, key: str, judge: Callable[[], Warnings]) -> tuple[Warnings, bool]:
    """Return the warnings of a compilation, and true if the cache has them; if not, `judge`, and store the result."""
    hint = "Give enableExecutableCaching (or POPTORCH_CACHE_DIR) a directory that can be written, or None."
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # the second: a null byte
        raise AssertionError(f"The executable cache {directory} cannot be created: {error}. {hint}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise AssertionError(f"The executable cache {directory} is not writable. {hint}")
    path = directory / f"{key}.poptorch"
    with contextlib.ExitStack() as stack:
        # While one process compiles, the others wait, if the file system supports locks.
        try:
            stack.enter_context(FileLock(directory / ".lock"))
        except (OSError, NotImplementedError) as error:
            logger.info("No lock on %s: %s.", directory, error)
        known = _read(path, key)
        if known is not None:
            return known, True
        warnings = judge()
        try:
            write_values(path, {"kind": "cache", "key": key, "warnings": warnings})
        except OSError as error:
            logger.warning("The compiled program could not be written to the executable cache: %s.", error)
        else:
            logger.info("The compiled program was written to %s.", path)
        return warnings, False


def _read(path: Path, key: str) -> Warnings | None:
    try:
        values = read_values(path)
        if (values.get("kind"), values.get("key")) != ("cache", key):
            raise Invalid("it holds another program")
        warnings = msgspec.convert(values.get("warnings"), Warnings)
    except FileNotFoundError:
        return None
    except (Invalid, msgspec.ValidationError, OSError) as error:
        logger.warning("%s in the executable cache cannot be used (%s): the model is compiled again.", path, error)
        return None
    logger.info("The compiled program was loaded from %s.", path)
    return warnings


def _write_report(program: Program, engine: EngineOptions) -> Path:
    from ipu_model.explore.advise import advise
    from ipu_model.report.files import write_report

    profile = profile_lately(program)
    folder = _report_folder(profile.name, engine)
    shown = profile if engine.execution else replace(profile, timeline=())
    try:
        write_report(shown, folder, advise(program, profile=profile))
    except Error as error:
        raise Error(
            f"No profiling report: {error.message} Choose another folder with "
            "poptorch.Options().enableProfiling(folder)."
        ) from error
    logger.info("The profiling report of the model '%s' is in %s.", profile.name, folder)
    return folder


def _report_folder(name: str, engine: EngineOptions) -> Path:
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in name)
    plain = plain.encode()[:_LONGEST_NAME].decode(errors="ignore")
    directory = Path(engine.directory)
    own = directory / (plain if plain.strip(". ") else f"_{plain}")
    if not engine.from_environment:
        return own
    try:
        taken_by = read(directory / FILE_NAME).name
    except Error:
        return directory
    return directory if taken_by == name else own


def _next_steps(program: Program, engine: EngineOptions) -> str:
    explore = _EXPLORE.format("training" if program.training else "inference")
    ignore = f"With {_IGNORE_MEMORY}=1 this machine runs the program all the same."
    if not engine.report:
        return f"{explore} poptorch.Options().enableProfiling(folder) leaves a report of the memory. {ignore}"
    if not engine.allow_out_of_memory:
        return f"{explore} debug.allowOutOfMemory is off, so there is no report. {ignore}"
    try:
        folder = _write_report(program, engine)
    except Error as error:
        return f"{error.message} {explore} {ignore}"
    name = shlex.quote(str(folder))
    return f"The report is in {name}; python -m ipu_model fit {name} searches for options that fit. {ignore}"
