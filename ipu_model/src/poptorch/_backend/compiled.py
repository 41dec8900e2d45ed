"""The result of a compilation: the traced program, the session that runs it, and the program to model."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.compute.session import Reduction, Session
from ipu_model.compute.threads import MACHINE, threads_for
from ipu_model.errors import OutOfMemory, replace_message
from ipu_model.instances import Group
from ipu_model.process import deliver_interrupt, no_garbage_collection
from poptorch._args_parser import BoundArguments
from poptorch._backend.compilation import arithmetic_of, batching_of, log_derived, returns_of, trace
from poptorch._backend.instances import agree, fewest_threads, group_of
from poptorch._backend.optimisation import Optimisation, Updates, loss_scaling_settings
from poptorch._backend.results import Anchor, anchors_of, updated_variables
from poptorch._backend.weights import HostWeights, check_grouped, one_slice_each
from poptorch._logging import logger
from poptorch._poptorch_data import Executable, check_program
from poptorch.enums import ConnectionType, ReductionType
from poptorch.options import Options

if TYPE_CHECKING:
    from ipu_model.predict.program import Program


@dataclass
class OnDevice:
    """The state of a compiled program; `newer_weights` is true if the host does not have the device's weights yet."""

    attached: bool = False
    newer_weights: bool = False
    has_run: bool = False
    anchored: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)  # programs print an executor's `_executable`; these fields would fill pages
class Compiled:
    """Everything that belongs to one compilation; dropping it destroys the executable.

    `arguments` are the arguments compiled for, without their data; `numbers` names the optimiser's numbers; `warnings`
    are those about the program's memory; `was_stored` is true if they came from a cache or file.
    """

    arguments: BoundArguments
    graph: Graph
    anchors: Sequence[Anchor]
    numbers: Sequence[str]
    session: Session
    updates: Updates | None
    program: Program
    warnings: tuple[str, ...]
    was_stored: bool
    device: OnDevice = field(default_factory=OnDevice)


@dataclass(frozen=True)
class Saved:
    """An executable that was read from a file."""

    executable: Executable
    path: Path


@no_garbage_collection()
def compiled(
    module: nn.Module,
    options: Options,
    arguments: BoundArguments,
    host: HostWeights,
    optimisation: Optimisation | None,
    *,
    seed: int | None,
    saved: Saved | None,
) -> Compiled:
    """Trace, check and build the program of a model for these arguments; training has an `optimisation`.

    Without a `seed` one is drawn, together with the other instances of a run. The program of `saved` must be the same.

    Raises:
        AssertionError: rows that do not divide into micro-batches, unknown blocks, a cache that cannot be written.
        KeyError: a parameter group holds a tensor that is no parameter of the model.
        Error: everything else that PopTorch refuses when it compiles.
    """
    MACHINE.look()
    check_grouped(host.groupings, module, options, None if optimisation is None else optimisation.spec)
    with one_slice_each(module, host.groupings):
        graph = trace(module, options, arguments, training=optimisation is not None)
    if saved is not None:
        check_program(saved.executable, saved.path, graph)
    numbers = [] if optimisation is None else optimisation.number_names(graph, module)
    anchors = anchors_of(graph, options, numbers)
    deliver_interrupt()
    log_derived(graph, options, gradient_clipping=optimisation is not None and optimisation.clips_gradients)
    # Before anything that takes memory or waits for other processes: a program that does not fit stops here.
    program, warnings, was_stored = _modelled(graph, module, options, host, optimisation, saved)
    deliver_interrupt()
    group, common_seed = _joined(graph, options, host, optimisation, secrets.randbits(31) if seed is None else seed)
    threads = threads_for(step_of(graph))
    session = Session(
        graph,
        batching_of(options),
        returns_of(options),
        arithmetic=arithmetic_of(options),
        reduction=_reduction(options, optimisation, group),
        seed=common_seed if seed is None else seed,
        watched_updates=updated_variables(anchors),
        replica_groups=host.groupings,
        threads=threads if group is None else fewest_threads(group, threads),
        automatic_loss_scaling=None if optimisation is None else loss_scaling_settings(graph, options),
    )
    updates = None if optimisation is None else Updates(optimisation, session, graph, module, options, common_seed)
    return Compiled(
        arguments.without_values(), graph, anchors, numbers, session, updates, program, warnings, was_stored
    )


def _joined(
    graph: Graph, options: Options, host: HostWeights, optimisation: Optimisation | None, seed: int
) -> tuple[Group | None, int]:
    """Join the other instances of a training run, if there are any; return the seed of what all draw alike."""
    distributed = options.Distributed.numProcesses > 1
    if optimisation is None or not distributed or options.connection_type == ConnectionType.Never:
        return None, seed
    group = group_of(options)
    weights = host.values(tuple(variable for variable in graph.variables if variable.trainable))
    return group, agree(group, graph, options, optimisation.spec, weights, seed)


def _reduction(options: Options, optimisation: Optimisation | None, group: Group | None) -> Reduction:
    training, where = options.Training, options.Distributed
    strategy = training.meanAccumulationAndReplicationReductionStrategy
    mean = training.accumulation_and_replication_reduction_type == ReductionType.Mean
    reduction = Reduction(
        mean=mean,
        running=mean and strategy.name == "Running",
        half=optimisation is not None and optimisation.half_accumulators,
        process=where.processId,
    )
    if group is None:
        return reduction
    return replace(reduction, processes=where.numProcesses, across=partial(group.sum_, what="gradients"))


def _modelled(
    graph: Graph,
    module: nn.Module,
    options: Options,
    host: HostWeights,
    optimisation: Optimisation | None,
    saved: Saved | None,
) -> tuple[Program, tuple[str, ...], bool]:
    """Return the program to model, its warnings, and whether they were stored; write the requested reports.

    Raises:
        OutOfMemory: the program does not fit. Its report is written first, and the message says what to do next.
    """
    # Imported when a model is compiled, so that `import poptorch` stays quick.
    from ipu_model.predict import profile_lately
    from poptorch._backend import modelling, report
    from poptorch._backend.cache import cache_directory, key_of, recalled

    engine = options._backend.engine_options
    program = modelling.program_of(
        graph,
        options,
        training=optimisation is not None,
        optimiser=None if optimisation is None else optimisation.spec,
        groups=None if optimisation is None else optimisation.groups(module),
    )
    ignored = modelling.ignores_memory()
    judge = partial(modelling.memory_warnings, program, ignored=ignored)
    directory = cache_directory(options)
    try:
        if saved is not None:
            warnings, was_stored = saved.executable.warnings, True
        elif directory is not None:
            key = key_of(graph, program, options, ignored, host.groupings)
            warnings, was_stored = recalled(directory, key, judge)
        else:
            warnings, was_stored = judge(), False
    except OutOfMemory as refusal:
        replace_message(refusal, f"{refusal.message} {report.next_steps(program, engine)}")
        raise
    for line in warnings:
        logger.warning("%s", line)
    if engine.report:
        report.write(program, profile_lately(program), engine)
    return program, warnings, was_stored
