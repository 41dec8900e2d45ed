"""The points of a search: what the options of a program are set to, and the programs that this makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ipu_model.errors import Error
from ipu_model.explore.lines import micro_batch_line
from ipu_model.explore.options import OPTIONS, Risk, on_machine, with_options
from ipu_model.explore.split import Balance, even_starts, repeated_blocks, split_before, stage_modules
from ipu_model.explore.what_if import Source
from ipu_model.front_ends import ModuleChanges
from ipu_model.predict.hardware import System, system_with
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


class Setting(Mapping[str, Any]):
    """What a search sets the options of a program to, by their names in `OPTIONS`; settings are never changed.

    Some values say how to choose: "split" is a `Split`, "checkpoints" whether the outputs of repeated blocks are kept,
    "available_memory_proportion" a `Share` (`None`: as the program has it), and "machine" a name (`None`: one of the
    same chip with room). "micro_batch" is the one name that is no option, because it needs another capture. What
    follows from these values, such as the gradient accumulation, is left out. `setting | {"replicas": 2}` is another
    setting.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __or__(self, values: Mapping[str, Any]) -> Setting:
        return Setting({**self._values, **values})

    @property
    def ipus(self) -> int:
        """The IPUs of all replicas of a process."""
        return self.ipus_per_replica * int(self["replicas"])

    @property
    def ipus_per_replica(self) -> int:
        """The IPUs of one replica."""
        split: Split = self["split"]
        return split.ipus

    @property
    def state(self) -> list[str]:
        """Words for the types and the place of optimiser state, if they are not those of a plain program."""
        words = {"half_optimiser_state": "float16", "optimiser_off_chip": "off chip", "optimiser_sharded": "sharded"}
        return [word for name, word in words.items() if self[name]]

    def __str__(self) -> str:
        share = self["available_memory_proportion"]
        parts = [
            f"{counted(self.ipus_per_replica, 'IPU')} x {counted(self['replicas'], 'replica')}",
            f"micro-batch {self['micro_batch']}",
            "float16" if self["half_precision"] else "",
            f"recomputation {self['recomputation'].value}{' from checkpoints' if self['checkpoints'] else ''}",
            f"state {' '.join(self.state)}" if self.state else "",
            f"memory proportion {share.proportion:g}" if share else "",
            self["machine"] or "",
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
        self.start = Setting({
            "micro_batch": self.base.samples_per_micro_batch,
            "split": Split(self.base.ipus_per_replica),
            "checkpoints": False,
            "available_memory_proportion": None,
            "machine": None,
            **{name: OPTIONS[name].now(self.base) for name in _SEARCHED},
        })  # fmt: skip
        """The settings of the source itself."""

    def of(self, setting: Setting) -> Program:
        """Return the program of a setting.

        Raises:
            Error: a batch that does not divide so, a module that cannot be split or captured so, too few IPUs.
        """
        if setting == self.start:
            return self.base
        placed = self._on_ipus(setting)
        return on_machine(with_options(placed, **self._options_of(setting, placed)), self._system(setting))

    def micro_batches(self, replicas: int, micro_batch: int) -> int:
        """Return how many micro-batches one replica needs for the global batch.

        Raises:
            Error: they do not divide it.
        """
        count, rest = divmod(self.rows, micro_batch * replicas)
        if rest or not count:
            raise Error(
                f"{replicas} replicas with micro-batches of {micro_batch} do not divide the global batch of "
                f"{self.rows}."
            )
        return count

    def execution(self, ipus: int, replicas: int, micro_batch: int) -> Execution:
        """Return how IPUs share the work: one after another where there are too few micro-batches for a pipeline."""
        if self.base.execution is not Execution.PIPELINED or ipus == 1:
            return self.base.execution
        needed = fewest_micro_batches(ipus, training=self.base.training)
        return Execution.PIPELINED if self.micro_batches(replicas, micro_batch) >= needed else Execution.SHARDED

    def changed_options(self, setting: Setting) -> dict[str, Any]:
        """Return the options of `OPTIONS` that a setting changes, with their values."""
        if setting == self.start:
            return {}
        program = self.of(setting)
        changed: dict[str, Any] = {}
        for name in _CHANGED:
            if name in _SEARCHED:
                now, before = setting[name], self.start[name]
            else:
                now, before = (OPTIONS[name].now(each) for each in (program, self.base))
            if now != before:
                changed[name] = now
        if setting["checkpoints"]:
            changed["checkpoints"] = repeated_blocks(program.step)
        if setting["available_memory_proportion"] is not None:
            changed["available_memory_proportion"] = _shares(setting, program)
        return changed

    def changes(self, setting: Setting) -> tuple[Change, ...]:
        """Return what a setting changes of the source's program, with the lines of code."""
        program = self.of(setting)
        changes = []
        for name, value in self.changed_options(setting).items():
            option = OPTIONS[name]
            # Shares of memory name the IPUs that there are then.
            before = program if name == "available_memory_proportion" else self.base
            risk = Risk.SCHEDULE if name in _AT_EQUAL_BATCH else option.risk
            changes.append(Change(name, option.change(before, value), option.line(program, value), risk))
        own, rows = self.start["micro_batch"], setting["micro_batch"]
        if rows != own:
            has_batch_norm = any(op.kind in _NORMS_OVER_BATCH for op in self.base.step.ops)
            risk = Risk.NUMERICS if self.base.training and has_batch_norm else Risk.SCHEDULE
            changes.append(Change("micro_batch", f"micro-batch: {own} -> {rows}", micro_batch_line(rows, own), risk))
        return tuple(changes)

    def confirmed(self, setting: Setting) -> Program | None:
        """Return the program of a setting from a module that was captured with all its changes; `None` without one.

        Raises:
            Error: what the front end refuses of it.
        """
        if self.source.again is None or setting == self.start:
            return None
        program = self.of(setting)
        is_split = setting["split"].balance is not None
        changes = ModuleChanges(
            micro_batch=setting["micro_batch"],
            batching=program.batching,
            half=setting["half_precision"] and not self.start["half_precision"],
            begins={name: ipu for ipu, name in enumerate(stage_modules(program), 1)} if is_split else None,
            sharded=program.execution is Execution.SHARDED,
            checkpoints=repeated_blocks(program.step) if setting["checkpoints"] else None,
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

    # --- the parts of a program

    def _on_ipus(self, setting: Setting) -> Program:
        """Return the program with its micro-batch, its types and its blocks; equal settings share one step."""
        split, has_checkpoints = setting["split"], setting["checkpoints"]
        starts = None if split.balance is None else self._starts_of(setting)
        key = setting["micro_batch"], setting["half_precision"], has_checkpoints, starts
        if key not in self._placed:
            program = self._captured_with(setting["micro_batch"], setting["half_precision"])
            if starts is not None:
                program = split_before(split_before(program, ()), starts)
            elif split.ipus != self.start.ipus_per_replica:
                raise Error("Another number of IPUs needs other blocks.")
            if has_checkpoints:
                program = with_options(program, checkpoints=repeated_blocks(program.step))
            self._placed[key] = program
        return self._placed[key]

    def _starts_of(self, setting: Setting) -> tuple[str, ...]:
        """Return the modules at which the blocks of a setting begin."""
        ipus, balance = setting["split"]
        execution = self.execution(ipus, setting["replicas"], setting["micro_batch"])
        recomputation = setting["recomputation"]
        recomputes = recomputation is not Recomputation.NONE
        key = setting["micro_batch"], setting["half_precision"], ipus, balance, execution, recomputes
        if key not in self._starts:
            captured = self._captured_with(setting["micro_batch"], setting["half_precision"])
            whole = replace(captured, execution=execution, recomputation=recomputation)
            self._starts[key] = even_starts(whole, ipus, balance)
        starts = self._starts[key]
        if starts is None:
            raise Error(f"The model has fewer modules than {ipus} IPUs.")
        return starts

    def _captured_with(self, micro_batch: int, half: bool) -> Program:
        """Return the program with that micro-batch and those types; each is captured, or refused, once."""
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
        own, halved = self.start["micro_batch"], half and not self.start["half_precision"]
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
        """Capture the module with changes.

        Raises:
            Error: what the front end refuses, or what the module's own code raises: it may take one micro-batch only.
        """
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
        """Return the options that make the program of a setting out of the one with its blocks."""
        replicas, micro_batch = setting["replicas"], setting["micro_batch"]
        count = self.micro_batches(replicas, micro_batch)
        options: dict[str, Any] = {
            "execution": self.execution(setting.ipus_per_replica, replicas, micro_batch),
            "replicas": replicas,
            "gradient_accumulation" if self.base.training else "device_iterations": count,
        }
        if self.base.training:
            always = "recomputation", "optimiser_off_chip", "optimiser_sharded"
            options |= {name: setting[name] for name in always}
        for name in ("half_partials", "half_optimiser_state"):
            if setting[name] != self.start[name]:  # to set them to what they are could level types that differ
                options[name] = setting[name]
        if setting["available_memory_proportion"] is not None:
            options["available_memory_proportion"] = _shares(setting, placed)
        return options

    def _system(self, setting: Setting) -> System:
        ipus, own = setting.ipus * self.base.processes, self.base.system
        if setting["machine"] is None and own.ipus >= ipus:
            return own
        return system_with(setting["machine"] or own.chip.name, ipus)


def _placed_modules(program: Program) -> set[tuple[str, int]]:
    """Return the modules of the forward pass, each with an IPU that runs ops of it."""
    return {(op.scope, op.ipu) for op in program.step.ops if op.phase is Phase.FORWARD and not op.is_view}


def _shares(setting: Setting, program: Program) -> dict[int, float]:
    """Return the available memory proportions that a setting changes, by IPU."""
    share: Share = setting["available_memory_proportion"]
    return dict.fromkeys((ipu for ipu in program.step.ipus if ipu not in share.own), share.proportion)
