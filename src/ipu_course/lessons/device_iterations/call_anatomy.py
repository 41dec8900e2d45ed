"""One call of a small program, taken apart: PopTorch's own work, the start of the IPU, streams and computing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine, show

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

POPTORCH, START, STREAMS, COMPUTES = "PopTorch's own work", "start of the IPU", "images and results", "IPU computes"


def call_milliseconds(profile: Profile) -> dict[str, float]:
    """Return the milliseconds of one call by part; they add up to the call."""
    device = 1e3 * profile.device_seconds_per_call
    start, streams = profile.shares["run start"] * device, profile.shares["stream"] * device
    host = 1e3 * profile.call_seconds - device
    return {POPTORCH: host, START: start, STREAMS: streams, COMPUTES: device - start - streams}


def show_call(program: ModelledModule) -> None:
    """Show what one call of a program is spent on, as a table."""
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    profile = program.profile()
    parts, band = call_milliseconds(profile), profile.error_band
    whole = sum(parts.values())
    row = {name: f"{value:.2f} ms" for name, value in parts.items()}
    hardware = f"{band.low:.2f} to {band.high:.2f} times as long"
    show.table(
        [{"modelled": "one call", **row, "in all": f"{whole:.2f} ms", "device on hardware": hardware}], index="modelled"
    )
