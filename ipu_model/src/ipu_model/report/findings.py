"""A profile in words and a few numbers, and the words for its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ipu_model.predict.calibration import read_data
from ipu_model.predict.host import CallTime
from ipu_model.predict.profile import OpProfile, Profile
from ipu_model.report import breakdown
from ipu_model.report.quantities import counted, duration, percent, size, whole

_MOST_NAMED = 4


class Range(NamedTuple):
    value: float
    low: float
    high: float


def heading(profile: Profile) -> str:
    return f"{profile.name}: {setting(profile)}"


def setting(profile: Profile) -> str:
    work = "training" if profile.training else "inference"
    return f"{work}, modelled with {counted(len(profile.cycles), 'IPU')} a replica on {profile.machine}"


def verdict(profile: Profile) -> str:
    memory, ipu = profile.memory, profile.memory.fullest
    return (
        f"{profile.verdict}: fullest tile {whole(ipu.max_tile_bytes)} of "
        f"{whole(memory.tile_bytes)} bytes ({percent(memory.share)}), tile {ipu.fullest_tile} of IPU {ipu.ipu}"
    )


@cache
def _explanations() -> Mapping[str, Mapping[str, str]]:
    return read_data("explanations.toml")


def explained(kind: str, name: str) -> str:
    """Return what `data/explanations.toml` says, "" if nothing."""
    return _explanations()[kind].get(name, "")


def explained_limit(limited_by: str) -> str:
    name, _, number = limited_by.rpartition(" ")
    return explained("limits", "stage N" if name == "stage" else limited_by).format(number)


def device_range(profile: Profile) -> Range:
    rate, band = profile.device_samples_per_second, profile.error_band
    return Range(rate, rate / band.high, rate / band.low)


def end_to_end_range(profile: Profile) -> Range:
    """Return the whole program's samples a second, with the band that the device's error makes of it."""
    return Range(
        profile.samples_per_second,
        profile.samples_per_call / _call_seconds(profile, profile.error_band.high),
        profile.samples_per_call / _call_seconds(profile, profile.error_band.low),
    )


def _call_seconds(profile: Profile, factor: float) -> float:
    """Return the time of a call if the device took `factor` times as long."""
    loader = sum(span.seconds for span in profile.timeline if span.kind == "load")
    host, device = profile.host_seconds_per_call - loader, profile.device_seconds_per_call * factor
    return CallTime(loader, host, device, profile.host.loads_ahead).total


@dataclass(frozen=True)
class Spent:
    name: str
    cycles: float
    share: float
    explanation: str


@dataclass(frozen=True)
class Roofline:
    """FLOP/s of a replica (over the whole time, and of contractions alone), the peak, and FLOPs a byte of operands."""

    flops_per_second: float
    while_contracting: float
    peak: float
    intensity: float

    @property
    def share(self) -> float:
        return self.flops_per_second / self.peak if self.peak else 0.0

    @property
    def share_while_contracting(self) -> float:
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
    """Return what the cycles of a call go into, contractions at the peak first; the shares add up to 1."""
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
        ("at the matrix units' peak", ideal),
        ("contractions below the peak", computing - ideal),
        ("other computation", execute - computing),
        ("exchange between tiles", sum(i.do_exchange for i in ipus)),
        ("synchronisation of tiles", sum(i.internal_sync for i in ipus)),
        ("copies between IPUs", between_ipus),
        ("host and streaming memory", streams),
        ("waiting for other IPUs", sum(i.external_sync for i in ipus)),
    )
    return tuple(Spent(name, cycles, cycles / total, explained("cycles", name)) for name, cycles in parts if cycles > 0)


def describe_timeline(profile: Profile, repeated: str = "Bars with a break") -> str:
    """Describe the timeline of the device; `repeated` says how the picture draws equal stretches."""
    rows = breakdown.device_rows(profile.timeline)
    seconds = profile.device_seconds_per_call
    busy = [f"{row.name} works {percent(row.busy_seconds / seconds)} of it" for row in rows[:_MOST_NAMED]]
    repeats = any(span.repeats > 1 for row in rows for span in row.spans)
    alike = f" {repeated} stand for several equal stretches, which really take turns with others." if repeats else ""
    return f"What the device does in one call of {duration(seconds)}: {listed(busy, len(rows))}.{alike}"


def describe_memory_per_tile(profile: Profile) -> str:
    parts = []
    for place in breakdown.fullest_ipus(profile, _MOST_NAMED):
        memory = profile.memory[place]
        mean = memory.total_bytes / max(1, len(memory.tiles))
        parts.append(f"IPU {memory.ipu} up to {whole(memory.max_tile_bytes)} bytes, {whole(mean)} on average")
    return f"Memory of each tile: {listed(parts, len(profile.memory))}. Verdict: {verdict(profile)}."


def describe_liveness(profile: Profile) -> str:
    parts = []
    for place in breakdown.fullest_ipus(profile, _MOST_NAMED):
        memory = profile.memory[place]
        if memory.liveness:
            peak = max(memory.liveness, key=lambda step: step.bytes_on_tile)
            room = profile.memory.tile_bytes - memory.always_live_bytes
            parts.append(
                f"IPU {memory.ipu} at most {size(peak.bytes_on_tile)} at {peak.name or peak.node} ({peak.phase}), "
                f"with {f'room for {size(room)}' if room > 0 else 'no room at all'}"
            )
    return f"Bytes of the fullest tile besides what is always live, op by op: {listed(parts, len(profile.memory))}."


def listed(parts: Sequence[str], every: int) -> str:
    more = f", and {every - len(parts)} more" if every > len(parts) > 0 else ""
    return (", ".join(parts) or "nothing is known") + more
