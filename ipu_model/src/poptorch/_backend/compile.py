"""From a module, options and one set of arguments to a compiled program: traced, checked, modelled, ready to run."""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ipu_model.capture import capture
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.compute.session import Reduction, Session
from ipu_model.compute.threads import Threads, threads_for
from ipu_model.compute.update_rules import scalar_names
from ipu_model.cores import CoreWatch
from ipu_model.errors import Error, replace_message
from ipu_model.instances import Group, world
from ipu_model.optimiser import OptimiserSpec
from ipu_model.process import deliver_interrupt, no_garbage_collection
from ipu_model.step import FLOAT16, Step, ipus_in_use
from ipu_model.whole_files import write_whole
from poptorch._args_parser import BoundArguments, check_inputs
from poptorch._backend import settings
from poptorch._backend.tensor_names import Source, anchors_of, log_ops, name_prints, with_anchors
from poptorch._backend.weights import HostWeights, Optimisation, Updates, check_grouped, one_slice_each
from poptorch._logging import logger
from poptorch._options_impl import ProgressBar
from poptorch._poptorch_data import Executable, options_text, weights_of
from poptorch._poptorch_data import check_program as check_saved_program
from poptorch._utils import flatten
from poptorch.enums import ConnectionType, ReductionType
from poptorch.ops.blocks import check_marks
from poptorch.options import Options
from poptorch.options.options import derived_settings

if TYPE_CHECKING:
    from ipu_model.predict.program import Program

_ERROR_LOG, _MOST_LINE_ENDS = "poptorch_error.log", 80

_hooks_before: OrderedDict[int, Callable[[], Any]] = OrderedDict()
_hooks_after: OrderedDict[int, Callable[[], Any]] = OrderedDict()


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` right before forward is traced, for every model; return a handle with `remove()`."""
    return _registerHook(_hooks_before, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` when a trace has ended, also after a failed one; return a handle with `remove()`."""
    return _registerHook(_hooks_after, hook)


def _registerHook(hooks: OrderedDict[int, Callable[[], Any]], new_hook: Callable[[], Any]) -> RemovableHandle:
    if not callable(new_hook):
        raise RuntimeError(f"A compile hook must be callable, got {type(new_hook)}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = new_hook
    return handle


def _run(hooks: OrderedDict[int, Callable[[], Any]]) -> None:
    for hook in list(hooks.values()):
        hook()


@dataclass(eq=False, repr=False)  # programs print an executor's `_executable`; these fields would fill pages
class Compiled:
    """Everything that belongs to one compilation, and its state; dropping it destroys the executable.

    `arguments` have no data; `numbers` names the optimiser's numbers; `warnings` are those about the program's memory,
    which `was_stored` in a cache or file; with `newer_weights` the host does not have the device's weights yet.
    """

    arguments: BoundArguments
    graph: Graph
    anchors: Mapping[str, Source]
    numbers: Sequence[str]
    session: Session
    updates: Updates | None
    program: Program
    warnings: tuple[str, ...]
    was_stored: bool
    attached: bool = False
    newer_weights: bool = False
    has_run: bool = False
    anchored: dict[str, Tensor] = field(default_factory=dict)

    @property
    def step(self) -> Step:
        return self.program.step


def trace(
    module: nn.Module,
    options: Options,
    arguments: BoundArguments,
    *,
    training: bool,
    one_process: bool = True,
    warns: bool = True,
) -> Graph:
    """Capture one micro-batch of `module`, check it against the options, and add the tensors that they anchor.

    `one_process`: this process runs all replicas in the options. A module that was traced before `warns` no more.
    """
    tensors, strategy = arguments.tensors, options._execution_strategy
    check_inputs(tensors)
    specs = settings.micro_batch_specs(tensors, settings.batching_of(options))

    def call(traced: nn.Module, fakes: list[Tensor]) -> Any:
        mine = arguments.with_tensors(fakes)
        outputs = traced(*mine.positional, **mine.keywords)
        check_marks(outputs)
        return outputs

    with contextlib.ExitStack() as stack:
        stack.callback(_run, _hooks_after)
        before = partial(_run, _hooks_before)
        graph = capture(
            module, specs, call, flatten, training=training, placer=strategy, before_forward=before, warns=warns
        )
    settings.check_operators(graph, warns=warns)
    settings.check_program(graph, options, one_process=one_process)
    if warns:
        settings.warn_about_program(graph, module, options)
    name_prints(graph, options)
    return with_anchors(graph, options)


@no_garbage_collection()
def compile_program(
    module: nn.Module,
    options: Options,
    arguments: BoundArguments,
    host: HostWeights,
    optimisation: Optimisation | None,
    *,
    seed: int | None,
    saved: tuple[Executable, Path] | None,
) -> Compiled:
    """Trace, check and build the program of a model for these arguments; that of a `saved` file must be the same.

    Without a `seed` one is drawn, together with the other instances of a run.
    """
    # Imported when a model is compiled, so that `import poptorch` stays quick.
    from poptorch._backend.modelling import check_memory, program_of

    watch, distributed = CoreWatch(), options.Distributed
    spec = None if optimisation is None else optimisation.spec
    check_grouped(host.groupings, module, options, spec)
    with one_slice_each(module, host.groupings):
        graph = trace(module, options, arguments, training=optimisation is not None)
    step = step_of(graph)
    if saved is not None:
        check_saved_program(*saved, graph)
    numbers = [] if optimisation is None else scalar_names(optimisation.spec, graph.gradients, optimisation.groups)
    anchors = anchors_of(graph, options, numbers)
    deliver_interrupt()
    clips = spec is not None and spec.max_grad_norm != math.inf
    overlapped = any(settings.overlaps(graph))
    derived_settings(options, max(1, len(ipus_in_use(step))), gradient_clipping=clips, overlapped_io=overlapped)
    log_ops(step, options)
    # Before anything that takes memory or waits for other processes: a program that does not fit stops here.
    program = program_of(graph, options, optimisation)
    known = None if saved is None else saved[0].warnings
    warnings, was_stored = check_memory(program, graph, options, host.groupings, known)
    deliver_interrupt()
    common_seed = secrets.randbits(31) if seed is None else seed
    group = None
    # The others of a run must compile the same; all draw the same shared random numbers.
    if optimisation is not None and distributed.numProcesses > 1 and options.connection_type != ConnectionType.Never:
        group = world(distributed.processId, distributed.numProcesses)
        weights = host.values(graph, tuple(variable for variable in graph.variables if variable.trainable))
        common_seed = agree(group, graph, options, optimisation.spec, weights, common_seed)
    threads = threads_for(step, watch)
    session = Session(
        graph,
        settings.batching_of(options),
        settings.returns_of(options),
        arithmetic=settings.arithmetic_of(options),
        reduction=_reduction(options, optimisation, group),
        seed=common_seed if seed is None else seed,
        watched_updates=tuple(source.updated for source in anchors.values() if source.updated is not None),
        replica_groups=host.groupings,
        threads=threads if group is None else fewest_threads(group, threads),
        automatic_loss_scaling=None if optimisation is None else settings.loss_scaling_settings(graph, options),
    )
    updates = None if optimisation is None else Updates(optimisation, session, graph, options, common_seed)
    kept = arguments.without_values()
    return Compiled(kept, graph, anchors, numbers, session, updates, program, warnings, was_stored)


def _reduction(options: Options, optimisation: Optimisation | None, group: Group | None) -> Reduction:
    training, distributed = options.Training, options.Distributed
    mean = training.accumulation_and_replication_reduction_type == ReductionType.Mean
    return Reduction(
        mean=mean,
        running=mean and training.meanAccumulationAndReplicationReductionStrategy.name == "Running",
        half=optimisation is not None and optimisation.spec.accum_dtype == FLOAT16,
        processes=1 if group is None else distributed.numProcesses,
        process=distributed.processId,
        across=None if group is None else partial(group.sum_, what="gradients"),
    )


@contextlib.contextmanager
def compilation_progress(options: Options) -> Iterator[None]:
    """Show `Graph compilation` while the body runs, unless the options turn it off; the bar jumps to its end."""
    if not options._show_compilation_progress_bar:
        yield
        return
    with contextlib.closing(ProgressBar()) as bar:
        bar(0, 100)
        yield
        bar(100, 100)


def move_long_message(error: BaseException) -> None:
    """Move a message with more than 80 line breaks to `poptorch_error.log`, if it can be written, and refer to it."""
    if not isinstance(error, Error) or error.message.count("\n") <= _MOST_LINE_ENDS:
        return
    with contextlib.suppress(OSError):
        write_whole(_ERROR_LOG, f"{error}\n".encode())
        first = error.message.partition("\n")[0]
        replace_message(error, f"{first} (the whole message is in {_ERROR_LOG})")


# --- training over several processes: all instances must compile the same program


def agree(
    group: Group, graph: Graph, options: Options, spec: OptimiserSpec, weights: Mapping[str, Tensor], seed: int
) -> int:
    """Check that all instances compiled the same program; return instance 0's seed for the shared random numbers."""
    digest = hashlib.blake2b()
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    own = program_text(graph, options, spec), digest.hexdigest(), seed
    everyone = group.gathered_objects(own, "programs")
    check_programs([program for program, _, _ in everyone])
    if len({digest for _, digest, _ in everyone}) > 1:
        logger.warning(
            "The instances start from different weights, and stay different: PopTorch does not broadcast them. Use the "
            "same torch.manual_seed in all, load the same checkpoint, or horovod.torch.broadcast_parameters."
        )
    return int(everyone[0][2])


