"""A `Profile`: what the IPU Model says about one program, as plain data; bytes are of a tile unless said otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from html import escape
from operator import add, attrgetter
from string import Template
from textwrap import shorten
from typing import Final, NamedTuple

from ipu_model.predict.calibration import calibrated, read_text
from ipu_model.predict.host import HostWork
from ipu_model.predict.program import Program

FORMAT = 4
"""The version of the JSON form."""


@dataclass(frozen=True)
class Machine:
    """The modelled machine; in a cycle a tile receives `exchange_bytes_per_cycle`, loads `memory_bytes_per_cycle`."""

    name: str
    title: str
    chip: str
    ipus: int
    tiles: int
    tile_bytes: int
    clock_hz: float
    exchange_bytes_per_cycle: float = 4.0
    memory_bytes_per_cycle: float = 8.0

    def __str__(self) -> str:
        return f"{self.name} ({self.ipus} x {self.chip} at {self.clock_hz / 1e9:g} GHz)"

    def seconds(self, cycles: float) -> float:
        return cycles / self.clock_hz


class ErrorBand(NamedTuple):
    """The factors by which the device time on hardware may differ from the modelled time: (0.9, 1.1) is +-10 %."""

    low: float
    high: float


@dataclass(frozen=True)
class PhaseCycles:
    """Cycles of one IPU in one call, by activity; the names are those of PopVision's execution trace.

    `stream_copy_begin` waits until the host is ready, `_mid` transfers, `_end` waits for completion; `external_sync`
    waits for other IPUs; `global_exchange` moves data between IPUs. All IPUs have the same sum.
    """

    on_tile_execute: float = 0.0
    do_exchange: float = 0.0
    global_exchange: float = 0.0
    stream_copy_begin: float = 0.0
    stream_copy_mid: float = 0.0
    stream_copy_end: float = 0.0
    internal_sync: float = 0.0
    external_sync: float = 0.0

    @property
    def values(self) -> tuple[float, ...]:
        return _values_of(self)

    def __add__(self, other: PhaseCycles) -> PhaseCycles:
        return PhaseCycles(*map(add, self.values, other.values))

    def times(self, count: float) -> PhaseCycles:
        return PhaseCycles(*[value * count for value in self.values])

    @property
    def total(self) -> float:
        return float(sum(self.values))

    @property
    def busy(self) -> float:
        """Cycles in which the IPU's own work advances: computing, exchanging and their synchronisation."""
        return self.on_tile_execute + self.do_exchange + self.internal_sync


# Sweeps read them millions of times.
_values_of: Callable[[PhaseCycles], tuple[float, ...]] = attrgetter(*(field.name for field in fields(PhaseCycles)))


@dataclass(frozen=True)
class Span:
    """One stretch of the timeline of a resource ("IPU 0", "host", ...), in seconds from the start of the call.

    With `repeats` it stands for so many equal ones, and `seconds` is their total. Recomputation and the backward pass
    behind it are two spans, although they may alternate; a span that `recomputes` is both in one.
    """

    resource: str
    kind: str
    start: float
    seconds: float
    label: str = ""
    stage: int | None = None
    micro_batch: int | None = None
    repeats: int = 1
    ipu: int | None = None
    recomputes: bool = False

    @property
    def end(self) -> float:
        return self.start + self.seconds


_WORK_OF_STAGES = ("forward", "recompute", "backward", "update")
SPAN_KINDS = (*_WORK_OF_STAGES, "stream in", "stream out", "copy", "collective", "offload", "wait", "load", "call")


# --- memory

# The categories that memory is divided into.
VARIABLES: Final = "variables"
OPTIMISER_STATE: Final = "optimiser state"
ACCUMULATORS: Final = "gradient accumulators"
CONSTANTS: Final = "constants"
CONTROL_CODE: Final = "control code"
VERTEX_CODE: Final = "vertex code"
VERTEX_STATE: Final = "vertex state"
EXCHANGE_CODE: Final = "internal exchange code"
HOST_EXCHANGE_CODE: Final = "host exchange code"
GLOBAL_EXCHANGE_CODE: Final = "global exchange code"
RESERVED: Final = "stacks, gaps and other"
STREAM_BUFFERS: Final = "I/O tile buffers"
STASHES: Final = "stashes"
ACTIVATIONS: Final = "activations"
GRADIENTS: Final = "gradients"
TEMPORARIES: Final = "temporaries"
STREAMS: Final = "I/O buffers"

