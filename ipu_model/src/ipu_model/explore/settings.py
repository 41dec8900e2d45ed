"""The points of a search: what the options of a program are set to, and the programs that this makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

from ipu_model.errors import Error
from ipu_model.explore.lines import micro_batch_line
from ipu_model.explore.options import OPTIONS, Risk, on_machine, with_options
from ipu_model.explore.split import Balance, even_starts, repeated_blocks, split_before, stage_modules
from ipu_model.explore.what_if import Source
from ipu_model.front_ends import ModuleChanges
from ipu_model.predict.hardware import system_with
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.report.quantities import counted
from ipu_model.step import Phase, fewest_micro_batches

_SEARCHED = (
    "half_precision", "replicas", "recomputation", "half_partials", "half_optimiser_state", "optimiser_off_chip",
    "optimiser_sharded",
)  # fmt: skip
"""The options of a setting whose values are those of the program."""
_CHANGED = (
    "half_precision", "split", "execution", "gradient_accumulation", "device_iterations", "replicas", "recomputation",
    "half_partials", "half_optimiser_state", "optimiser_off_chip", "optimiser_sharded", "machine",
)  # fmt: skip
"""The options that a setting changes, in the order in which they are listed."""
_AT_EQUAL_BATCH = ("gradient_accumulation", "device_iterations", "replicas")
"""Options that change together, so that the global batch stays the same."""
_NORMS_OVER_BATCH = ("native_batch_norm", "_native_batch_norm", "cudnn_batch_norm")


class Split(NamedTuple):
    """The IPUs of a replica, and by what their stages are even (`None`: split as the program is)."""

    ipus: int
    balance: Balance | None = None


class Share(NamedTuple):
    """An available memory proportion of every IPU, except of those that keep the program's own."""

    proportion: float
    own: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Setting:
    """What a search sets the options of a program to, by their names in `OPTIONS`, without what follows from it.

    `checkpoints`: outputs of repeated blocks are kept. `machine` is a name, or `None` for one with room of the same
    chip. `micro_batch` is no option, because it needs another capture.
    """

    micro_batch: int
    split: Split
    replicas: int
    recomputation: Recomputation
    checkpoints: bool = False
    half_precision: bool = False
    half_partials: bool = False
    half_optimiser_state: bool = False
    optimiser_off_chip: bool = False
    optimiser_sharded: bool = False
    available_memory_proportion: Share | None = None
    machine: str | None = None

    @property
    def ipus(self) -> int:
        """The IPUs of all replicas of a process."""
        return self.split.ipus * self.replicas

    @property
    def state(self) -> list[str]:
        """Words for the types and the place of optimiser state, if they are not those of a plain program."""
        words = ("float16", "off chip", "sharded")
        return list(compress(words, (self.half_optimiser_state, self.optimiser_off_chip, self.optimiser_sharded)))

    def __str__(self) -> str:
        share = self.available_memory_proportion
        parts = [
            f"{counted(self.split.ipus, 'IPU')} x {counted(self.replicas, 'replica')}",
            f"micro-batch {self.micro_batch}",
            "float16" if self.half_precision else "",
            f"recomputation {self.recomputation.value}{' from checkpoints' * self.checkpoints}",
            f"state {' '.join(self.state)}" if self.state else "",
            f"memory proportion {share.proportion:g}" if share else "",
            self.machine or "",
        ]
        return ", ".join(part for part in parts if part)


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
        self._starts: dict[tuple[object, ...], tuple[str, ...] | None] = {}
        batching = self.base.batching
        steps = batching.accumulation if self.base.training else batching.steps
        self.rows = self.base.samples_per_micro_batch * batching.replicas * steps
        """The rows of a global batch, or of a call of inference, in one process."""
        self.start = Setting(
            micro_batch=self.base.samples_per_micro_batch,
            split=Split(self.base.ipus_per_replica),
            **{name: OPTIONS[name].now(self.base) for name in _SEARCHED},
        )
        """The settings of the source itself."""

    def of(self, setting: Setting) -> Program:
        if setting == self.start:
            return self.base
        placed = self._on_ipus(setting)
        system, ipus = self.base.system, setting.ipus * self.base.processes
        if setting.machine is not None or system.ipus < ipus:
            system = system_with(setting.machine or system.chip.name, ipus)
        return on_machine(with_options(placed, **self._options_of(setting, placed)), system)

    def micro_batches(self, replicas: int, micro_batch: int) -> int:
        """Return how many micro-batches one replica needs for the global batch."""
        count, rest = divmod(self.rows, micro_batch * replicas)
        if rest or not count:
            what = f"{replicas} replicas with micro-batches of {micro_batch}"
            raise Error(f"{what} do not divide the global batch of {self.rows}.")
        return count

    def execution(self, ipus: int, replicas: int, micro_batch: int) -> Execution:
        """Return how IPUs share the work: one after another where there are too few micro-batches for a pipeline."""
        if self.base.execution is not Execution.PIPELINED or ipus == 1:
            return self.base.execution
        needed = fewest_micro_batches(ipus, training=self.base.training)
        return Execution.PIPELINED if self.micro_batches(replicas, micro_batch) >= needed else Execution.SHARDED

    def changed_options(self, setting: Setting) -> dict[str, Any]:
        if setting == self.start:
            return {}
        program = self.of(setting)
        changed: dict[str, Any] = {}
        for name in _CHANGED:
            is_own = name in _SEARCHED
            now = getattr(setting, name) if is_own else OPTIONS[name].now(program)
            if now != (getattr(self.start, name) if is_own else OPTIONS[name].now(self.base)):
                changed[name] = now
        if setting.checkpoints:
            changed["checkpoints"] = repeated_blocks(program.step)
        if setting.available_memory_proportion is not None:
            changed["available_memory_proportion"] = _shares(setting.available_memory_proportion, program)
        return changed

    def changes(self, setting: Setting) -> tuple[Change, ...]:
        program = self.of(setting)
        changes = []
        for name, value in self.changed_options(setting).items():
            option = OPTIONS[name]
            # Shares of memory name the IPUs that there are then.
            before = program if name == "available_memory_proportion" else self.base
            risk = Risk.SCHEDULE if name in _AT_EQUAL_BATCH else option.risk
            changes.append(Change(name, option.change(before, value), option.line(program, value), risk))
        own, rows = self.start.micro_batch, setting.micro_batch
        if rows != own:
            has_batch_norm = any(op.kind in _NORMS_OVER_BATCH for op in self.base.step.ops)
            risk = Risk.NUMERICS if self.base.training and has_batch_norm else Risk.SCHEDULE
            changes.append(Change("micro_batch", f"micro-batch: {own} -> {rows}", micro_batch_line(rows, own), risk))
        return tuple(changes)

    def confirmed(self, setting: Setting) -> Program | None:
        """Return the program of a setting from a module that was captured with all its changes; `None` without one."""
        if self.source.again is None or setting == self.start:
            return None
        program = self.of(setting)
        is_split = setting.split.balance is not None
        changes = ModuleChanges(
            micro_batch=setting.micro_batch,
            batching=program.batching,
            half=setting.half_precision and not self.start.half_precision,
            begins={name: ipu for ipu, name in enumerate(stage_modules(program), 1)} if is_split else None,
            sharded=program.execution is Execution.SHARDED,
            checkpoints=repeated_blocks(program.step) if setting.checkpoints else None,
        )
        captured = replace(program, step=self._captured_again(changes).step)
        if _placed_modules(captured) != _placed_modules(program):
            raise Error(
                "Its own forward places blocks (poptorch.Block or BlockFunction), which poptorch.removeBlocks cannot "
                "remove. Remove them from forward to split the model as shown."
            )
        return captured

    def can_be_captured(self, micro_batch: int, half: bool) -> bool:
        """Whether the module takes micro-batches of so many rows, in float16 or in its own types."""
        try:
            self._captured_with(micro_batch, half)
        except Error:
            return False
        return True

    def _on_ipus(self, setting: Setting) -> Program:
        """Return the program with its micro-batch, its types and its blocks; equal settings share one step."""
        starts = None if setting.split.balance is None else self._starts_of(setting, setting.split.balance)
        key = setting.micro_batch, setting.half_precision, setting.checkpoints, starts
        if key not in self._placed:
            program = self._captured_with(setting.micro_batch, setting.half_precision)
            if starts is not None:
                program = split_before(split_before(program, ()), starts)
            elif setting.split.ipus != self.start.split.ipus:
                raise Error("Another number of IPUs needs other blocks.")
            if setting.checkpoints:
                program = with_options(program, checkpoints=repeated_blocks(program.step))
            self._placed[key] = program
        return self._placed[key]

    def _starts_of(self, setting: Setting, balance: Balance) -> tuple[str, ...]:
        ipus = setting.split.ipus
        execution = self.execution(ipus, setting.replicas, setting.micro_batch)
        recomputes = setting.recomputation is not Recomputation.NONE
        key = setting.micro_batch, setting.half_precision, ipus, balance, execution, recomputes
        if key not in self._starts:
            captured = self._captured_with(setting.micro_batch, setting.half_precision)
            whole = replace(captured, execution=execution, recomputation=setting.recomputation)
            self._starts[key] = even_starts(whole, ipus, balance)
        starts = self._starts[key]
        if starts is None:
            raise Error(f"The model has fewer modules than {ipus} IPUs.")
        return starts

    def _captured_with(self, micro_batch: int, half: bool) -> Program:
        key = micro_batch, half
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(micro_batch, half)
            except (Error, AssertionError) as problem:
                self._captured[key] = problem if isinstance(problem, Error) else Error(str(problem))
        captured = self._captured[key]
        if isinstance(captured, Error):
            raise captured
        return captured

    def _capture(self, micro_batch: int, half: bool) -> Program:
        own, halved = self.start.micro_batch, half and not self.start.half_precision
        if micro_batch == own and not halved:
            return self.base
        if self.source.again is None:
            if micro_batch != own:
                raise Error("Another micro-batch needs the module, to capture it again.")
            return with_options(self.base, half_precision=True)
        is_sharded = self.base.execution is Execution.SHARDED
        changes = ModuleChanges(micro_batch=micro_batch, batching=self.base.batching, half=halved, sharded=is_sharded)
        return replace(self.base, step=self._captured_again(changes).step)

    def _captured_again(self, changes: ModuleChanges) -> Program:
        assert self.source.again is not None
        try:
            return self.source.again(changes)
        except (Error, AssertionError):
            raise
        except Exception as problem:
            text = " ".join(str(problem).split()).rstrip(".")
            raise Error(
                f"The module cannot be captured with micro-batches of {changes.micro_batch}"
                f"{' in float16' if changes.half else ''}: {type(problem).__name__}: {text}."
            ) from problem

    def _options_of(self, setting: Setting, placed: Program) -> dict[str, Any]:
        replicas, micro_batch, trains = setting.replicas, setting.micro_batch, self.base.training
        options: dict[str, Any] = {
            "execution": self.execution(setting.split.ipus, replicas, micro_batch),
            "replicas": replicas,
            "gradient_accumulation" if trains else "device_iterations": self.micro_batches(replicas, micro_batch),
        }
        for name in ("recomputation", "optimiser_off_chip", "optimiser_sharded") if trains else ():
            options[name] = getattr(setting, name)
        for name in ("half_partials", "half_optimiser_state"):
            # To set them to what they are could level types that differ.
            if getattr(setting, name) != getattr(self.start, name):
                options[name] = getattr(setting, name)
        if setting.available_memory_proportion is not None:
            options["available_memory_proportion"] = _shares(setting.available_memory_proportion, placed)
        return options


def _placed_modules(program: Program) -> set[tuple[str, int]]:
    return {(op.scope, op.ipu) for op in program.step.ops if op.phase is Phase.FORWARD and not op.is_view}


def _shares(share: Share, program: Program) -> dict[int, float]:
    return dict.fromkeys((ipu for ipu in program.step.ipus if ipu not in share.own), share.proportion)
