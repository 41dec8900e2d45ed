"""What one contraction is, before anything is decided about tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Pass(str, Enum):
    """Which of the three contractions of a layer it is."""

    FORWARD = "forward"
    DATA_GRADIENT = "data gradient"
    WEIGHT_GRADIENT = "weight gradient"


@dataclass(frozen=True)
class Problem:
    """One contraction: a convolution of images, or a matrix product, in one of its three passes.

    Sizes are always those of the layer's forward pass; channels are counted in one of `groups` groups. Images
    are (rows, columns): a third dimension counts as more rows, a missing one as a single row. A matrix
    product `[m, k] x [k, n]` has m rows in its batch, k input and n output channels, and all else 1.
    """

    which: Pass
    groups: int
    batch: int
    in_channels: int
    out_channels: int
    image: tuple[int, int] = (1, 1)
    result: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    element_bytes: int = 2

    @property
    def positions(self) -> int:
        """Positions of the kernel."""
        return math.prod(self.kernel)

    @property
    def samples(self) -> int:
        """Positions of the forward result, batch included."""
        return self.batch * math.prod(self.result)

    @property
    def pixels(self) -> int:
        """Positions of the forward input, batch included."""
        return self.batch * math.prod(self.image)

    @property
    def flops(self) -> int:
        """Multiplications and additions, padding included."""
        return 2 * self.samples * self.groups * self.in_channels * self.out_channels * self.positions

    @property
    def weight_elements(self) -> int:
        """Elements of the weight tensor."""
        return self.groups * self.in_channels * self.out_channels * self.positions

    @property
    def output_elements(self) -> int:
        """Elements of what this pass computes."""
        if self.which is Pass.FORWARD:
            return self.samples * self.groups * self.out_channels
        if self.which is Pass.DATA_GRADIENT:
            return self.pixels * self.groups * self.in_channels
        return self.weight_elements


def matrix_product(m: int, k: int, n: int, element_bytes: int, *, groups: int = 1) -> Problem:
    """Return the product of `groups` pairs of matrices `[m, k]` and `[k, n]`."""
    return Problem(Pass.FORWARD, groups, m, k, n, element_bytes=element_bytes)
