"""Collectives between replicas: rings, what they share, and what lies beyond one rack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_written import op, tensor
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.batching import Batching
from ipu_model.predict.hardware import system_named
from ipu_model.predict.links import Ring, ring_of
from ipu_model.predict.program import Program
from ipu_model.step import Source, step_of_ops

STEP = step_of_ops([op("relu", (2, 4), "x")], [(tensor("x", 2, 4), Source.INPUT)])


def ring(replicas: int, system: str = "POD256") -> Ring:
    return ring_of(Program(STEP, True, batching=Batching(replicas=replicas), system=system_named(system)))


@given(replicas=st.integers(1, 256), size=st.floats(0, 1e9))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_and_no_faster_with_more_replicas(replicas, size) -> None:
    found = ring(replicas)
    halves = found.reduce_scatter(size) + found.all_gather(size)
    assert found.all_reduce(size) == pytest.approx(halves - found.call_seconds if replicas > 1 else 0.0)
    if replicas > 1:
        assert found.all_reduce(size) >= ring(replicas - 1).all_reduce(size)
    else:  # nobody to talk to
        assert halves == 0


@given(replicas=st.integers(2, 64), size=st.floats(0, 1e9))
def test_each_ipu_moves_twice_r_less_one_rths(replicas: int, size: float) -> None:
    found = replace(ring(replicas), call_seconds=0.0, hop_seconds=0.0)
    moved = found.all_reduce(size) * found.link_bytes_per_second
    assert moved == pytest.approx(2 * (replicas - 1) / replicas * size)


def test_links_join_sixty_four_ipus_and_gateways_join_racks() -> None:
    """GW-Links: 25 GB/s a machine, shared by its four replicas; each IPU carries a 64th of the tensor."""
    sizes = [(ring(64), 64, 1), (ring(256), 64, 4), (ring(16, "DSS8440"), 16, 1)]  # cards in one server have none
    assert all((found.near, found.groups) == (near, groups) for found, near, groups in sizes)
    found = replace(ring(128), call_seconds=0.0, hop_seconds=0.0)
    within = 2 * 63 / 64 * 64e6 / found.link_bytes_per_second
    across = 2 * 1 / 2 * 1e6 / (25e9 / 4)
    assert found.all_reduce(64e6) == pytest.approx(within + across)
