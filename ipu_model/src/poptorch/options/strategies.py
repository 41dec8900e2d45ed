"""Stages, phases and the execution strategies that decide where each block of a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Self

from ipu_model.errors import require
from ipu_model.step import Placement
from poptorch._impl import createPoptorchError
from poptorch._options_impl import check_type
from poptorch.enums import AutoStage, Liveness

__all__ = [
    "AutoStage", "ParallelPhasedExecution", "Phase", "PipelinedExecution", "SerialPhasedExecution", "ShardedExecution",
    "Stage",
]  # fmt: skip


class Stage:
    """Blocks that run together on one IPU."""

    def __init__(self, *block_ids: str) -> None:
        are_text = all(isinstance(block, str) for block in block_ids)
        require(are_text, f"Block ids are supposed to be strings; got {block_ids}.")
        self._blocks = block_ids
        self._ipu: int | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Fix the IPU (inside one replica) and return the stage; a negative index is refused where it is used."""
        _check_ipu(ipu)
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        text = f"Stage({', '.join(map(repr, self._blocks))})"
        return text if self._ipu is None else f"{text}.ipu({self._ipu})"


def _check_ipu(ipu: object) -> None:
    require(isinstance(ipu, int), f"An IPU index must be an int; got {ipu!r}.")


_UNKNOWN = (
    "Unknown Block '{}': the execution strategy lists {}. Add the block to a stage, or call poptorch.Block.useAutoId() "
    "first if it has an automatic id."
)


class _IExecutionStrategy:
    """What all strategies share: the automatic block ids and the choice of the IPU."""

    _execution_mode: int

    def __init__(self, stages: Iterable[Stage] = ()) -> None:
        self._next_auto_id = 0
        self._explicit_stages: dict[str, Stage] = {}
        for stage in stages:
            for block in stage.blocks:
                require(block not in self._explicit_stages, f"Block '{block}' is associated with more than one stage.")
                self._explicit_stages[block] = stage

    def use_auto_id(self) -> None:
        """Let automatic block ids start at "0" again (`Block.useAutoId`)."""
        self._next_auto_id = 0

    def place(self, user_id: str | None, ipu_id: int | None) -> Placement:
        """Return where the block being entered runs; a falsy `user_id` gets the next automatic id.

        The IPU is the stage's fixed one, else `ipu_id`, else the stage number. Raises `AssertionError` for a block that
        the strategy does not know, `poptorch.Error` for an IPU below 0.
        """
        if ipu_id is not None:
            _check_ipu(ipu_id)
        if not user_id:
            user_id, self._next_auto_id = str(self._next_auto_id), self._next_auto_id + 1
        placement = self._place(user_id, ipu_id)
        if placement.ipu < 0:
            raise createPoptorchError(
                f"Block '{placement.block}' is placed on IPU {placement.ipu}: the indices of IPUs start at 0."
            )
        return placement

    def stage(self, block_id: str) -> Stage:
        """Return the explicitly listed stage of a block; raise `AssertionError` if it is in none."""
        return self._stage_of(block_id, "Unknown block '{}': no stage lists it. Listed blocks: {}.")

    def backendOptions(self) -> dict[str, Any]:
        """Return the entries this strategy adds to `Options.toDict()`."""
        return {"execution_mode": self._execution_mode}

    def _stage_of(self, block: str, message: str = _UNKNOWN) -> Stage:
        listed = ", ".join(f"'{listed}'" for listed in self._explicit_stages) or "none"
        require(block in self._explicit_stages, message.format(block, listed))
        return self._explicit_stages[block]

    def _place(self, block: str, ipu_id: int | None) -> Placement:
        raise NotImplementedError


class PipelinedExecution(_IExecutionStrategy):
    """Stages run at the same time on different micro-batches.

    Arguments: nothing (`AutoStage.SameAsIpu`), one `AutoStage`, or the stages in order, each a `Stage`, a
    block id or an iterable of block ids. Raises `AssertionError` for a block listed twice or ids that are not
    strings, `TypeError` for anything that is none of these.
    """

    _execution_mode = 0

    def __init__(self, *args: AutoStage | Stage | str | Iterable[str]) -> None:
        first = args[0] if args else AutoStage.SameAsIpu
        self._auto = first if isinstance(first, AutoStage) and len(args) < 2 else None
        self._stages = [_as_stage(arg) for arg in args] if self._auto is None else []
        super().__init__(self._stages)
        # In the automatic modes: the blocks known so far, with their stage number. It grows during traces.
        self._stage_number: dict[str, int] = {}

    def _place(self, block: str, ipu_id: int | None) -> Placement:
        if self._auto is None:
            stage = self._stage_of(block)
            number, fixed = self._stages.index(stage), stage._ipu
        else:
            number, fixed = self._automatic_stage(block, ipu_id), None
        ipu = fixed if fixed is not None else ipu_id if ipu_id is not None else number
        return Placement(block=block, stage=number, ipu=ipu)

    def _automatic_stage(self, block: str, ipu_id: int | None) -> int:
        if block in self._stage_number:
            return self._stage_number[block]
        Stage(block)  # Applies the rule that ids are strings.
        # Stage 0 is reserved for the ops before the first block.
        number = 1 + len(self._stage_number) if self._auto is AutoStage.AutoIncrement else ipu_id
        if number is None:
            raise AssertionError(
                f"no IPU was specified for block {block}: AutoStage.SameAsIpu makes it the stage. "
                "Give the block an ipu_id, or use AutoStage.AutoIncrement or explicit stages."
            )
        return self._stage_number.setdefault(block, number)


