"""A profile with chosen figures, for the tests of what the training program prints of one."""

from __future__ import annotations

from typing import Any

from ipu_model.predict.profile import ErrorBand, IpuMemory, Machine, Memory, Profile

KIB = 1024
TILE_BYTES = 624 * KIB


def profile(call_seconds: float = 0.5, tile_kib: float = 500, limited_by: str = "host loader") -> Profile:
    """A profile of a call that takes so long and fills the fullest tile so far."""
    machine = Machine("test", "a machine of the tests", "GC200", 2, 1472, TILE_BYTES, 1.33e9)
    fullest: Any = (tile_kib * KIB,)
    memory = Memory((IpuMemory(0, (), fullest, ()),), TILE_BYTES)
    return Profile(
        name="test",
        machine=machine,
        training=True,
        samples_per_call=192,
        device_seconds_per_call=call_seconds / 2,
        call_seconds=call_seconds,
        host_seconds_per_call=call_seconds / 2,
        limited_by=limited_by,
        error_band=ErrorBand(0.9, 1.1),
        cycles=(),
        memory=memory,
        timeline=(),
        ops=(),
        compilation_seconds=500,
        shares={},
        options={},
    )
