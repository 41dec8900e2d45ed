"""The points of a search: what the options of a program are set to, and the programs that this makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

from ipu_model.errors import Error
from ipu_model.explore.blocks import blocks_of, repeated_blocks, split_before
from ipu_model.explore.lines import micro_batch_line
from ipu_model.explore.options import OPTIONS, Change, Risk, on_machine, with_options
from ipu_model.explore.placement import Stages
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
    """The IPUs of a replica, where stages begin (`None`: as they do now), and if the last one is on IPU 0 again."""

    ipus: int
    starts: tuple[str, ...] | None = None
    returns: bool = False

    @property
    def blocks(self) -> dict[str, int]:
        """The IPUs of blocks by the modules at which they begin."""
        return {name: ipu % self.ipus for ipu, name in enumerate(self.starts or (), 1)}

    def __str__(self) -> str:
        return counted(self.ipus, "IPU") + ", the last stage on IPU 0 again" * self.returns


_WHOLE = Split(1, ())


@dataclass(frozen=True)
class Setting:
    """What a search sets the options of a program to, by their names in `OPTIONS`, without what follows from it.

    `checkpoints`: outputs of repeated blocks are kept. `available_memory_proportion` has one for each IPU, `None` for
    the program's own. `calls` of the program become one, by more device iterations. `machine` is a name, or `None` for
    one with room of the same chip. `micro_batch` is no option, because it needs another capture.
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
    available_memory_proportion: tuple[float | None, ...] = ()
    calls: int = 1
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

    @property
    def proportions(self) -> dict[int, float]:
        """The memory proportions that differ from the program's own, by IPU."""
        return {ipu: share for ipu, share in enumerate(self.available_memory_proportion) if share is not None}

    def __str__(self) -> str:
        shares = [f"{share:g}" for share in dict.fromkeys(self.proportions.values())]
        parts = [
            f"{self.split} x {counted(self.replicas, 'replica')}",
            f"micro-batch {self.micro_batch}",
            "float16" if self.half_precision else "",
            f"recomputation {self.recomputation.value}{' from checkpoints' * self.checkpoints}",
            f"state {' '.join(self.state)}" if self.state else "",
            f"memory proportion {' and '.join(shares)}" if shares else "",
            f"{self.calls} calls in one" if self.calls > 1 else "",
            self.machine or "",
        ]
        return ", ".join(part for part in parts if part)


