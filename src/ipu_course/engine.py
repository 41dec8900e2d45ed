"""The only module of the course that imports the IPU Model, besides ``figures.profiles`` that it imports with it.

A machine with Graphcore's SDK has no IPU Model. There, every function that would model something returns
``NOT_MODELLED``, and programs show only what they measure. The IPU Model and PopTorch are imported when a function
needs them, so that this module loads quickly and on every machine.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, TypeVar, cast

from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from matplotlib.figure import Figure

    import poptorch
    from ipu_model.explore.fit_result import FitResult
    from ipu_model.explore.scaling import ScalingPoint, UpdateTime
    from ipu_model.explore.what_if import SweepPoint
    from ipu_model.optimiser import OptimiserSpec
    from ipu_model.predict.hardware import System
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import IpuMemory, Profile
    from ipu_model.predict.program import Program

__all__ = [
    "FITS_CELLS",
    "NOT_HERE",
    "NOT_MODELLED",
    "HostWork",
    "IpuMemory",
    "ModelledModule",
    "Profile",
    "ScalingPoint",
    "UpdateTime",
    "busy_shares",
    "figure",
    "fits_in_a_word",
    "host_work",
    "is_available",
    "machine",
    "machine_ipus",
    "make_it_fit",
    "may_run",
    "measured_on",
    "memory_verdict",
    "modelled_module",
    "needs_the_model",
    "phases",
    "profile",
    "profile_module",
    "read_report",
    "refuse_other_torch",
    "register_custom_op",
    "start_seconds",
    "text_report",
    "time_loader",
    "write_report",
]

NOT_HERE = (
    "Modelled figures need the course's IPU Model, which is not installed here. With the Poplar SDK, "
    "options.enableProfiling() and PopVision show the same of your IPUs."
)
DOES_NOT_FIT = "does not fit"
# The engine's verdicts on memory as cells of a column called "fits".
FITS_CELLS = {"fits": "yes", "too close to call": "too close to call", DOES_NOT_FIT: "no"}


Function = TypeVar("Function", bound=Callable[..., Any])


def is_available() -> bool:
    """Tell whether the IPU Model is installed."""
    found = find_spec("ipu_model")
    # In the root of a clone, the folder ipu_model/ looks like a package of that name, but has no file to import.
    return found is not None and found.origin is not None


def refuse_other_torch() -> None:
    """Raise ``ImportError`` if the IPU Model is installed beside a torch that it cannot use; an SDK has its own."""
    if is_available():
        import ipu_model  # noqa: F401  # it looks at torch when it is imported


def needs_the_model(function: Function) -> Function:
    """Make ``function`` return ``NOT_MODELLED`` without an IPU Model, or when an argument is ``NOT_MODELLED``."""

    @functools.wraps(function)
    def modelled(*arguments: Any, **options: Any) -> Any:
        given = (*arguments, *options.values())
        if not is_available() or any(each is NOT_MODELLED for each in given):
            return NOT_MODELLED
        return function(*arguments, **options)

    return cast(Function, modelled)


def measured_on() -> str:
    """Return where measured times come from: "IPU" or "CPU".

    The IPU Model computes on the CPU, even when it is told to report hardware.
    """
    import poptorch

    return "IPU" if poptorch.ipuHardwareIsAvailable() and not is_available() else "CPU"


@needs_the_model
def host_work(
    seconds_per_sample: float,
    seconds_per_call: float,
    asynchronous: bool,
    workers: int,
    source: str,
    hosts: int = 1,
    cores_per_host: int = 0,
) -> HostWork:
    """Return the program's own work on the host; ``source`` says where the two times, in seconds, come from.

    ``asynchronous`` loading runs while the IPUs work. With 0 ``workers`` the program itself loads. Processes are
    spread over ``hosts``, whose loaders share ``cores_per_host`` cores (0 means one core for each loader).
    """
    from ipu_model.predict.host import HostWork, Loading

    return HostWork(
        seconds_per_sample=seconds_per_sample,
        seconds_per_call=seconds_per_call,
        loading=Loading.ASYNC if asynchronous else Loading.SYNC,
        workers=workers,
        source=source,
        hosts=hosts,
        cores_per_host=cores_per_host,
    )


@needs_the_model
def time_loader(loader: poptorch.DataLoader, batches: int = 10) -> HostWork:
    """Measure what loading costs this machine: time some ``batches`` of a loader, without any training.

    Raises ``poptorch.Error`` for a loader that is empty.
    """
    import ipu_model

    return ipu_model.time_loader(loader, batches=batches)


@needs_the_model
def profile(model: poptorch.PoplarExecutor, host: HostWork | None = None) -> Profile:
    """Return the modelled profile of one call of a compiled ``model``.

    Raises ``poptorch.Error`` when the engine cannot model it.
    """
    import ipu_model

    return ipu_model.profile(model, host=host)


@needs_the_model
def profile_module(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: poptorch.Options,
    optimizer: torch.optim.Optimizer | None = None,
    host: HostWork | None = None,
) -> Profile:
    """Return the modelled profile of one call of a module that is not wrapped yet; ``inputs`` are one micro-batch.

    With an ``optimizer`` it is a training call. Raises ``poptorch.Error`` when the engine cannot model it.
    """
    import ipu_model

    return ipu_model.profile_module(module, inputs, options, optimizer=optimizer, host=host, micro_batch=True)


class ModelledModule:
    """A module that was captured once and can be profiled with many settings."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def optimiser(self) -> OptimiserSpec | None:
        """The optimiser that the module was captured with; other modules take it as their option ``optimiser``."""
        return self._program.optimiser

    @property
    def ipus_of_modules(self) -> Mapping[str, int]:
        """The IPU on which the forward pass of each module begins, by the module's dotted name."""
        from ipu_model.explore.blocks import modules_of
        from ipu_model.step import Phase

        found: dict[str, int] = {}
        for op in self._program.step.ops:
            if op.phase is Phase.FORWARD:
                for name in modules_of(op.scope):
                    found.setdefault(name, op.ipu)
        return found

    @property
    def checkpoints(self) -> int:
        """How many results the program marks with ``poptorch.recomputationCheckpoint``."""
        return sum(op.hints.recomputation_checkpoint for op in self._program.step.ops)

    @property
    def half_partials(self) -> bool:
        """Whether matrix products keep their partial sums in half precision."""
        return self._program.settings.half_partials

    @property
    def has_state_on_chip(self) -> bool:
        """Whether the optimiser state lives on the chip."""
        return self._program.locations.optimiser.on_chip

    @property
    def memory_proportions(self) -> Mapping[int, float | None]:
        """The available memory proportions that the program sets, by IPU."""
        return dict(self._program.settings.available_memory_proportion)

    def profile(self, host: HostWork | None = None, **options: Any) -> Profile:
        """Return the modelled profile with other ``options``, such as ``gradient_accumulation=8``.

        Raises ``poptorch.Error`` for options it does not know and settings that the program cannot have.
        """
        import ipu_model

        return ipu_model.what_if(self._program, host=host, **options)

    def sweep(
        self, option: str, values: Iterable[object], host: HostWork | None = None, **options: Any
    ) -> tuple[SweepPoint, ...]:
        """Profile the module once for each of an option's ``values``; ``host`` and ``options`` stay the same.

        Each point has ``.value``, ``.profile`` (``None`` where it is refused) and ``.refused``, the reason.

        Raises ``poptorch.Error`` for options it does not know.
        """
        import ipu_model

        return ipu_model.sweep(self._program, option, values, host=host, **options)

    def memory_remedies(self, of: Profile) -> tuple[str, ...]:
        """Return what usually helps when this module's profile ``of`` does not fit, the most promising first."""
        from ipu_model.predict.memory.out_of_memory import remedies

        return tuple(remedies(of.memory, self._program))

    def scaling(
        self,
        replicas: Iterable[int],
        host: HostWork | None = None,
        replicas_per_instance: int | None = None,
        constant_global_batch: bool = False,
        **options: object,
    ) -> tuple[ScalingPoint, ...]:
        """Profile the module once for each number of ``replicas``, on the smallest machine with enough IPUs.

        Each point has ``.replicas``, ``.profile`` (``None`` where it is refused), ``.efficiency`` and the other fields
        of ``ipu_model.explore.scaling.ScalingPoint``. Raises ``poptorch.Error`` for options it does not know.
        """
        from ipu_model.explore.scaling import scaling

        return scaling(
            self._program,
            replicas,
            host=host,
            replicas_per_instance=replicas_per_instance,
            constant_global_batch=constant_global_batch,
            **options,
        )

    def update_time(self, host: HostWork | None = None, **options: object) -> UpdateTime:
        """Return the time of a weight update, split into the time of each micro-batch and a constant part.

        Raises ``poptorch.Error`` for a module that was captured without an optimiser.
        """
        from ipu_model.explore.options import with_options
        from ipu_model.explore.scaling import update_time

        return update_time(with_options(self._program, **options), host)


