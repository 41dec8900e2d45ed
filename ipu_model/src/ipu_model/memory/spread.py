"""How a tensor lies on tiles, and what many of them take on each tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipu_model.predict.device import Device

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Spread:
    """Bytes of a tensor on each of `tiles` tiles that follow one another; `last` is what the last one holds.

    Tensors start on tile 0, as PopLibs' linear mapping has it. `balanced` marks those too small for a part on
    every tile, which are put behind one another: what belongs to a channel lies where that channel does,
    balanced over its tiles (poplin, createBroadcastOperand), and not all on tile 0. `first` is set for
    tensors with a fixed place.
    """

    on_tile: float
    tiles: int
    last: float
    balanced: bool = False
    first: int = 0

    @property
    def total(self) -> float:
        """Bytes on all tiles together."""
        return self.on_tile * (self.tiles - 1) + self.last

    def times(self, count: float) -> Spread:
        """Return the place of `count` such tensors."""
        return replace(self, on_tile=self.on_tile * count, last=self.last * count)


NOTHING = Spread(0.0, 1, 0.0)


@dataclass(frozen=True)
class Room:
    """The tiles of an IPU: those that compute come first, those reserved for I/O last."""

    device: Device
    io_tiles: int = 0

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.device.chip.tiles

    @property
    def compute_tiles(self) -> int:
        """The tiles that hold everything but the buffers of overlapped I/O."""
        return max(1, self.tiles - self.io_tiles)

    def place(self, elements: int, on_tile: float, element_bytes: int) -> Spread:
        """Return the place of a tensor with `on_tile` of its elements on the busiest tile."""
        if elements <= 0:
            return NOTHING
        n = max(1.0, on_tile, elements / self.compute_tiles)
        n = float(math.ceil(min(n, elements)))
        tiles = math.ceil(elements / n)
        small = n * element_bytes <= self.device.constants.least_bytes_per_tile and tiles < self.compute_tiles
        last = elements - n * (tiles - 1)
        return Spread(n * element_bytes, tiles, last * element_bytes, balanced=small)

    def everywhere(self, on_tile: float) -> Spread:
        """Return the place of what is on every tile."""
        return Spread(on_tile, self.tiles, on_tile)

    def temporary(self, on_tile: float, tiles: int) -> Spread:
        """Return the place of temporary data; plans are made for all tiles, so fewer tiles hold more each."""
        crowded = on_tile * self.tiles / self.compute_tiles
        return Spread(crowded, min(tiles, self.compute_tiles), crowded)

    def on_io_tiles(self, total: float) -> Spread:
        """Return the place of `total` bytes that lie evenly on the tiles reserved for I/O."""
        share = total / self.io_tiles
        return Spread(share, self.io_tiles, share, first=self.compute_tiles)


@dataclass(frozen=True)
class Pieces:
    """Stretches of tiles with the same number of bytes: `values[i]` on tiles `starts[i]` to `ends[i]` - 1.

    `owner[i]` is the place of the spread that piece i belongs to in the list of them.
    """

    owner: Ints
    starts: Ints
    ends: Ints
    values: Floats


def pieces_of(spreads: Sequence[Spread], room: Room) -> Pieces:
    """Return the stretches of tiles of all `spreads`; balanced ones go round the computing tiles."""
    tiles = np.array([s.tiles for s in spreads], dtype=np.int64)
    balanced = np.array([s.balanced for s in spreads], dtype=bool)
    taken = np.cumsum(np.where(balanced, tiles, 0))
    first = np.where(balanced, taken - tiles, np.array([s.first for s in spreads], dtype=np.int64))
    owner = np.tile(np.arange(len(spreads), dtype=np.int64), 2)
    starts, lengths = np.concatenate([first, first + tiles - 1]), np.concatenate([tiles - 1, np.ones_like(tiles)])
    values = np.array([s.on_tile for s in spreads] + [s.last for s in spreads], dtype=np.float64)
    around = np.tile(balanced, 2)
    starts = np.where(around, starts % room.compute_tiles, starts)
    ends = starts + lengths
    over = (around & (ends > room.compute_tiles)).nonzero()[0]
    return Pieces(
        np.concatenate([owner, owner[over]]),
        np.concatenate([starts, np.zeros_like(over)]),
        np.concatenate([np.where(around, np.minimum(ends, room.compute_tiles), ends), ends[over] - room.compute_tiles]),
        np.concatenate([values, values[over]]),
    )
