"""Sum up a profile in words and a few numbers: verdict, throughput with its band, bottleneck, where cycles go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ipu_model.predict.profile import OpProfile, Profile
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


def heading(profile: Profile) -> str:
    """Return what was modelled, in one line."""
    return f"{profile.name}: {setting(profile)}"


def setting(profile: Profile) -> str:
    """Return how and on what a program was modelled."""
    work = "training" if profile.training else "inference"
    return f"{work}, modelled with {counted(len(profile.cycles), 'IPU')} a replica on {profile.machine}"


def verdict(profile: Profile) -> str:
    """Return the verdict on memory as one phrase with its numbers."""
    memory = profile.memory
    ipu = memory[fullest_ipu(profile)]
    share = memory.max_tile_bytes / memory.tile_bytes
    return (
        f"{profile.verdict}: fullest tile {whole(memory.max_tile_bytes)} of "
        f"{whole(memory.tile_bytes)} bytes ({percent(share)}), tile {ipu.fullest_tile} of IPU {ipu.ipu}"
    )


def explained_limit(limited_by: str) -> str:
    """Return a sentence on what `Profile.limited_by` means."""
    if limited_by.startswith("stage "):
        return (
            f"Stage {limited_by.removeprefix('stage ')} has the most work for each micro-batch; while it works, the "
            "others wait."
        )
    return _LIMITS.get(limited_by, "")


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


# ------------------------------------------------------------------------------- what the cycles go into


@dataclass(frozen=True)
class Spent:
    """Cycles of all IPUs in one call that go into one thing, and their share of all."""

    name: str
    cycles: float
    share: float
    explanation: str


@dataclass(frozen=True)
class Roofline:
    """FLOP/s of one replica beside the peak of its matrix units; `intensity` is FLOPs for each byte of the operands.

    `flops_per_second` counts the device's whole time, `while_contracting` the time of the contractions alone.
    """

    flops_per_second: float
    while_contracting: float
    peak: float
    intensity: float

    @property
    def share(self) -> float:
        """The share of the peak that the program reaches."""
        return self.flops_per_second / self.peak if self.peak else 0.0

    @property
    def share_while_contracting(self) -> float:
        """The share of the peak that its contractions reach while they run."""
        return self.while_contracting / self.peak if self.peak else 0.0


def roofline(profile: Profile) -> Roofline | None:
    """Return how far a program is below the peak of its matrix units; `None` if it has no contractions."""
    contractions = _contractions(profile)
    flops = float(sum(op.flops * op.executions for op in contractions))
    cycles = sum(op.cycles_per_call for op in contractions)
    if not flops or not cycles:
        return None
    clock, ipus = profile.machine.clock_hz, len(profile.cycles)
    accessed = sum(op.accessed_bytes * op.executions for op in contractions)
    return Roofline(
        flops_per_second=flops / profile.device_seconds_per_call,
        while_contracting=flops / cycles * clock * ipus,
        peak=max(op.peak_flops_per_cycle for op in contractions) * clock * ipus,
        intensity=flops / accessed if accessed else 0.0,
    )


def _contractions(profile: Profile) -> list[OpProfile]:
    return [op for op in profile.work if op.peak_flops_per_cycle and op.flops]


def cycles_spent(profile: Profile) -> tuple[Spent, ...]:
    """Return what all IPUs spend the cycles of a call on, without parts that take none; the shares add up to 1.

    The first part is what the contractions would take at the matrix units' peak; the next is what they take beyond.
    """
    ipus = profile.cycles
    total = sum(ipu.total for ipu in ipus)
    if not total:
        return ()
    contractions = _contractions(profile)
    ideal = sum(op.flops * op.executions / op.peak_flops_per_cycle for op in contractions)
    computing = sum(op.on_tile_execute * op.executions for op in contractions)
    execute = sum(ipu.on_tile_execute for ipu in ipus)
    ideal, computing = min(ideal, execute), min(max(computing, ideal), execute)
    between_ipus = sum(ipu.global_exchange for ipu in ipus)
    streams = sum(ipu.stream_copy_begin + ipu.stream_copy_mid + ipu.stream_copy_end for ipu in ipus)
    parts = (
        ("at the matrix units' peak", ideal, "What all matrix products and convolutions would take at the peak."),
        ("contractions below the peak", computing - ideal, "Shapes that do not fill the units, partial sums, casts."),
        ("other computation", execute - computing, "Element-wise ops, norms, softmax, reductions, copies, updates."),
        ("exchange between tiles", sum(i.do_exchange for i in ipus), "Moving operands to the tiles that need them."),
        ("synchronisation of tiles", sum(i.internal_sync for i in ipus), "Tiles wait for each other between steps."),
        ("copies between IPUs", between_ipus, "Activations, gradients, sums over replicas."),
        ("host and streaming memory", streams, "Inputs, results, and state that is kept off the chip."),
        ("waiting for other IPUs", sum(i.external_sync for i in ipus), "Filling the pipeline, and uneven stages."),
    )
    return tuple(Spent(name, cycles, cycles / total, words) for name, cycles, words in parts if cycles > 0)