class ShardedExecution(PipelinedExecution):
    """Stages run one after another; arguments are those of `PipelinedExecution`, without minimum counts."""

    _execution_mode = 1


def _as_stage(arg: Any) -> Stage:
    if isinstance(arg, Stage):
        return arg
    if isinstance(arg, str):
        return Stage(arg)
    if not isinstance(arg, Iterable):
        raise TypeError(f"A stage is a poptorch.Stage, a block id or an iterable of block ids; got {arg!r}.")
    return Stage(*arg)


class Phase:
    """Stages that run in parallel: either `Stage` objects, or block ids that form one stage."""

    def __init__(self, *arg: Stage | str) -> None:
        stages = tuple(part for part in arg if isinstance(part, Stage))
        blocks = tuple(part for part in arg if isinstance(part, str))
        message = f"The arguments of a Phase must either be block IDs or be Stages, without mixing them; got {arg}."
        require(len(arg) in (len(stages), len(blocks)), message)
        self._stages = stages or (Stage(*blocks),)

    @property
    def stages(self) -> Sequence[Stage]:
        return self._stages

    def stage(self, idx: int) -> Stage:
        return self._stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Fix one IPU for each stage; raise `AssertionError` if the counts differ."""
        message = f"This phase has {len(self._stages)} stages but you provided {len(ipus)} IPUs."
        require(len(ipus) == len(self._stages), message)
        for stage, ipu in zip(self._stages, ipus, strict=True):
            stage.ipu(ipu)


class _IPhasedExecution(_IExecutionStrategy):
    """Phases run one after another, their tensors moving between chip and streaming memory."""

    _execution_mode = 2
    _serial: bool

    def __init__(self, *phases: Phase | Stage | str | list[Stage] | list[str]) -> None:
        automatic = not phases or any(isinstance(phase, AutoStage) for phase in phases)
        require(not automatic, "There is no AutoStage for PhasedExecution: list the phases.")
        self._phases = [_as_phase(phase) for phase in phases]
        super().__init__(stage for phase in self._phases for stage in phase.stages)
        self._separate_backward_phase = False
        self._tensors_liveness = Liveness.AlwaysLive

    def phase(self, phase: int) -> Phase:
        """Return the phase at a position from 0 on; raise `IndexError` past the end."""
        require(isinstance(phase, int), f"A phase is given by its position, an int; got {phase!r}.")
        require(phase >= 0, f"Positions of phases start at 0; got {phase}.")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Keep forward's last phase apart from backward's first; raise `AssertionError` for a non-bool."""
        check_type("useSeparateBackwardPhase", use, bool)
        self._separate_backward_phase = use
        return self

    def phase_number(self, phase: int) -> int:
        """Return the backend's number of the phase at this position, spaced out as the liveness of tensors asks."""
        spacing = {Liveness.OffChipAfterFwdNoOverlap: 2, Liveness.OffChipAfterEachPhase: 4}
        return phase * spacing.get(self._tensors_liveness, 1)

    def total_phases(self) -> int:
        """Return how many phases the backend runs, those of the backward pass included."""
        extra = 3 if self._tensors_liveness != Liveness.AlwaysLive else int(self._separate_backward_phase)
        return self.phase_number(len(self._phases) - 1) + 1 + extra

    def backendOptions(self) -> dict[str, Any]:
        return {
            **super().backendOptions(),
            "serial_phases_execution": self._serial,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness,
        }

    def _place(self, block: str, ipu_id: int | None) -> Placement:
        stage = self._stage_of(block)
        phase = next(number for number, phase in enumerate(self._phases) if stage in phase.stages)
        ipu = stage._ipu if stage._ipu is not None else ipu_id
        if ipu is None:
            raise AssertionError(
                f"no IPU was specified for block {block}: phased execution needs it from the stage "
                f"(strategy.stage('{block}').ipu(n)) or from the block's ipu_id."
            )
        if not self._serial and phase % 2 != ipu % 2:
            raise createPoptorchError(
                f"Block '{block}' is in phase {phase} on IPU {ipu}: ParallelPhasedExecution runs even phases "
                "on even IPUs and odd phases on odd IPUs. Move the block to an IPU of its phase's parity."
            )
        return Placement(block=block, stage=self._phases[phase].stages.index(stage), ipu=ipu, phase=phase)


class SerialPhasedExecution(_IPhasedExecution):
    """Phases run one after another on one group of IPUs."""

    _serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Choose when tensors leave the chip; raise `AssertionError` unless it is a `Liveness`."""
        require(isinstance(liveness, Liveness), f"setTensorsLiveness takes a Liveness; got {liveness!r}.")
        self._tensors_liveness = liveness
        return self


class ParallelPhasedExecution(_IPhasedExecution):
    """Phases alternate between two groups: even phases on even IPUs, odd phases on odd IPUs."""

    _serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Send tensors off chip after the forward pass, or not; raise `AssertionError` for a non-bool."""
        check_type("sendTensorsOffChipAfterFwd", off_chip, bool)
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


def runs_stages_at_once(strategy: object) -> bool:
    """Whether stages run at the same time on different micro-batches; those of a `ShardedExecution` do not."""
    return isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)


def _as_phase(arg: Any) -> Phase:
    if isinstance(arg, Phase):
        return arg
    if isinstance(arg, (Stage, str)):
        return Phase(arg)
    require(
        isinstance(arg, list),
        f"A phase is a Phase, a Stage, a block id, a list of Stages or a list of block ids; got {arg!r}. "
        "Give several phases as several arguments.",
    )
    return Phase(*arg)