@needs_the_model
def modelled_module(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: poptorch.Options,
    optimizer: torch.optim.Optimizer | None = None,
) -> ModelledModule:
    """Capture a module once, to profile it with many settings; ``inputs`` are one micro-batch.

    Raises ``poptorch.Error`` when the engine cannot model it.
    """
    from ipu_model.front_ends import program_of_module

    return ModelledModule(program_of_module(options, module, inputs, optimizer=optimizer, micro_batch=True))


@needs_the_model
def register_custom_op(
    name: str,
    domain: str,
    version: int,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
) -> None:
    """Say what a ``poptorch.custom_op`` of this name, domain and version computes on the IPU Model.

    ``forward(*inputs, **attributes)`` returns the results, and ``backward(inputs, outputs, gradients, attributes)`` the
    gradient of each input; without it PyTorch differentiates ``forward``. Raises ``poptorch.Error`` for anything that
    is no function.
    """
    from ipu_model.custom_ops import register

    register(name, domain, version, forward, backward)


@needs_the_model
def make_it_fit(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    options: poptorch.Options,
    optimizer: torch.optim.Optimizer | None = None,
    machine: str | None = None,
    ipus: int | None = None,
) -> FitResult:
    """Search settings with which a module fits on at most so many ``ipus``; ``inputs`` are one micro-batch.

    Raises ``poptorch.Error`` when the engine cannot model it.
    """
    import ipu_model

    return ipu_model.make_it_fit(
        module, inputs, options, optimizer=optimizer, micro_batch=True, machine=machine, ipus=ipus, progress=False
    )


