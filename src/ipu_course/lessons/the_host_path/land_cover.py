"""The program of lesson 15, which classifies every pixel of satellite images, modelled with many settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine

if TYPE_CHECKING:
    from ipu_course.engine import Profile

BANDS, KINDS, WIDTH, LAYERS, SIDE = 12, 11, 48, 16, 256
MICRO_BATCH, ITERATIONS = 16, 16
ELEMENT_BYTES = 2  # of images and scores, which are float16
TILE_BYTES = 624 * 1024
LEAST_IO_TILES, MOST_IO_TILES = 32, 192  # what PopTorch accepts, in steps of 2
SCORES, NUMBERS, BYTES = "scores", "class numbers", "class bytes"
RESULTS = {SCORES: KINDS * ELEMENT_BYTES, NUMBERS: 4, BYTES: 1}
"""What may come back, and its bytes for each pixel."""
WHILE_COMPUTING = poptorch.OverlapMode.OverlapDeviceIterationLoop


def land_cover(width: int = WIDTH, layers: int = LAYERS) -> nn.Sequential:
    """Return a network from images [N, 12, H, W] to scores [N, 11, H, W]."""
    channels = (BANDS, *[width] * layers)
    body = [
        layer
        for before, after in zip(channels, channels[1:])
        for layer in (nn.Conv2d(before, after, 3, padding=1), nn.ReLU())
    ]
    return nn.Sequential(*body, nn.Conv2d(width, KINDS, 1))


class PixelClassifier(nn.Module):
    """The network with what it returns; with ``overlaps``, its transfers run while it computes."""

    def __init__(self, network: nn.Module, results: str = SCORES, overlaps: bool = False) -> None:
        super().__init__()
        self.network = network
        self.results = results
        self.overlaps = overlaps

    def forward(self, images: Tensor) -> Tensor:
        if self.overlaps:
            images = poptorch.set_overlap_for_input(images, WHILE_COMPUTING)
        found: Tensor = self.network(images)
        if self.results != SCORES:
            found = found.argmax(1).to(torch.uint8 if self.results == BYTES else torch.int32)
        return poptorch.set_overlap_for_output(found, WHILE_COMPUTING) if self.overlaps else found


@dataclass(frozen=True)
class HostPath:
    """How images reach the IPU: micro-batches prepared ahead, I/O tiles (0 without overlap), and what comes back."""

    depth: int = 1
    io_tiles: int = 0
    results: str = SCORES

    def options(self) -> poptorch.Options:
        """Return the options of these settings."""
        options = poptorch.Options().deviceIterations(ITERATIONS)
        options.setExecutionStrategy(poptorch.ShardedExecution())
        options._Popart.set("defaultPrefetchBufferingDepth", self.depth)
        if self.io_tiles:
            options.TensorLocations.numIOTiles(self.io_tiles)
        return options


TUNED = HostPath(3, 64, BYTES)  # the fastest setting of the explorer


@engine.needs_the_model
def profile_classifier(module: nn.Module, options: poptorch.Options, half: bool = True) -> Profile:
    """Return the profile of a module that takes a micro-batch of images; its weights are not changed."""
    dtype = torch.half if half else torch.float32
    images = torch.empty((MICRO_BATCH, BANDS, SIDE, SIDE), dtype=dtype, device="meta")
    return engine.profile_module(module.to("meta", dtype), (images,), options)


@engine.needs_the_model
@lru_cache(maxsize=128)
def profile_path(path: HostPath, overlaps: bool = True) -> Profile:
    """Return the profile of the program with these settings; I/O tiles stay idle if nothing ``overlaps``."""
    with torch.device("meta"):
        module = PixelClassifier(land_cover(), path.results, overlaps and path.io_tiles > 0)
    return profile_classifier(module, path.options())


def step_milliseconds(profile: Profile) -> float:
    """Return the milliseconds of a step, one micro-batch: the mean over a call."""
    return profile.device_seconds_per_call / ITERATIONS * 1000


def micro_batch_bytes(results: str) -> int:
    """Return the bytes of the images and results of a micro-batch."""
    return MICRO_BATCH * SIDE * SIDE * (BANDS * ELEMENT_BYTES + RESULTS[results])


@dataclass(frozen=True)
class StepParts:
    """Milliseconds of the parts of a step: the host's copy into its buffer, the two transfers, and the computation."""

    copy: float
    images_in: float
    computing: float
    results_out: float


@engine.needs_the_model
@lru_cache(maxsize=128)
def step_parts(path: HostPath) -> StepParts:
    """Return the parts of a step as they are when nothing overlaps, with the same I/O tiles."""
    waits, ahead = (
        _lengths(profile_path(HostPath(depth, path.io_tiles, path.results), overlaps=False)) for depth in (1, 2)
    )
    copy = waits["stream in"] - ahead["stream in"]
    return StepParts(copy, ahead["stream in"], ahead["forward"], ahead["stream out"])


def _lengths(profile: Profile) -> dict[str, float]:
    """Return the milliseconds of the first span of each kind."""
    found: dict[str, float] = {}
    for span in profile.timeline:
        found.setdefault(span.kind, span.seconds * 1000)
    return found
