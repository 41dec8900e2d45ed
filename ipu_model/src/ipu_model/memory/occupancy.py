"""From lifetimes to bytes: what every tile of an IPU holds at most, when, and of which category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_model.memory.categories import ALWAYS_LIVE, NOT_ALWAYS_LIVE, TEMPORARIES
from ipu_model.memory.lifetimes import Live
from ipu_model.memory.schedule import Step
from ipu_model.memory.spread import Flags, Floats, Ints, Pieces, Room, pieces_of
from ipu_model.profiling.data import IpuMemory, LivenessStep, MemoryCategory, TileRun

# Steps that are looked at together: bounds the arrays for very long programs.
_STEPS_AT_ONCE = 2048
_SAME_BYTES = 1e-6


@dataclass(frozen=True)
class _Times:
    """First and last step of each piece of memory; there are `steps` in all."""

    first: Ints
    last: Ints
    steps: int


def ipu_memory(ipu: int, steps: Sequence[Step], lives: Sequence[Live], room: Room) -> IpuMemory:
    """Return the memory of one IPU that runs `steps`, with everything in `lives` in it over time."""
    pieces = pieces_of([live.place for live in lives], room)
    first = np.array([live.first for live in lives], dtype=np.int64)
    last = np.array([live.last for live in lives], dtype=np.int64)
    times = _Times(first[pieces.owner], last[pieces.owner], max(1, len(steps)))
    tiles = _most_on_each_tile(pieces, times, room.tiles)
    fullest = int(np.argmax(tiles))
    on_fullest = _bytes_on(pieces, fullest, len(lives))
    always = np.array([live.category in ALWAYS_LIVE for live in lives], dtype=bool)
    changing = _over_time(np.where(always, 0.0, on_fullest), first, last, times.steps)
    peak = int(np.argmax(changing))
    temporary = np.array([live.category == TEMPORARIES for live in lives], dtype=bool)
    needed = _over_time(np.where(temporary, on_fullest, 0.0), first, last, times.steps)
    return IpuMemory(
        ipu=ipu,
        categories=tuple(_categories(lives, on_fullest, (first <= peak) & (peak <= last), pieces, room.tiles)),
        tiles=tuple(tiles.tolist()),
        liveness=tuple(
            LivenessStep(step.node, step.phase, total, own)
            for step, total, own in zip(steps, changing.tolist(), needed.tolist())
        ),
    )


def _most_on_each_tile(pieces: Pieces, times: _Times, tiles: int) -> Floats:
    """Return the most bytes that each tile holds at once."""
    most = np.zeros(tiles)
    carried = np.zeros(tiles + 1)
    for start in range(0, times.steps, _STEPS_AT_ONCE):
        stop = min(times.steps, start + _STEPS_AT_ONCE)
        # Differences along both axes: every piece is four numbers, two running sums make the table of them.
        table = _events(pieces, times.first, 1.0, start, stop, tiles)
        table += _events(pieces, times.last + 1, -1.0, start, stop, tiles)
        table[0] += carried
        np.cumsum(table, axis=0, out=table)
        carried = table[-1].copy()
        np.cumsum(table, axis=1, out=table)
        np.maximum(most, table[:, :tiles].max(axis=0), out=most)
    return most


def _events(pieces: Pieces, when: Ints, sign: float, start: int, stop: int, tiles: int) -> Floats:
    """Return the differences over tiles of the pieces that come or go at each step from `start` to `stop` - 1."""
    now = (when >= start) & (when < stop)
    rows, values = (when[now] - start) * (tiles + 1), sign * pieces.values[now]
    size = (stop - start) * (tiles + 1)
    edges = _counted(rows + pieces.starts[now], values, size) - _counted(rows + pieces.ends[now], values, size)
    return edges.reshape(stop - start, tiles + 1)


def _bytes_on(pieces: Pieces, tile: int, count: int) -> Floats:
    """Return how many bytes of each of `count` things lie on a tile."""
    here = (pieces.starts <= tile) & (tile < pieces.ends)
    return _counted(pieces.owner[here], pieces.values[here], count)


def _over_time(values: Floats, first: Ints, last: Ints, steps: int) -> Floats:
    """Return the sum of `values` that are there at each step."""
    edges = _counted(first, values, steps + 1) - _counted(last + 1, values, steps + 1)
    found: Floats = np.cumsum(edges)[:steps]
    return found


def _counted(places: Ints, values: Floats, size: int) -> Floats:
    """Return an array of `size` with the sum of the values that belong to each place."""
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _categories(
    lives: Sequence[Live], on_fullest: Floats, is_live: Flags, pieces: Pieces, tiles: int
) -> list[MemoryCategory]:
    """Return what each category takes on the fullest tile, and on every tile at that moment."""
    fullest = dict.fromkeys((*ALWAYS_LIVE, *NOT_ALWAYS_LIVE), 0.0)
    total = dict(fullest)
    for live, here, now in zip(lives, on_fullest.tolist(), is_live.tolist()):
        if now:
            fullest[live.category] += here
            total[live.category] += live.place.total
    names = np.array([live.category for live in lives])
    return [
        MemoryCategory(
            name, fullest[name], total[name], name in ALWAYS_LIVE,
            _runs(pieces, (is_live & (names == name))[pieces.owner], tiles),
        )
        for name in fullest
        if total[name]
    ]  # fmt: skip


def _runs(pieces: Pieces, chosen: Flags, tiles: int) -> tuple[TileRun, ...]:
    """Return the bytes of the chosen pieces on each tile, as runs of tiles that hold the same."""
    values = pieces.values[chosen]
    size = tiles + 1
    edges = _counted(pieces.starts[chosen], values, size) - _counted(pieces.ends[chosen], values, size)
    held = np.maximum(np.cumsum(edges)[:tiles], 0.0)
    # Sums in another order differ in their last digits: what is that near is the same.
    begins = np.flatnonzero(np.r_[True, np.abs(np.diff(held)) > _SAME_BYTES])
    counts = np.diff(np.r_[begins, tiles])
    return tuple(TileRun(count, each) for count, each in zip(counts.tolist(), held[begins].tolist()))
