"""One point of a search: the settings of a program that fits or not, and the program that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.blocks import repeated_blocks
from ipu_model.explore.changed_lines import micro_batch_line
from ipu_model.explore.options import (
    Risk,
    has_half_state,
    has_single_precision,
    on_machine,
    option_named,
    with_options,
)
from ipu_model.explore.program_source import Source
from ipu_model.explore.split import Balance, even_starts, stage_modules
from ipu_model.front_ends import ModuleChanges
from ipu_model.predict.hardware import System, system_with
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.report.quantities import counted
from ipu_model.step import Phase, fewest_micro_batches

_NORMS_OVER_BATCH = ("native_batch_norm", "_native_batch_norm", "cudnn_batch_norm")


@dataclass(frozen=True)
class Setting:
    """The settings that a search changes.

    `ipus` are those of one replica; `balance` says by what the stages are even (`None`: split as the program is).
    `proportion` is the available memory proportion of every IPU except those in `own_proportion` (`None`: as the
    program has it). `checkpoints` says whether the outputs of repeated blocks are kept, and `machine` names another
    machine (`None`: one of the same chip with room).
    """

    ipus: int
    replicas: int
    micro_batch: int
    balance: Balance | None = None
    half: bool = False
    half_partials: bool = False
    half_state: bool = False
    off_chip: bool = False
    sharded: bool = False
    recomputation: Recomputation = Recomputation.NONE
    checkpoints: bool = False
    proportion: float | None = None
    own_proportion: frozenset[int] = frozenset()
    machine: str | None = None

    @property
    def all_ipus(self) -> int:
        """The IPUs of all replicas of one process."""
        return self.ipus * self.replicas

    def __str__(self) -> str:
        shares = [] if self.proportion is None else [f"memory proportion {self.proportion:g}"]
        state = [word for word, on in (("float16", self.half_state), ("off chip", self.off_chip),
                                       ("sharded", self.sharded)) if on]  # fmt: skip
        parts = [
            f"{counted(self.ipus, 'IPU')} x {counted(self.replicas, 'replica')}",
            f"micro-batch {self.micro_batch}",
            *(["float16"] if self.half else []),
            f"recomputation {self.recomputation.value}{' from checkpoints' if self.checkpoints else ''}",
            *([f"state {' '.join(state)}"] if state else []),
            *shares,
            *([self.machine] if self.machine else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Change:
    """One change to a program: what it is in a few words, the line of code for it, and its risk."""

    name: str
    text: str
    line: str
    risk: Risk


class Programs:
    """The programs of all settings of one source, at the global batch of the source."""

    def __init__(self, source: Source) -> None:
        self.source, self.base = source, source.program
        self._captured: dict[tuple[int, bool], Program | Error] = {}
        self._placed: dict[tuple[int, bool, bool, tuple[str, ...] | None], Program] = {}
        batching = self.base.batching
        self.rows = self.base.samples_per_micro_batch * batching.replicas * (
            batching.accumulation if self.base.training else batching.steps
        )  # fmt: skip
        """The rows of a global batch, or of a call of inference, in one process."""
        self._starts: dict[tuple[object, ...], tuple[str, ...] | None] = {}
        self.start = Setting(
            ipus=self.base.ipus_per_replica,
            replicas=batching.replicas,
            micro_batch=self.base.samples_per_micro_batch,
            half_partials=self.base.settings.half_partials,
            half_state=has_half_state(self.base),
            half=not has_single_precision(self.base),
            off_chip=not self.base.locations.optimiser.on_chip,
            sharded=self.base.locations.optimiser.sharded,
            recomputation=self.base.recomputation,
        )
        """The settings of the source itself."""

    def of(self, setting: Setting) -> Program:
        """Return the program of a setting.

        Raises:
            Error: a batch that does not divide so, a module that cannot be split or captured so, too few IPUs.
        """
        if setting == self.start:
            return self.base
        placed = self._on_ipus(setting)
        program = with_options(placed, **self._options_of(setting, placed))
        return on_machine(program, self._system(setting))

    def micro_batches(self, setting: Setting) -> int:
        """Return how many micro-batches one replica needs for the global batch.

        Raises:
            Error: they do not divide it.
        """
        count, rest = divmod(self.rows, setting.micro_batch * setting.replicas)
        if rest or not count:
            raise Error(
                f"{setting.replicas} replicas with micro-batches of {setting.micro_batch} do not divide the global "
                f"batch of {self.rows}."
            )
        return count

    def execution(self, setting: Setting) -> Execution:
        """Return how IPUs share the work: one after another where there are too few micro-batches for a pipeline."""
        if self.base.execution is not Execution.PIPELINED or setting.ipus == 1:
            return self.base.execution
        needed = fewest_micro_batches(setting.ipus, training=self.base.training)
        return Execution.PIPELINED if self.micro_batches(setting) >= needed else Execution.SHARDED

    def has_blocks(self) -> bool:
        """Whether the model has repeated blocks, at which checkpoints can be placed."""
        return bool(repeated_blocks(self.base.step))

    def changes(self, setting: Setting) -> tuple[Change, ...]:
        """Return what a setting changes of the source's program, with the lines of code."""
        program = self.of(setting)
        found = [
            Change(
                name,
                option.change(_described(self.base, program, name), value),
                option.line(program, value),
                option.risk,
            )
            for name, value in self.changed_options(setting).items()
            for option in (option_named(name),)
        ]
        if setting.micro_batch != self.start.micro_batch:
            risk = Risk.NUMERICS if self._normalises_batches() else Risk.SCHEDULE
            text = f"micro-batch: {self.start.micro_batch} -> {setting.micro_batch}"
            line = micro_batch_line(setting.micro_batch, self.start.micro_batch)
            found.append(Change("micro_batch", text, line, risk))
        return tuple(replace(change, risk=self._risk_at_equal_batch(change)) for change in found)

    def changed_options(self, setting: Setting) -> Mapping[str, Any]:
        """Return the options of `explore.options.OPTIONS` that a setting changes, with their values."""
        if setting == self.start:
            return {}
        program, base = self.of(setting), self.base
        found: dict[str, Any] = {}
        if setting.half != self.start.half:
            found["half_precision"] = True
        cuts = tuple(stage_modules(program))
        if cuts != tuple(stage_modules(base)):
            found["split"] = cuts
        if program.execution is not base.execution:
            found["execution"] = program.execution.value
        for name, now, before in (
            ("gradient_accumulation", program.batching.accumulation, base.batching.accumulation),
            ("device_iterations", program.batching.device_iterations, base.batching.device_iterations),
            ("replicas", program.batching.replicas, base.batching.replicas),
            ("recomputation", program.recomputation.value, base.recomputation.value),
            ("half_partials", setting.half_partials, self.start.half_partials),
            ("half_optimiser_state", setting.half_state, self.start.half_state),
            ("optimiser_off_chip", setting.off_chip, self.start.off_chip),
            ("optimiser_sharded", setting.sharded, self.start.sharded),
            ("machine", program.system.name, base.system.name),
        ):
            if now != before:
                found[name] = now
        if setting.checkpoints:
            found["checkpoints"] = repeated_blocks(program.step)
        if setting.proportion is not None:
            found["available_memory_proportion"] = _shares(setting, program)
        return found

    def confirmed(self, setting: Setting) -> Program | None:
        """Return the program of a setting from a module that was captured with all its changes; `None` without one.

        Raises:
            Error: what the front end refuses of it.
        """
        if self.source.again is None or setting == self.start:
            return None
        program = self.of(setting)
        starts = tuple(stage_modules(program))
        changes = ModuleChanges(
            micro_batch=setting.micro_batch,
            batching=program.batching,
            half=setting.half and not self.start.half,
            begins=None if setting.balance is None else {name: ipu for ipu, name in enumerate(starts, 1)},
            sharded=program.execution is Execution.SHARDED,
            checkpoints=repeated_blocks(program.step) if setting.checkpoints else None,
        )
        captured = replace(program, step=_captured_again(self.source.again, changes).step)
        if _placed_modules(captured) != _placed_modules(program):
            raise Error(
                "Its own forward places blocks (poptorch.Block or BlockFunction), which poptorch.removeBlocks cannot "
                "remove. Remove them from forward to split the model as shown."
            )
        return captured

    # --- the parts of a program

    def _risk_at_equal_batch(self, change: Change) -> Risk:
        """Counts of micro-batches and replicas change together here, so that the global batch stays the same."""
        counts = ("gradient_accumulation", "replicas", "device_iterations", "processes")
        return Risk.SCHEDULE if change.name in counts else change.risk

    def _normalises_batches(self) -> bool:
        return self.base.training and any(op.kind in _NORMS_OVER_BATCH for op in self.base.step.ops)

    def _on_ipus(self, setting: Setting) -> Program:
        """Return the program with its micro-batch, its types and its blocks; equal settings share one step."""
        starts = None if setting.balance is None else self.starts(setting)
        key = setting.micro_batch, setting.half, setting.checkpoints, starts
        if key not in self._placed:
            program = self._of_types(setting)
            if starts is not None:
                program = _split(program, starts)
            elif setting.ipus != self.start.ipus:
                raise Error("Another number of IPUs needs other blocks.")
            if setting.checkpoints:
                program = with_options(program, checkpoints=repeated_blocks(program.step))
            self._placed[key] = program
        return self._placed[key]

    def starts(self, setting: Setting) -> tuple[str, ...]:
        """Return the modules at which the blocks of a setting begin.

        Raises:
            Error: more IPUs than the model has modules.
        """
        execution, recomputes = self.execution(setting), setting.recomputation is not Recomputation.NONE
        key = setting.micro_batch, setting.half, setting.ipus, setting.balance, execution, recomputes
        if key not in self._starts:
            whole = replace(self._of_types(setting), execution=execution, recomputation=setting.recomputation)
            self._starts[key] = even_starts(whole, setting.ipus, setting.balance or Balance.TIME)
        found = self._starts[key]
        if found is None:
            raise Error(f"The model has fewer modules than {setting.ipus} IPUs.")
        return found

    def can_be_captured(self, micro_batch: int, half: bool) -> bool:
        """Whether the module takes micro-batches of so many rows, in float16 or in its own types."""
        return isinstance(self._captured_with(micro_batch, half), Program)

    def _of_types(self, setting: Setting) -> Program:
        found = self._captured_with(setting.micro_batch, setting.half)
        if isinstance(found, Error):
            raise found
        return found

    def _captured_with(self, micro_batch: int, half: bool) -> Program | Error:
        """Return the program with that micro-batch and those types, or why there is none; each is captured once."""
        key = micro_batch, half
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(micro_batch, half)
            except (Error, AssertionError) as problem:
                self._captured[key] = problem if isinstance(problem, Error) else Error(str(problem))
        return self._captured[key]

    def _capture(self, micro_batch: int, half: bool) -> Program:
        halved = half and not self.start.half
        if micro_batch == self.start.micro_batch and not halved:
            return self.base
        if self.source.again is None:
            if micro_batch != self.start.micro_batch:
                raise Error("Another micro-batch needs the module, to capture it again.")
            return with_options(self.base, half_precision=True)
        changes = ModuleChanges(
            micro_batch=micro_batch, batching=self.base.batching, half=halved,
            sharded=self.base.execution is Execution.SHARDED,
        )  # fmt: skip
        return replace(self.base, step=_captured_again(self.source.again, changes).step)

    def _options_of(self, setting: Setting, placed: Program) -> Mapping[str, Any]:
        count = self.micro_batches(setting)
        found: dict[str, Any] = {
            "execution": self.execution(setting).value,
            "replicas": setting.replicas,
            "half_partials": setting.half_partials,
        }
        if setting.half_partials == self.start.half_partials:
            del found["half_partials"]  # it would make those of convolutions the same
        if self.base.training:
            found |= {"gradient_accumulation": count, "recomputation": setting.recomputation.value}
            found |= {"optimiser_off_chip": setting.off_chip, "optimiser_sharded": setting.sharded}
        else:
            found["device_iterations"] = count
        if self.base.optimiser is not None and setting.half_state != self.start.half_state:
            found["half_optimiser_state"] = setting.half_state
        if setting.proportion is not None:
            found["available_memory_proportion"] = _shares(setting, placed)
        return found

    def _system(self, setting: Setting) -> System:
        chip = self.base.system.chip.name if setting.machine is None else setting.machine
        ipus = setting.all_ipus * self.base.processes
        if setting.machine is None and self.base.system.ipus >= ipus:
            return self.base.system
        return system_with(chip, ipus)


