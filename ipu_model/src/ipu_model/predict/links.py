"""The links of a machine: transfers between host and IPUs, and collectives between replicas.

Transfers have three phases: begin (the host gets ready), mid (bytes move), end (completion). Their times are
proportional to the bytes: a fixed overhead, which the published trace with its one input size cannot show, seems small.

Collectives are rings over IPU-Links, and over gateway links between IPUs that no IPU-Link joins.

Symbols: R replicas, r of them joined by IPU-Links, q = ceil(R / r) groups of these, B bytes of one tensor, L and W
bytes per second of IPU-Links and of gateway links for one IPU, h seconds of a hop, c seconds of a call.

* reduce-scatter, all-gather: c + (r-1) h + (q-1) h + (r-1)/r B/L + (q-1)/q (B/r)/W
* all-reduce, a reduce-scatter and an all-gather in one call: twice that, less c; for q = 1 it moves 2(R-1)/R B, as the
  byte counters of a published trace with two replicas show (GCL's rings).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ipu_model.predict.calibration import StreamConstants
from ipu_model.predict.hardware import System
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.program import Program


@dataclass(frozen=True)
class HostLink:
    """The share of the host link that one replica gets while other replicas also transfer.

    A process copies the inputs of its replicas one after another. In the published trace one copy always shows as the
    begin phase, the others only if they take longer than all that the device does meanwhile.
    """

    system: System
    constants: StreamConstants
    replicas_per_machine: int = 1
    replicas_per_process: int = 1

    def transfer(
        self, bytes_by_ipu: Mapping[int, float], *, to_device: bool, begin_share: float = 1.0
    ) -> dict[int, PhaseCycles]:
        """Return cycles by IPU that moves any bytes; `begin_share`: the begin phase as a multiple of one refill."""
        moving = {ipu: size for ipu, size in bytes_by_ipu.items() if size > 0}
        if not moving:
            return {}
        by_machine: dict[int, float] = defaultdict(float)
        for ipu, size in moving.items():
            by_machine[ipu // self.system.ipus_per_machine] += size
        system, most = self.system, max(moving.values())
        link = system.host_to_device_bytes_per_second if to_device else system.device_to_host_bytes_per_second
        alone = most / self.constants.ipu_bytes_per_second
        shared = self.replicas_per_machine * max(by_machine.values()) / link
        slowest = PhaseCycles(
            stream_copy_begin=self.refill_cycles(moving) * begin_share,
            stream_copy_mid=self._cycles(max(alone, shared)),
            stream_copy_end=self._cycles(most / self.constants.completion_bytes_per_second),
        )
        # A shared rate slows all transfers by the same factor.
        return {ipu: slowest.times(size / most) for ipu, size in moving.items()}

    def refill_cycles(self, bytes_by_ipu: Mapping[int, float]) -> float:
        return self._cycles(sum(bytes_by_ipu.values()) / self.constants.refill_bytes_per_second)

    def begin_share(self, refill: float, meanwhile: float, depth: int) -> float:
        """Return the length of the begin phases as a multiple of `refill`, the cycles to refill one replica's buffers.

        `meanwhile` passes until the next transfers, for which several buffers are filled; without any (0) all is on
        request.
        """
        if not refill:
            return 1.0
        if depth == 0:
            return float(self.replicas_per_process)
        shown, hidden = (refill, 0.0) if depth == 1 else (0.0, refill)
        hidden += (self.replicas_per_process - 1) * refill
        return (shown + max(0.0, hidden - meanwhile)) / refill

    def _cycles(self, seconds: float) -> float:
        return seconds * self.system.chip.clock_hz


def replicas_per_machine(program: Program) -> int:
    """Return how many replicas run on the busiest machine; one that spans several machines counts as one."""
    return min(program.replicas, max(1, program.system.ipus_per_machine // program.ipus_per_replica))


@dataclass(frozen=True)
class Ring:
    """The links between one IPU's copies: `near` replicas joined by IPU-Links in each of `groups`; rates in bytes/s."""

    replicas: int
    near: int
    groups: int
    link_bytes_per_second: float
    gateway_bytes_per_second: float
    hop_seconds: float
    call_seconds: float

    def all_reduce(self, size: float) -> float:
        return self.call_seconds + 2 * self._one_way(size) if self.replicas > 1 else 0.0

    def reduce_scatter(self, size: float) -> float:
        """Return the seconds to sum a tensor of `size` bytes and leave one part of the sum on each replica."""
        return self.call_seconds + self._one_way(size) if self.replicas > 1 else 0.0

    all_gather = reduce_scatter

    def _one_way(self, size: float) -> float:
        hops = (self.near - 1 + self.groups - 1) * self.hop_seconds
        moving = (self.near - 1) / self.near * size / self.link_bytes_per_second
        if self.groups > 1:
            moving += (self.groups - 1) / self.groups * size / self.near / self.gateway_bytes_per_second
        return hops + moving


def ring_of(program: Program) -> Ring:
    system, constants = program.system, program.calibration.collective
    near = program.replicas
    if system.gateway_link_bytes_per_second > 0:
        near = min(near, max(1, int(constants.link_domain_ipus) // program.ipus_per_replica))
    link = system.link_bytes_per_second * constants.link_share
    gateway = system.gateway_link_bytes_per_second / replicas_per_machine(program)
    groups = math.ceil(program.replicas / near)
    return Ring(program.replicas, near, groups, link, gateway, system.link_hop_seconds, constants.call_seconds)