@needs_the_model
def machine(name: str) -> System:
    """Return what the IPU Model knows of a machine such as "POD16" or "Bow": its chip, links and IPUs.

    Raises ``ValueError`` for machines it does not know; the message lists those it knows.
    """
    from ipu_model.errors import Error
    from ipu_model.predict.hardware import system_named

    try:
        return system_named(name)
    except Error as problem:
        raise ValueError(problem.message) from problem


def machine_ipus(name: str) -> int:
    """Return how many IPUs a machine has. Raises ``ValueError`` for machines it does not know."""
    return machine(name).ipus


@needs_the_model
def memory_verdict(of: Profile) -> str:
    """Return the verdict on a program's memory: "fits", "too close to call" or "does not fit"."""
    return of.verdict.value


@needs_the_model
def close_shares() -> tuple[float, float]:
    """Return the shares of a tile between which the verdict on memory is "too close to call"."""
    from ipu_model.predict.profile import close_band

    band = close_band()
    return band.low, band.high


@needs_the_model
def largest_ratio_error() -> float:
    """Return how far the model was off at most when it compared two published programs that differ in one thing."""
    from ipu_model.predict.band import known_errors

    return known_errors().ratios["all"].largest


@needs_the_model
def fits_in_a_word(of: Profile) -> str:
    """Return the verdict on a program's memory for a column called "fits": yes, no or too close to call."""
    return FITS_CELLS[memory_verdict(of)]


@needs_the_model
def may_run(of: Profile) -> bool:
    """Tell whether a program compiles: the course's PopTorch refuses only what clearly does not fit."""
    return memory_verdict(of) != DOES_NOT_FIT


@needs_the_model
def start_seconds(of: Profile) -> float:
    """Return the seconds in which code, weights and optimiser state reach the IPUs before the first call.

    The host link's rate sets the time. The machines of a POD are loaded at the same time, each over its own link.
    """
    from ipu_model.predict.hardware import system_named
    from ipu_model.predict.profile import CODE, CONSTANTS, OPTIMISER_STATE, VARIABLES

    sent = {VARIABLES, OPTIMISER_STATE, CONSTANTS, *CODE}
    replica = sum(each.total_bytes for ipu in of.memory for each in ipu.categories if each.name in sent)
    system = system_named(of.machine.name)
    machines = -(-of.replicas * len(of.memory) // system.ipus_per_machine)
    return of.replicas * replica / machines / system.host_to_device_bytes_per_second


@needs_the_model
def figure(kind: str, of: Profile) -> tuple[Figure, str]:
    """Draw one of ``figures.profiles.FIGURES`` for a profile, and return it with its description.

    Raises ``ValueError`` for other kinds.
    """
    from ipu_course.figures.profiles import FIGURES  # imports matplotlib and the IPU Model

    if kind not in FIGURES:
        raise ValueError(f"there is no figure {kind!r} of a profile; there are {', '.join(FIGURES)}")
    draw, describe = FIGURES[kind]
    return draw(of), describe(of)


@needs_the_model
def text_report(of: Profile) -> str:
    """Return the profile as text."""
    from ipu_model.report.text import text_report as engine_report

    return engine_report(of)


@needs_the_model
def phases(of: Profile) -> Mapping[str, tuple[float, ...]]:
    """Return the cycles of one call by PopVision's names, such as "DoExchange": one number for each IPU."""
    from ipu_model.report.breakdown import phases as engine_phases

    return engine_phases(of)


@needs_the_model
def busy_shares(of: Profile) -> Mapping[str, float]:
    """Return the share of the device's time in which each IPU does anything but wait, as the reports say it."""
    from ipu_model.report.breakdown import device_rows

    return {row.name: row.busy_seconds / of.device_seconds_per_call for row in device_rows(of.timeline)}


@needs_the_model
def write_report(of: Profile, folder: Path) -> None:
    """Write the files of a report into a folder. Raises an error of the engine where that cannot be done."""
    from ipu_model.report.files import write_report as engine_writes

    engine_writes(of, folder)


@needs_the_model
def read_report(folder: Path) -> Profile:
    """Return the profile of the report in a folder. Raises an error of the engine where there is none."""
    from ipu_model.report.files import read_report as engine_reads

    return engine_reads(folder)