def fewest_threads(group: Group, threads: Threads) -> Threads:
    # With different numbers of threads the instances would compute weights that differ in their last bits.
    return replace(threads, number=min(group.gathered_objects(threads.number, "numbers of threads")))


def check_programs(programs: Sequence[Mapping[str, str]]) -> None:
    differences = []
    for name in programs[0]:
        values = [program[name] for program in programs]
        if len(set(values)) > 1:
            shown = ", ".join(f"{value} in instance {values.index(value)}" for value in dict.fromkeys(values))
            differences.append(f"{name}: {shown}")
    if differences:
        raise Error(
            "The instances compiled different programs, and cannot train together. "
            f"{'; '.join(differences)}. All instances must run the same model with the same options."
        )


def program_text(graph: Graph, options: Options, spec: OptimiserSpec) -> dict[str, str]:
    shared = {name: value for name, value in vars(spec).items() if name not in ("default", "groups")}
    groups = []
    for hyper in (spec.default, *spec.groups):
        numbers = ", ".join(f"{name}={getattr(hyper, name)}" for name in spec.attributes)
        # The order of a set differs between processes.
        groups.append(f"{numbers}, variable: {' '.join(sorted(hyper.variable)) or 'none'}")
    return {
        "the model's parameters and buffers": _short(str(weights_of(graph))),
        "the model's operations": _short(str([op.target for op in step_of(graph).ops])),
        "the inputs of a micro-batch": str([list(spec.shape) for spec in graph.inputs.values()]),
        **options_text(options),
        "the optimiser": f"{shared.pop('family')} {_short(str(shared))} with {'; '.join(dict.fromkeys(groups))}",
    }


def _short(text: str) -> str:
    return f"number {hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
