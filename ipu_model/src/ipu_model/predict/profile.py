"""A `Profile`: everything the IPU Model says about one program, as plain data.

All times and bytes are modelled. Cycles are tile-clock cycles; bytes are of one tile unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ipu_model.predict.program import Program
from ipu_model.predict.verdict import Verdict, close_band

FORMAT = 1
"""The version of the JSON form; readers refuse others."""


@dataclass(frozen=True)
class Machine:
    """The machine that a program is modelled on; the numbers of `hardware.System` that a profile needs."""

    name: str
    title: str
    chip: str
    ipus: int
    tiles: int
    tile_bytes: int
    clock_hz: float

    def __str__(self) -> str:
        return f"{self.name} ({self.ipus} x {self.chip} at {self.clock_hz / 1e9:g} GHz)"

    def seconds(self, cycles: float) -> float:
        """Return how long `cycles` take."""
        return cycles / self.clock_hz


class ErrorBand(NamedTuple):
    """The factors by which the device time on hardware may differ from the modelled time: (0.9, 1.1) is +-10 %."""

    low: float
    high: float


@dataclass(frozen=True)
class PhaseCycles:
    """Cycles of one IPU in one call, by activity; the names are those of PopVision's execution trace.

    `stream_copy_begin` waits until the host is ready, `_mid` transfers, `_end` waits for completion;
    `external_sync` waits for other IPUs; `global_exchange` moves data between IPUs. Their sum is the time of
    the call on the device, the same for every IPU.
    """

    on_tile_execute: float = 0.0
    do_exchange: float = 0.0
    global_exchange: float = 0.0
    stream_copy_begin: float = 0.0
    stream_copy_mid: float = 0.0
    stream_copy_end: float = 0.0
    internal_sync: float = 0.0
    external_sync: float = 0.0

    def __add__(self, other: PhaseCycles) -> PhaseCycles:
        return PhaseCycles(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: float) -> PhaseCycles:
        """Return the cycles of `count` repetitions."""
        return PhaseCycles(*(getattr(self, f.name) * count for f in fields(self)))

    @property
    def total(self) -> float:
        """All cycles together."""
        return float(sum(getattr(self, f.name) for f in fields(self)))

    @property
    def busy(self) -> float:
        """Cycles in which the IPU's own work advances: computing, exchanging and their synchronisation."""
        return self.on_tile_execute + self.do_exchange + self.internal_sync


@dataclass(frozen=True)
class Span:
    """One stretch of the timeline of a resource ("IPU 0", "host", ...), in seconds from the start of the call.

    `kind` is one of `SPAN_KINDS`. If `repeats` is above 1, the span stands for that many equal, consecutive stretches
    and `seconds` is their total time. `stage` and `micro_batch` are set where they apply.
    """

    resource: str
    kind: str
    start: float
    seconds: float
    label: str = ""
    stage: int | None = None
    micro_batch: int | None = None
    repeats: int = 1

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.seconds


SPAN_KINDS = (
    "forward", "recompute", "backward", "update", "stream in", "stream out", "copy", "collective", "offload",
    "wait", "load", "call",
)  # fmt: skip


@dataclass(frozen=True)
class TileRun:
    """Neighbouring tiles with equal contents: the number of tiles, and the bytes on each."""

    tiles: int
    bytes: float


@dataclass(frozen=True)
class MemoryCategory:
    """The memory of one category of data on one IPU: bytes on the fullest tile, and on all tiles together.

    `always_live` is false for data that shares its memory with other data over time; its bytes are those at the moment
    when the fullest tile is fullest. `runs` are the bytes on every tile at that moment, from tile 0 on.
    """

    name: str
    bytes_on_fullest_tile: float
    total_bytes: float
    always_live: bool
    runs: tuple[TileRun, ...] = ()

    @property
    def tiles(self) -> tuple[float, ...]:
        """Bytes of each tile, at the moment when the fullest tile is fullest."""
        return tuple(run.bytes for run in self.runs for _ in range(run.tiles))


@dataclass(frozen=True)
class LivenessStep:
    """Not-always-live bytes of the fullest tile while one op runs."""

    node: str
    phase: str
    bytes_on_tile: float
    temporary_bytes: float


