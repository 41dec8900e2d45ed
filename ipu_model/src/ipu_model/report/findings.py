"""Sum up a profile in words and a few numbers: its verdict, its throughput with the error band, its bottleneck."""

from __future__ import annotations

from typing import NamedTuple

from ipu_model.predict.profile import Profile
from ipu_model.report.breakdown import fullest_ipu
from ipu_model.report.quantities import counted, percent, whole

_LIMITS = {
    "host loader": "Loading and preparing samples on the host takes longer than everything that could hide it: "
    "the device waits for data.",
    "host call": "What the host does once per call takes longer than the device's part of the call.",
    "run start": "Starting a call takes the device longer than any part of its work: let each call do more, with more "
    "device iterations or larger micro-batches.",
    "stream": "Moving inputs and results between host and device takes longer than working on them.",
    "pipeline fill and flush": "Filling and draining the pipeline takes longer than the steady state: there are few "
    "micro-batches for each weight update.",
    "inter-IPU copy": "Moving activations and gradients between IPUs takes longer than working on them.",
    "weight update": "Updating the weights takes longer than the micro-batches before each update.",
}

_ROUNDING = 1e-9


class Range(NamedTuple):
    """A number and the band around it."""

    value: float
    low: float
    high: float


def verdict(profile: Profile) -> str:
    """Return the verdict on memory as one phrase with its numbers."""
    memory = profile.memory
    ipu = memory[fullest_ipu(profile)]
    share = memory.max_tile_bytes / memory.tile_bytes
    return (
        f"{profile.verdict}: fullest tile {whole(memory.max_tile_bytes)} of "
        f"{whole(memory.tile_bytes)} bytes ({percent(share)}), tile {ipu.fullest_tile} of IPU {ipu.ipu}"
    )


def device_range(profile: Profile) -> Range:
    """Return the device's samples a second, with the band of the model's error."""
    rate, band = profile.device_samples_per_second, profile.error_band
    return Range(rate, rate / band.high, rate / band.low)


def end_to_end_range(profile: Profile) -> Range:
    """Return the whole program's samples a second, with the band that the device's error makes of it.

    Symbols: t the call's time, d the device's, l the loader's, c the host's part of a call, l + c the host's
    time. One after another, t = l + c + d; where they overlap, which shows as a smaller t, t = max(l, c + d).
    Errors of the host's own times are not part of the band.
    """
    return Range(
        profile.samples_per_second,
        profile.samples_per_call / _call_seconds(profile, profile.error_band.high),
        profile.samples_per_call / _call_seconds(profile, profile.error_band.low),
    )


def _call_seconds(profile: Profile, factor: float) -> float:
    """Return the time of a call if the device took `factor` times as long."""
    call, device, host = profile.call_seconds, profile.device_seconds_per_call, profile.host_seconds_per_call
    if call > (host + device) * (1 - _ROUNDING):
        return call + device * (factor - 1)
    loader = call if profile.limited_by == "host loader" else host - (call - device)
    return max(loader, host - loader + device * factor)


def first_iteration(profile: Profile) -> tuple[float, float] | None:
    """Return the part of the device's time that one device iteration takes; `None` if there is only one."""
    if profile.device_iterations < 2:
        return None
    return 0.0, profile.device_seconds_per_call / profile.device_iterations


def explained_limit(limited_by: str) -> str:
    """Return a sentence on what `Profile.limited_by` means."""
    if limited_by.startswith("stage "):
        return (
            f"Stage {limited_by.removeprefix('stage ')} has the most work for each micro-batch; while it works, the "
            "others wait."
        )
    return _LIMITS.get(limited_by, "")


def heading(profile: Profile) -> str:
    """Return what was modelled, in one line."""
    return f"{profile.name}: {setting(profile)}"


def setting(profile: Profile) -> str:
    """Return how and on what a program was modelled."""
    work = "training" if profile.training else "inference"
    return f"{work}, modelled with {counted(len(profile.cycles), 'IPU')} a replica on {profile.machine}"
