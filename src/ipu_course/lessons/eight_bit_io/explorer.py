"""The explorer of lesson 04: how the type of the images and the work on the host change a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

import poptorch
from ipu_course import engine, ladder
from ipu_course.call_parts import CallParts, call_parts
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.lessons.eight_bit_io.call_parts_figure import call_parts_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

REFERENCE = "the workshop before this step"
CHOSEN = "your settings"
HOST_MS = (0.0, 0.02, 0.05, 0.1, 0.18, 0.4, 0.8, 1.6)
# How the engine calls this bottleneck.
LIMITED_BY_LOADING = "host loader"


def images_per_second(program: ModelledModule, host_ms: float) -> float:
    """Return the modelled rate with a host that needs ``host_ms`` for an image, with the explorer's other defaults."""
    return program.profile(host=_host(host_ms, False)).samples_per_second


def limited_by(program: ModelledModule, host_ms: float) -> str:
    """Return the modelled bottleneck with a host that needs ``host_ms`` for an image, with the other defaults."""
    return program.profile(host=_host(host_ms, False)).limited_by


def io_view(
    programs: Mapping[str, ModelledModule],
    images: str,
    host_ms: float,
    loading: bool,
    accumulation: int,
    iterations: int,
) -> View:
    """Take the call with these settings apart, or say why there is none; ``programs`` are captured by image type."""
    changes = {"gradient_accumulation": accumulation, "device_iterations": iterations}
    try:
        profile = programs[images].profile(host=_host(host_ms, loading), **changes)
    except poptorch.Error as refused:
        return View(text=f"PopTorch refuses this: {refused}")
    return _view(call_parts(programs["fp16"].profile(host=ladder.host())), profile)


def _host(host_ms: float, asynchronous: bool) -> Any:
    per_call = ladder.published_ladder().host.seconds_per_call
    return engine.host_work(host_ms / 1000, per_call, asynchronous, 0, "the explorer's setting")


def _view(reference: CallParts, profile: Profile) -> View:
    parts = call_parts(profile)
    epoch = ladder.epoch_seconds(profile)
    row: dict[str, object] = {
        "images per call": f"{profile.samples_per_call:,}",
        "load": f"{1000 * parts.load:,.1f} ms",
        "call": f"{1000 * parts.call:,.1f} ms",
        "stream": f"{1000 * parts.stream:,.1f} ms",
        "compute": f"{1000 * parts.compute:,.1f} ms",
        "images per second": f"{profile.samples_per_second:,.0f}",
        "seconds per epoch": "does not fit" if epoch is None else f"{epoch:.1f}",
        "bottleneck": profile.limited_by if engine.may_run(profile) else "memory",
    }
    description = (
        f"Bars for two calls, modelled. With your settings: loading {row['load']}, the call on the host {row['call']}, "
        f"stream {row['stream']}, computing {row['compute']}, in all {1000 * parts.total:,.0f} ms. Above it, the "
        f"workshop's call with fp16 images takes {1000 * reference.total:,.0f} ms."
    )
    return View(
        call_parts_figure({REFERENCE: reference, CHOSEN: parts}, "The time of a call, modelled"),
        f"Your call takes {1000 * parts.total:,.0f} ms; its bottleneck is: {row['bottleneck']}.",
        description,
        [row],
    )


IO = Explorer(
    controls={
        "images": Choice("images are", {"fp32": "fp32", "fp16": "fp16", "uint8": "uint8"}, "uint8"),
        "host_ms": Slider("host, ms per image", HOST_MS, 0.18),
        "loading": Choice("loading", {"before the call (Sync)": False, "beside the call (Async)": True}, False),
        "accumulation": Slider("gradient accumulation", (2, 3, 8, 16, 32), 8),
        "iterations": Slider("device iterations", (1, 2, 4, 8, 16), 4),
    },
    view=io_view,
)