PARAMETERS: Final = (VARIABLES, OPTIMISER_STATE, ACCUMULATORS)
CODE: Final = (CONTROL_CODE, VERTEX_CODE, VERTEX_STATE, EXCHANGE_CODE, HOST_EXCHANGE_CODE, GLOBAL_EXCHANGE_CODE)
ALWAYS_LIVE: Final = (*PARAMETERS, CONSTANTS, *CODE, RESERVED, STREAM_BUFFERS)
OF_ACTIVATIONS: Final = (STASHES, ACTIVATIONS, GRADIENTS)
NOT_ALWAYS_LIVE: Final = (*OF_ACTIVATIONS, TEMPORARIES, STREAMS)
"""Categories that share their memory with other data over time; stashes are free while weights are updated."""


class Verdict(str, Enum):
    """What the model says about fitting; `CLOSE` is all that it cannot be sure of."""

    FITS = "fits"
    CLOSE = "too close to call"
    DOES_NOT_FIT = "does not fit"

    def __str__(self) -> str:
        return self.value


class CloseBand(NamedTuple):
    """The shares of a tile's memory between which the model cannot tell: (0.95, 1.05) is 5 % around a full tile."""

    low: float
    high: float

    def verdict(self, share: float) -> Verdict:
        if share > self.high:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if share <= self.low else Verdict.CLOSE


def close_band() -> CloseBand:
    """Return the shares of a tile between which published outcomes do not decide whether a program fits."""
    constants = calibrated().memory
    return CloseBand(constants.close_low, constants.close_high)


@dataclass(frozen=True)
class TileRun:
    tiles: int
    bytes: float


@dataclass(frozen=True)
class MemoryCategory:
    """The memory of a category on one IPU; what is not `always_live`, and `runs`, as at the fullest moment."""

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
    """Not-always-live bytes of the fullest tile while `part` of op `node` ("update" included) runs, in order."""

    node: str
    phase: str
    bytes_on_tile: float
    temporary_bytes: float
    part: str = ""
    name: str = ""
    stage: int = 0


class LiveTensor(NamedTuple):
    """A tensor when the fullest tile is fullest, there from step `first` to `last`; `copies` as in a stash."""

    name: str
    category: str
    shape: tuple[int, ...]
    dtype: str
    bytes_on_fullest_tile: float
    total_bytes: float
    always_live: bool
    first: int
    last: int
    copies: int = 1


@dataclass(frozen=True)
class IpuMemory:
    """Memory of one IPU: the most of each tile, and at the fullest's `peak`, a place in `liveness`, what is there."""

    ipu: int
    categories: tuple[MemoryCategory, ...]
    tiles: tuple[float, ...]
    liveness: tuple[LivenessStep, ...]
    live_at_peak: tuple[LiveTensor, ...] = ()
    peak: int = 0

    @property
    def max_tile_bytes(self) -> float:
        return max(self.tiles, default=0.0)

    @property
    def fullest_tile(self) -> int:
        return max(range(len(self.tiles)), key=self.tiles.__getitem__, default=0)

    @property
    def total_bytes(self) -> float:
        return sum(self.tiles)

    @property
    def always_live_bytes(self) -> float:
        return sum(c.bytes_on_fullest_tile for c in self.categories if c.always_live)

    @property
    def bytes_by_category(self) -> Mapping[str, float]:
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
    def fullest(self) -> IpuMemory:
        return max(self.ipus, key=lambda memory: memory.max_tile_bytes)

    @property
    def max_tile_bytes(self) -> float:
        return max(m.max_tile_bytes for m in self.ipus)

    @property
    def share(self) -> float:
        """What the fullest tile needs, relative to the memory that it has."""
        return self.max_tile_bytes / self.tile_bytes

    @property
    def fits(self) -> bool:
        return self.max_tile_bytes <= self.tile_bytes

    @property
    def verdict(self) -> Verdict:
        return close_band().verdict(self.share)


@dataclass(frozen=True)
class OpProfile:
    """The cost of one execution of one part of an op, and how often it runs in one call.

    `family` names the formulas, `plan` how a contraction is split; `is_fallback` marks ops without a formula of their
    own. `name` is what users know it by ("layer3.8.conv2: weight gradient"), `line` is of the program. `operands` and
    `results` are types and shapes ("float16[16, 64, 56, 56]"), `accessed_bytes` their bytes. `peak_flops_per_cycle` is
    of all tiles, 0 for no contraction. `recomputations` are those `executions` that repeat the forward pass.
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
    name: str = ""
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    line: str = ""
    accessed_bytes: float = 0.0
    peak_flops_per_cycle: float = 0.0
    recomputations: int = 0

    @property
    def cycles(self) -> float:
        return self.on_tile_execute + self.do_exchange + self.internal_sync

    @property
    def cycles_per_call(self) -> float:
        return self.cycles * self.executions

    @property
    def utilisation(self) -> float:
        """The part of the matrix units' peak for its type that one execution reaches; 0 for other work."""
        possible = self.cycles * self.peak_flops_per_cycle
        return self.flops / possible if possible else 0.0