class Programs:
    """The programs of all settings of one source, at the global batch of the source."""

    def __init__(self, source: Source) -> None:
        self.source, self.base = source, source.program
        self._captured: dict[tuple[int, bool], Program | Error] = {}
        self._placed: dict[tuple[int, bool, bool, Split], Program] = {}
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
        placed = self._on_ipus(setting.micro_batch, setting.half_precision, setting.checkpoints, setting.split)
        system, ipus = self.base.system, setting.ipus * self.base.processes
        if setting.machine is not None or system.ipus < ipus:
            system = system_with(setting.machine or system.chip.name, ipus)
        return on_machine(with_options(placed, **self._options_of(setting)), system)

    def micro_batches(self, replicas: int, micro_batch: int) -> int:
        """Return how many micro-batches one replica needs for the global batch."""
        count, rest = divmod(self.rows, micro_batch * replicas)
        if rest or not count:
            what = f"{replicas} replicas with micro-batches of {micro_batch}"
            raise Error(f"{what} do not divide the global batch of {self.rows}.")
        return count

    def execution(self, split: Split, replicas: int, micro_batch: int) -> Execution:
        """Return how IPUs share the work: one after another where there are too few micro-batches for a pipeline."""
        if self.base.execution is not Execution.PIPELINED or split.ipus == 1:
            return self.base.execution
        needed = fewest_micro_batches(split.ipus + split.returns, training=self.base.training)
        return Execution.PIPELINED if self.micro_batches(replicas, micro_batch) >= needed else Execution.SHARDED

    def changed_options(self, setting: Setting) -> dict[str, Any]:
        if setting == self.start:
            return {}
        program = self.of(setting)
        now = {name: OPTIONS[name].now(program) for name in _CHANGED}
        changed = {name: value for name, value in now.items() if value != OPTIONS[name].now(self.base)}
        if setting.checkpoints:
            changed["checkpoints"] = repeated_blocks(program.step)
        if setting.proportions:
            changed["available_memory_proportion"] = self._shares(setting)
        return changed

    def stages(self, setting: Setting) -> Stages:
        """Return the stages that a program with these settings could have, whatever its split."""
        costed, whole = (
            self._on_ipus(setting.micro_batch, setting.half_precision, checkpoints, _WHOLE)
            for checkpoints in (False, setting.checkpoints)
        )
        program = with_options(whole, **self._options_of(replace(setting, available_memory_proportion=())))
        return Stages(program, setting.split.ipus, returns=setting.split.returns, costed=costed.step)

    def changes(self, setting: Setting) -> tuple[Change, ...]:
        program = self.of(setting)
        changes = []
        for name, value in self.changed_options(setting).items():
            option = OPTIONS[name]
            # Shares of memory name the IPUs that there are then.
            before = program if name == "available_memory_proportion" else self.base
            risk = Risk.SCHEDULE if name in _AT_EQUAL_BATCH else option.risk
            changes.append(Change(option.change(before, value), option.line(program, value), risk))
        own, rows = self.start.micro_batch, setting.micro_batch
        if rows != own:
            has_batch_norm = any(op.kind in _NORMS_OVER_BATCH for op in self.base.step.ops)
            risk = Risk.NUMERICS if self.base.training and has_batch_norm else Risk.SCHEDULE
            changes.append(Change(f"micro-batch: {own} -> {rows}", micro_batch_line(rows, own), risk))
        return tuple(changes)

    def confirmed(self, setting: Setting) -> Program | None:
        """Return the program of a setting from a module that was captured with all its changes; `None` without one."""
        if self.source.again is None or setting == self.start:
            return None
        program = self.of(setting)
        changes = ModuleChanges(
            micro_batch=setting.micro_batch,
            batching=program.batching,
            half=setting.half_precision and not self.start.half_precision,
            begins=None if setting.split.starts is None else blocks_of(program),
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

    def captured(self, micro_batch: int, half: bool) -> Program | Error:
        """Return the program with micro-batches of so many rows, in float16 or in its own types, or why not."""
        key = micro_batch, half
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(micro_batch, half)
            except Error as problem:
                self._captured[key] = problem
        return self._captured[key]

    def _on_ipus(self, micro_batch: int, half: bool, checkpoints: bool, split: Split) -> Program:
        """Return the captured program with its blocks and its checkpoints; equal settings share one step."""
        key = micro_batch, half, checkpoints, split
        if key not in self._placed:
            if split.starts is None and split.ipus != self.start.split.ipus:
                raise Error("Another number of IPUs needs other blocks.")
            if split.starts:
                program = split_before(self._on_ipus(micro_batch, half, checkpoints, _WHOLE), split.blocks)
            elif checkpoints:
                program = self._on_ipus(micro_batch, half, False, split)
                program = with_options(program, checkpoints=repeated_blocks(program.step))
            else:
                captured = self.captured(micro_batch, half)
                if isinstance(captured, Error):
                    raise captured
                program = captured if split.starts is None else split_before(captured, ())
            self._placed[key] = program
        return self._placed[key]

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
        except Error:
            raise
        except AssertionError as problem:
            raise Error(str(problem)) from problem
        except Exception as problem:
            text = " ".join(str(problem).split()).rstrip(".")
            raise Error(
                f"The module cannot be captured with micro-batches of {changes.micro_batch}"
                f"{' in float16' if changes.half else ''}: {type(problem).__name__}: {text}."
            ) from problem

    def _options_of(self, setting: Setting) -> dict[str, Any]:
        replicas, micro_batch, trains = setting.replicas, setting.micro_batch, self.base.training
        options: dict[str, Any] = {
            "execution": self.execution(setting.split, replicas, micro_batch),
            "replicas": replicas,
        }
        count = self.micro_batches(replicas, micro_batch)
        if trains:
            options["gradient_accumulation"], count = count, self.base.batching.device_iterations
        options["device_iterations"] = count * setting.calls
        for name in ("recomputation", "optimiser_off_chip", "optimiser_sharded") if trains else ():
            options[name] = getattr(setting, name)
        for name in ("half_partials", "half_optimiser_state"):
            # To set them to what they are could level types that differ.
            if getattr(setting, name) != getattr(self.start, name):
                options[name] = getattr(setting, name)
        if setting.proportions:
            options["available_memory_proportion"] = self._shares(setting)
        return options

    def _shares(self, setting: Setting) -> dict[int, float]:
        own = self.base.settings.available_memory_proportion.items()
        return {**{ipu: share for ipu, share in own if ipu < setting.split.ipus}, **setting.proportions}


def _placed_modules(program: Program) -> set[tuple[str, int]]:
    return {(op.scope, op.ipu) for op in program.step.ops if op.phase is Phase.FORWARD and not op.is_view}
