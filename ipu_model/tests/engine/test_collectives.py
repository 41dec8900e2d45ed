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

SIZE = st.floats(0, 1e9)
REPLICAS = st.integers(2, 256)


STEP = step_of_ops([op("relu", (2, 4), "x")], [(tensor("x", 2, 4), Source.INPUT)])


def ring(replicas: int, system: str = "POD256") -> Ring:
    return ring_of(Program(STEP, True, batching=Batching(replicas=replicas), system=system_named(system)))


class TestOneRack:
    def test_one_replica_has_nobody_to_talk_to(self) -> None:
        alone = ring(1)
        assert alone.all_reduce(1e9) == alone.reduce_scatter(1e9) == alone.all_gather(1e9) == 0

    @pytest.mark.parametrize(
        ("size", "tensors", "cycles"),
        # Hardware reference, A4: gradients of ResNet-50's first 43 convolutions, and of the rest, in 161 tensors.
        [(34e6, 129, 1.8e6), (68e6, 32, 3.0e6)],
    )
    def test_the_published_all_reduces(self, size: float, tensors: int, cycles: float) -> None:
        """Between two replicas; two constants were derived from these two figures."""
        pair = ring(2, "M2000")
        seconds = tensors * pair.all_reduce(size / tensors)
        assert seconds * 1.33e9 == pytest.approx(cycles, rel=0.02)

    @given(replicas=st.integers(2, 64), size=SIZE)
    def test_each_ipu_moves_twice_r_less_one_rths(self, replicas: int, size: float) -> None:
        found = replace(ring(replicas), call_seconds=0.0, hop_seconds=0.0)
        moved = found.all_reduce(size) * found.link_bytes_per_second
        assert moved == pytest.approx(2 * (replicas - 1) / replicas * size)

    @given(replicas=REPLICAS, size=SIZE)
    def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(self, replicas: int, size: float) -> None:
        found = ring(replicas)
        halves = found.reduce_scatter(size) + found.all_gather(size)
        assert found.all_reduce(size) == pytest.approx(halves - found.call_seconds)

    @given(replicas=st.integers(1, 255), size=SIZE)
    def test_more_replicas_never_make_it_faster(self, replicas: int, size: float) -> None:
        assert ring(replicas + 1).all_reduce(size) >= ring(replicas).all_reduce(size)


class TestRacks:
    def test_links_join_sixty_four_ipus(self) -> None:
        near, far = ring(64), ring(256)
        assert (near.near, near.groups) == (64, 1)
        assert (far.near, far.groups) == (64, 4)

    def test_parts_cross_between_racks_over_the_gateways_share_of_each_ipu(self) -> None:
        """GW-Links: 25 GB/s a machine, shared by its four replicas; each IPU carries a 64th of the tensor."""
        found = replace(ring(128), call_seconds=0.0, hop_seconds=0.0)
        within = 2 * 63 / 64 * 64e6 / found.link_bytes_per_second
        across = 2 * 1 / 2 * 1e6 / (25e9 / 4)
        assert found.all_reduce(64e6) == pytest.approx(within + across)

    def test_cards_in_one_server_have_no_gateways(self) -> None:
        assert ring(16, "DSS8440").groups == 1
