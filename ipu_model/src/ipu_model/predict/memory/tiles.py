"""From tensors to bytes: the place of each tensor on the tiles, and the peak memory of every tile of an IPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipu_model.predict import profile
from ipu_model.predict.device import Device

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

# Scheduled ops that are looked at together: bounds the arrays for very long programs.
_OPS_AT_ONCE = 2048
_SAME_BYTES = 1e-6


@dataclass(frozen=True)
class Spread:
    """Bytes of a tensor on each of `tiles` tiles from `first` on; `last` is what the last one holds.

    `balanced` ones, too small for a part on every tile, are put behind one another, as what belongs to a channel lies
    where that channel does (poplin, createBroadcastOperand), and not all on tile 0.
    """

    on_tile: float
    tiles: int
    last: float
    balanced: bool = False
    first: int = 0

    @property
    def total(self) -> float:
        return self.on_tile * (self.tiles - 1) + self.last

    def times(self, count: float) -> Spread:
        return replace(self, on_tile=self.on_tile * count, last=self.last * count)


NOTHING = Spread(0.0, 1, 0.0)


class TileSpace:
    """The tiles of an IPU: those that compute come first, those reserved for I/O last."""

    def __init__(self, device: Device, io_tiles: int = 0) -> None:
        self.device, self.io_tiles, self.tiles = device, io_tiles, device.chip.tiles
        # They hold everything but the buffers of overlapped I/O.
        self.compute_tiles = max(1, self.tiles - io_tiles)

    def place(self, elements: int, on_tile: float, element_bytes: int, *, at_end: bool = False) -> Spread:
        """Return the place of a tensor with this many elements on its busiest tile, on the first tiles or the last."""
        if elements <= 0:
            return NOTHING
        n = max(1.0, on_tile, elements / self.compute_tiles)
        n = float(math.ceil(min(n, elements)))
        tiles = math.ceil(elements / n)
        small = n * element_bytes <= self.device.constants.least_bytes_per_tile and tiles < self.compute_tiles
        last = elements - n * (tiles - 1)
        first = self.compute_tiles - tiles if at_end else 0
        return Spread(n * element_bytes, tiles, last * element_bytes, balanced=small, first=first)

    def everywhere(self, on_tile: float) -> Spread:
        return Spread(on_tile, self.tiles, on_tile)

    def temporary(self, on_tile: float, tiles: int) -> Spread:
        """Return the place of temporary data; plans are made for all tiles, so fewer tiles hold more each."""
        crowded = on_tile * self.tiles / self.compute_tiles
        return Spread(crowded, min(tiles, self.compute_tiles), crowded)


@dataclass(frozen=True)
class Pieces:
    """Stretches of tiles with equal bytes: `values[i]` of spread `owner[i]` on tiles `starts[i]` to `ends[i]` - 1."""

    owner: Ints
    starts: Ints
    ends: Ints
    values: Floats


def pieces_of(spreads: Sequence[Spread], space: TileSpace) -> Pieces:
    """Return the stretches of tiles of all `spreads`; balanced ones go round the computing tiles."""
    tiles = np.array([s.tiles for s in spreads], dtype=np.int64)
    balanced = np.array([s.balanced for s in spreads], dtype=bool)
    taken = np.cumsum(np.where(balanced, tiles, 0))
    first = np.where(balanced, taken - tiles, np.array([s.first for s in spreads], dtype=np.int64))
    owner = np.tile(np.arange(len(spreads), dtype=np.int64), 2)
    starts, lengths = np.concatenate([first, first + tiles - 1]), np.concatenate([tiles - 1, np.ones_like(tiles)])
    values = np.array([s.on_tile for s in spreads] + [s.last for s in spreads], dtype=np.float64)
    around = np.tile(balanced, 2)
    starts = np.where(around, starts % space.compute_tiles, starts)
    ends = starts + lengths
    over = (around & (ends > space.compute_tiles)).nonzero()[0]
    cut = np.where(around, np.minimum(ends, space.compute_tiles), ends)
    return Pieces(
        np.concatenate([owner, owner[over]]),
        np.concatenate([starts, np.zeros_like(over)]),
        np.concatenate([cut, ends[over] - space.compute_tiles]),
        np.concatenate([values, values[over]]),
    )


@dataclass(frozen=True)
class ScheduledOp:
    """One op, or a part of one, while it runs; `reads` and `makes` are tensors, `temporary` is its temporary data."""

    node: str
    phase: str
    part: str = ""
    name: str = ""
    stage: int = 0
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    temporary: Spread = NOTHING


class Contents(NamedTuple):
    """Which tensor something in memory is, as users know it; `copies` counts equal ones."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    copies: int = 1


@dataclass(frozen=True)
class Live:
    """Something in memory from place `first` to `last` in an IPU's schedule, both included; code has no `contents`."""

    place: Spread
    first: int
    last: int
    category: str
    contents: Contents | None = None


