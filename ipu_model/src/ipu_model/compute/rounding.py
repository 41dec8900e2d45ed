"""Rounding float32 containers onto the float16 grid, in place; what lies beyond clips or becomes infinity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardtanh_

LARGEST_HALF = 65504.0
SMALLEST_NORMAL_HALF = 2.0**-14
# float32 carries 13 more mantissa bits than float16.
EXTRA_BITS = 0x1FFF
# Large enough to hide the cost of a torch call, small enough for the working set to stay in the cache.
CHUNK = 1 << 18
# Elements that stay in the second-level cache of one core between the three passes of clipping and rounding.
PER_CACHE = 1 << 17


class Overflow(Enum):
    CLIP = "clip"
    INFINITY = "infinity"


def round_to_half_(x: Tensor, scratch: Tensor | None = None) -> Tensor:
    """Round `x` (float32) in place to float16, ties to even, overflow to inf; `scratch` is float16 of its shape."""
    return x.copy_(x.half() if scratch is None else scratch.copy_(x))


def clip_to_half_(x: Tensor, scratch: Tensor | None = None) -> Tensor:
    """Round as `round_to_half_` does, but clip what lies beyond the range, infinities too, to +-65504; NaN stays."""
    if scratch is None and x.numel() > 2 * PER_CACHE and x.is_contiguous():
        # Part by part: in the caches, the pass that clips costs next to nothing.
        size = PER_CACHE * torch.get_num_threads()
        scratch = torch.empty(size, dtype=torch.float16)
        for chunk in x.view(-1).split(size):
            hardtanh_(chunk, -LARGEST_HALF, LARGEST_HALF)
            chunk.copy_(scratch[: chunk.numel()].copy_(chunk))
        return x
    # Small programs call this a hundred times a millisecond: no calls within, and not `clamp_`, which takes longer.
    hardtanh_(x, -LARGEST_HALF, LARGEST_HALF)
    return x.copy_(x.half() if scratch is None else scratch.copy_(x))


def nearest(overflow: Overflow) -> Callable[[Tensor], Tensor]:
    return clip_to_half_ if overflow is Overflow.CLIP else round_to_half_


@dataclass(frozen=True)
class Rounding:
    """Rounds tensors (float32, any shapes) in place to the nearest float16 value, or with a `generator` stochastically.

    Then each becomes one of its two neighbours, without bias: the probability has a resolution of 2^-13 of their
    distance. NaN stays. The neighbour above 65504 is infinity, at a distance of 32, or clips. One seed is drawn.
    """

    generator: torch.Generator | None = None
    overflow: Overflow = Overflow.CLIP

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        if self.generator is None:
            for x in tensors:
                nearest(self.overflow)(x)
        if self.generator is None or not tensors:
            return
        length = min(CHUNK, max(x.numel() for x in tensors))
        magnitude, small = torch.empty(length), torch.empty(length)
        # numpy's SFC64 draws twice as fast as torch's Mersenne Twister; its seed ties it to `generator`.
        random = np.random.Generator(np.random.SFC64(int(torch.randint(0, 2**63 - 1, (), generator=self.generator))))
        for x in tensors:
            flat = x.view(-1) if x.is_contiguous() else x.reshape(-1)
            for chunk in torch.split(flat, CHUNK):
                count = chunk.numel()
                # Uniform random integers of 13 bits, four from each draw of 64 bits.
                words = random.integers(0, 2**64, size=(count + 3) // 4, dtype=np.uint64)
                lanes = torch.from_numpy(words.view(np.int16))[:count].bitwise_and_(EXTRA_BITS)
                _round_chunk_(chunk, lanes, magnitude[:count], small[:count], self.overflow)
            if not x.is_contiguous():
                x.copy_(flat.view(x.shape))


def _round_chunk_(x: Tensor, lanes: Tensor, magnitude: Tensor, small: Tensor, overflow: Overflow) -> None:
    """Round the flat chunk `x` in place with the random 13-bit integers `lanes`; the others are scratch space."""
    torch.abs(x, out=magnitude)
    largest = float(magnitude.amax()) if x.numel() else 0.0
    # Below 2^-14 float16 has the fixed spacing 2^-24. Adding 2^-14 lifts such a value into the one float32
    # binade where dropping 13 bits means exactly that spacing.
    torch.lt(magnitude, SMALLEST_NORMAL_HALF, out=small)
    magnitude.add_(small, alpha=SMALLEST_NORMAL_HALF)
    # The mantissa carries into the exponent by itself when adding the random bits crosses a power of two.
    bits = magnitude.view(torch.int32)
    bits.add_(lanes)
    bits.bitwise_and_(~EXTRA_BITS)
    magnitude.sub_(small, alpha=SMALLEST_NORMAL_HALF)
    if largest < LARGEST_HALF:
        torch.copysign(magnitude, x, out=x)
    else:
        # Adding to the bits of a NaN can produce any value; 65536 and above must be clipped or become infinity.
        magnitude.masked_fill_(x.isnan(), torch.nan)
        torch.copysign(magnitude, x, out=magnitude)
        x.copy_(nearest(overflow)(magnitude))