def _placed_modules(program: Program) -> set[tuple[str, int]]:
    """Return the modules of the forward pass, each with an IPU that runs ops of it."""
    return {(op.scope, op.ipu) for op in program.step.ops if op.phase is Phase.FORWARD and not op.is_view}


def _captured_again(again: Callable[[ModuleChanges], Program], changes: ModuleChanges) -> Program:
    """Capture a module with changes.

    Raises:
        Error: what the front end refuses, or what the module's own code raises: it may take one micro-batch only.
    """
    try:
        return again(changes)
    except (Error, AssertionError):
        raise
    except Exception as problem:
        text = " ".join(str(problem).split()).rstrip(".")
        raise Error(
            f"The module cannot be captured with micro-batches of {changes.micro_batch}"
            f"{' in float16' if changes.half else ''}: {type(problem).__name__}: {text}."
        ) from problem


def _split(program: Program, starts: tuple[str, ...]) -> Program:
    whole = option_named("split").set_to(program, ())
    return option_named("split").set_to(whole, starts) if starts else whole


def _shares(setting: Setting, program: Program) -> dict[int, float | None]:
    """Return the available memory proportions that a setting changes, by IPU."""
    return dict.fromkeys((ipu for ipu in program.step.ipus if ipu not in setting.own_proportion), setting.proportion)


def _described(base: Program, program: Program, name: str) -> Program:
    """Return the program that a change is described against: shares of memory name the IPUs that there are then."""
    return program if name == "available_memory_proportion" else base
