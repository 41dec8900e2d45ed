"""Collectives between replicas: rings over IPU-Links, and over gateway links beyond the reach of those.

Symbols: R replicas, r of them joined by IPU-Links, q = ceil(R / r) groups of these, B bytes of one tensor, L and W
bytes per second of IPU-Links and of gateway links for one IPU, h seconds of a hop, c seconds of a call.

* reduce-scatter, all-gather: c + (r-1) h + (q-1) h + (r-1)/r B/L + (q-1)/q (B/r)/W
* all-reduce, the one after the other in one call: twice that less c; for q = 1 it moves 2(R-1)/R B, as the byte
  counters of a published trace with two replicas show (GCL's rings).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.program import Program
from ipu_model.schedule.constants import collective_constants
from ipu_model.schedule.streams import replicas_per_machine


@dataclass(frozen=True)
class Ring:
    """The replicas of one IPU of a program, and what joins them; rates in bytes per second of one IPU.

    `near` are the replicas joined by IPU-Links, `groups` how many such sets there are.
    """

    replicas: int
    near: int
    groups: int
    link_bytes_per_second: float
    gateway_bytes_per_second: float
    hop_seconds: float
    call_seconds: float

    def all_reduce(self, size: float) -> float:
        """Return the seconds of summing a tensor of `size` bytes over all replicas."""
        return self.call_seconds + 2 * self._one_way(size) if self.replicas > 1 else 0.0

    def reduce_scatter(self, size: float) -> float:
        """Return the seconds after which each replica has its part of the sum of a tensor of `size` bytes."""
        return self.call_seconds + self._one_way(size) if self.replicas > 1 else 0.0

    def all_gather(self, size: float) -> float:
        """Return the seconds after which all replicas have a tensor of `size` bytes that they had parts of."""
        return self.reduce_scatter(size)

    def _one_way(self, size: float) -> float:
        hops = (self.near - 1 + self.groups - 1) * self.hop_seconds
        moving = (self.near - 1) / self.near * size / self.link_bytes_per_second
        if self.groups > 1:
            moving += (self.groups - 1) / self.groups * size / self.near / self.gateway_bytes_per_second
        return hops + moving


def ring_of(program: Program) -> Ring:
    """Return the ring that joins the replicas of a program."""
    system, constants = program.system, collective_constants()
    near = program.replicas
    if system.gateway_link_bytes_per_second > 0:
        near = min(near, max(1, int(constants.link_domain_ipus) // program.ipus_per_replica))
    return Ring(
        replicas=program.replicas,
        near=near,
        groups=math.ceil(program.replicas / near),
        link_bytes_per_second=system.link_bytes_per_second * constants.link_share,
        gateway_bytes_per_second=system.gateway_link_bytes_per_second / replicas_per_machine(program),
        hop_seconds=system.link_hop_seconds,
        call_seconds=constants.call_seconds,
    )