@dataclass(frozen=True)
class Profile:
    """What the IPU Model says about one program.

    `samples_per_second` is the throughput of the whole program, including the loader and the overhead of calls;
    `device_samples_per_second` is that of the device alone. `limited_by` is the bottleneck, one of "host loader", "host
    call", "run start", "stream", "stage <k>", "inter-IPU copy", "pipeline fill and flush", "weight update". `notes` are
    caveats for reading the numbers (memory too close to call, a program unlike any that was compared with hardware).
    `shares` are fractions of the device time by name ("main", "fill and flush", "update",
    "stream", ...), which sum to 1. `options` lists the modelled settings, for reports. `ops` are the ops of the passes,
    `updates` what adds gradients up and updates weights. `layers` maps the paths of modules to their classes. `host` is
    the program's own work on the host that was modelled with it, `replicas` counts those of all processes, and
    `io_tiles` are the tiles of each IPU that do not compute.

    `program` is what was modelled, for what-ifs. It takes no part in comparisons and is no part of the JSON form; a
    report has it in a file beside the profile.
    """

    name: str
    machine: Machine
    training: bool
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
    updates: tuple[OpProfile, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    host: HostWork = field(default_factory=HostWork)
    replicas: int = 1
    device_iterations: int = 1
    io_tiles: int = 0
    format: int = FORMAT
    program: Program | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        line = (
            f"Profile({self.name}: {self._setting}; {self.verdict} ({self._fullest}); "
            f"{_rate(self.samples_per_second)} samples/s modelled, limited by {self.limited_by})"
        )
        return "".join(c if c.isprintable() else "?" for c in line)

    def _repr_html_(self) -> str:
        """Return a card in the colours of the page around it; all text is escaped, and a bar shows the fullest tile."""
        device, band = self.device_samples_per_second, self.error_band
        filled, full = (100 * min(part, _MOST_DRAWN) / _MOST_DRAWN for part in (self.memory.share, 1.0))
        texts = {
            "name": self.name,
            "setting": self._setting,
            "verdict": str(self.verdict),
            "fullest": self._fullest,
            "end_to_end": f"{_rate(self.samples_per_second)} samples/s",
            "device_alone": f"{_rate(device)} samples/s ({_rate(device / band.high)} to {_rate(device / band.low)})",
            "limited_by": self.limited_by,
        }
        notes = (escape(_shortened(note)) for note in self.notes)
        return Template(read_text("profile_card.html").replace("\n", "")).substitute(
            {name: escape(text) for name, text in texts.items()},
            colour=_COLOURS[self.verdict],
            filled=f"{filled:.2f}",
            full=f"{full:.2f}",
            notes="".join(f'<div style="margin-top:.4em;opacity:.85">{note}</div>' for note in notes),
        )

    @property
    def _setting(self) -> str:
        work, ipus = "training" if self.training else "inference", len(self.cycles)
        return f"{work} on {ipus} IPU{'s' * (ipus != 1)} a replica of {self.machine}"

    @property
    def _fullest(self) -> str:
        return f"fullest tile at {self.memory.share:.1%}"

    @property
    def verdict(self) -> Verdict:
        return self.memory.verdict

    @property
    def fits(self) -> bool:
        """Whether the fullest tile holds no more than its memory; `verdict` says how sure that is."""
        return self.memory.fits

    @property
    def work(self) -> tuple[OpProfile, ...]:
        """All ops: those of the passes, and those that add gradients up and update weights."""
        return self.ops + self.updates

    @property
    def samples_per_second(self) -> float:
        return self.samples_per_call / self.call_seconds

    @property
    def device_samples_per_second(self) -> float:
        """Samples per second of the device alone, if it never waits for data."""
        return self.samples_per_call / self.device_seconds_per_call

    @property
    def fallbacks(self) -> tuple[OpProfile, ...]:
        """Ops that were costed without a formula of their own."""
        return tuple(op for op in self.ops if op.is_fallback)


# Readable with white letters on them, and on light and dark pages.
_COLOURS = {Verdict.FITS: "#23784a", Verdict.CLOSE: "#9a6200", Verdict.DOES_NOT_FIT: "#b3372a"}
_MOST_CHARACTERS = 180
_MOST_DRAWN = 1.5
"""The share of a tile at which the bar of memory ends; a full tile is at two thirds of it."""


def _shortened(note: str) -> str:
    """Return the beginning of a note, whole sentences if one is short enough; reports have all of it."""
    end = note.rfind(". ", 0, _MOST_CHARACTERS)
    if len(note) > _MOST_CHARACTERS and end > 0:
        return note[: end + 1]
    return shorten(note, _MOST_CHARACTERS, placeholder=" ...")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