@dataclass(frozen=True)
class IpuMemory:
    """Memory of one IPU: `tiles[t]` is the most that tile t ever holds, in bytes."""

    ipu: int
    categories: tuple[MemoryCategory, ...]
    tiles: tuple[float, ...]
    liveness: tuple[LivenessStep, ...]

    @property
    def max_tile_bytes(self) -> float:
        """Bytes of the fullest tile."""
        return max(self.tiles, default=0.0)

    @property
    def fullest_tile(self) -> int:
        """The number of the fullest tile."""
        return max(range(len(self.tiles)), key=self.tiles.__getitem__, default=0)

    @property
    def total_bytes(self) -> float:
        """Bytes of all tiles together."""
        return sum(self.tiles)

    @property
    def always_live_bytes(self) -> float:
        """Bytes on the fullest tile that are always live."""
        return sum(c.bytes_on_fullest_tile for c in self.categories if c.always_live)

    def bytes_on_tile(self, tile: int) -> Mapping[str, float]:
        """Return the bytes of one tile by category, at the moment when the fullest tile is fullest."""
        return {c.name: c.tiles[tile] for c in self.categories}

    @property
    def bytes_by_category(self) -> Mapping[str, float]:
        """Bytes of the fullest tile by category."""
        return {c.name: c.bytes_on_fullest_tile for c in self.categories}


@dataclass(frozen=True)
class Memory:
    """Memory of every IPU of one replica, in order, and of the data in streaming memory."""

    ipus: tuple[IpuMemory, ...]
    tile_bytes: int
    off_chip_bytes: float = 0.0

    def __getitem__(self, ipu: int) -> IpuMemory:
        return self.ipus[ipu]

    def __iter__(self) -> Iterator[IpuMemory]:
        return iter(self.ipus)

    def __len__(self) -> int:
        return len(self.ipus)

    @property
    def max_tile_bytes(self) -> float:
        """Bytes of the fullest tile of all IPUs."""
        return max(m.max_tile_bytes for m in self.ipus)

    @property
    def fits(self) -> bool:
        """Whether the fullest tile has room for its data."""
        return self.max_tile_bytes <= self.tile_bytes

    @property
    def verdict(self) -> Verdict:
        """Whether the program fits, does not fit, or is too close to call."""
        return close_band().verdict(self.max_tile_bytes / self.tile_bytes)


@dataclass(frozen=True)
class OpProfile:
    """The cost of one execution of one part of an op, and how often it runs in one call.

    `node`, `target`, `part`, `scope`, `phase`, `stage` and `ipu` identify it; `family` names the formulas; `plan`
    describes how a contraction is split. `is_fallback` marks ops without a formula of their own.
    """

    node: str
    target: str
    part: str
    scope: str
    phase: str
    stage: int
    ipu: int
    family: str
    on_tile_execute: float
    do_exchange: float
    internal_sync: float
    temporary_bytes: float
    flops: int
    executions: int
    plan: str = ""
    is_fallback: bool = False

    @property
    def cycles(self) -> float:
        """Cycles of one execution."""
        return self.on_tile_execute + self.do_exchange + self.internal_sync


@dataclass(frozen=True)
class Profile:
    """What the IPU Model says about one program.

    `samples_per_second` is the throughput of the whole program, including the loader and the overhead of calls;
    `device_samples_per_second` is that of the device alone. `limited_by` is the bottleneck, one of "host loader", "host
    call", "stream", "stage <k>", "inter-IPU copy", "pipeline fill and flush", "weight update". `fits` is the verdict on
    memory; `notes` are caveats for reading the numbers (memory too close to call, a program unlike any that was
    compared with hardware). `shares` are fractions of the device time by name ("main", "fill and flush", "update",
    "stream", ...), which sum to 1. `options` lists the modelled settings, for reports. `program` is the program itself,
    which a file of the profile does not hold.
    """

    name: str
    machine: Machine
    training: bool
    fits: bool
    samples_per_call: int
    device_seconds_per_call: float
    call_seconds: float
    host_seconds_per_call: float
    limited_by: str
    error_band: ErrorBand
    cycles: tuple[PhaseCycles, ...]
    memory: Memory
    timeline: tuple[Span, ...]
    ops: tuple[OpProfile, ...]
    compilation_seconds: float
    shares: Mapping[str, float]
    options: Mapping[str, str | int | float | bool]
    flops_per_call: float = 0.0
    notes: tuple[str, ...] = ()
    format: int = FORMAT
    program: Program | None = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """Whether the program fits into memory, does not fit, or is too close to call."""
        return self.memory.verdict

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the whole program, end to end."""
        return self.samples_per_call / self.call_seconds

    @property
    def device_samples_per_second(self) -> float:
        """Samples per second of the device alone, if it never waits for data."""
        return self.samples_per_call / self.device_seconds_per_call

    @property
    def fallbacks(self) -> tuple[OpProfile, ...]:
        """Ops that were costed without a formula of their own."""
        return tuple(op for op in self.ops if op.is_fallback)