def ipu_memory(ipu: int, schedule: Sequence[ScheduledOp], lives: Sequence[Live], space: TileSpace) -> profile.IpuMemory:
    pieces = pieces_of([live.place for live in lives], space)
    first = np.array([live.first for live in lives], dtype=np.int64)
    last = np.array([live.last for live in lives], dtype=np.int64)
    count = max(1, len(schedule))
    tiles = _most_on_each_tile(pieces, first[pieces.owner], last[pieces.owner], count, space.tiles)
    fullest = np.argmax(tiles)
    here = (pieces.starts <= fullest) & (fullest < pieces.ends)
    on_fullest = _counted(pieces.owner[here], pieces.values[here], len(lives))
    always = np.array([live.category in profile.ALWAYS_LIVE for live in lives], dtype=bool)
    changing = _over_time(np.where(always, 0.0, on_fullest), first, last, count)
    peak = int(np.argmax(changing))
    temporary = np.array([live.category == profile.TEMPORARIES for live in lives], dtype=bool)
    needed = _over_time(np.where(temporary, on_fullest, 0.0), first, last, count)
    is_live = (first <= peak) & (peak <= last)
    return profile.IpuMemory(
        ipu=ipu,
        categories=tuple(_categories(lives, on_fullest, is_live, pieces, space.tiles)),
        tiles=tuple(tiles.tolist()),
        liveness=tuple(
            profile.LivenessStep(op.node, op.phase, total, own, op.part, op.name, op.stage)
            for op, total, own in zip(schedule, changing.tolist(), needed.tolist())
        ),
        live_at_peak=_tensors(lives, on_fullest, is_live, schedule),
        peak=peak,
    )


def _tensors(
    lives: Sequence[Live], on_fullest: Floats, is_live: Flags, schedule: Sequence[ScheduledOp]
) -> tuple[profile.LiveTensor, ...]:
    tensors = []
    for number in is_live.nonzero()[0].tolist():
        live, here, contents = lives[number], float(on_fullest[number]), lives[number].contents
        if contents is None and live.category == profile.TEMPORARIES:
            contents = Contents(f"temporary data of {schedule[live.first].name}")
        if contents is not None:
            name, shape, dtype, copies = contents
            place = (here, live.place.total, live.category in profile.ALWAYS_LIVE, live.first, live.last)
            tensors.append(profile.LiveTensor(name, live.category, shape, dtype, *place, copies))
    return tuple(sorted(tensors, key=lambda tensor: (-tensor.bytes_on_fullest_tile, -tensor.total_bytes)))


def _most_on_each_tile(pieces: Pieces, first: Ints, last: Ints, count: int, tiles: int) -> Floats:
    """Return the most bytes that each tile holds at once; `first` and `last` are the places of the pieces."""
    most = np.zeros(tiles)
    carried = np.zeros(tiles + 1)
    for start in range(0, count, _OPS_AT_ONCE):
        stop = min(count, start + _OPS_AT_ONCE)
        # Differences along both axes: every piece is four numbers, two running sums make the table of them.
        table = _events(pieces, first, 1.0, start, stop, tiles)
        table += _events(pieces, last + 1, -1.0, start, stop, tiles)
        table[0] += carried
        np.cumsum(table, axis=0, out=table)
        carried = table[-1].copy()
        np.cumsum(table, axis=1, out=table)
        np.maximum(most, table[:, :tiles].max(axis=0), out=most)
    return most


def _events(pieces: Pieces, when: Ints, sign: float, start: int, stop: int, tiles: int) -> Floats:
    """Return the differences over tiles of the pieces that come or go at each place from `start` to `stop` - 1."""
    now = (when >= start) & (when < stop)
    rows, values = (when[now] - start) * (tiles + 1), sign * pieces.values[now]
    size = (stop - start) * (tiles + 1)
    edges = _counted(rows + pieces.starts[now], values, size) - _counted(rows + pieces.ends[now], values, size)
    return edges.reshape(stop - start, tiles + 1)


def _over_time(values: Floats, first: Ints, last: Ints, count: int) -> Floats:
    edges = _counted(first, values, count + 1) - _counted(last + 1, values, count + 1)
    sums: Floats = np.cumsum(edges)[:count]
    return sums


def _counted(places: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _categories(
    lives: Sequence[Live], on_fullest: Floats, is_live: Flags, pieces: Pieces, tiles: int
) -> list[profile.MemoryCategory]:
    fullest = dict.fromkeys((*profile.ALWAYS_LIVE, *profile.NOT_ALWAYS_LIVE), 0.0)
    total = dict(fullest)
    for live, here, now in zip(lives, on_fullest.tolist(), is_live.tolist()):
        if now:
            fullest[live.category] += here
            total[live.category] += live.place.total
    names = np.array([live.category for live in lives])
    categories = []
    for name in filter(total.__getitem__, fullest):
        runs = _runs(pieces, (is_live & (names == name))[pieces.owner], tiles)
        categories.append(profile.MemoryCategory(name, fullest[name], total[name], name in profile.ALWAYS_LIVE, runs))
    return categories


def _runs(pieces: Pieces, chosen: Flags, tiles: int) -> tuple[profile.TileRun, ...]:
    values = pieces.values[chosen]
    size = tiles + 1
    edges = _counted(pieces.starts[chosen], values, size) - _counted(pieces.ends[chosen], values, size)
    on_tiles = np.maximum(np.cumsum(edges)[:tiles], 0.0)
    # Sums in a different order differ in their last digits, so values this close count as equal.
    begins = np.flatnonzero(np.r_[True, np.abs(np.diff(on_tiles)) > _SAME_BYTES])
    return tuple(map(profile.TileRun, np.diff(np.r_[begins, tiles]).tolist(), on_tiles[begins].tolist()))
