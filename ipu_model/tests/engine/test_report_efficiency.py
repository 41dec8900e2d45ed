"""Where a program stands below the peak of its IPUs, on a program small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_support import PROFILE_KINDS, inference_profile

from ipu_model.predict.profile import OpProfile, PhaseCycles, Profile
from ipu_model.report.findings import cycles_spent, roofline


def matmul(executions: int) -> OpProfile:
    """An op of 1,000 cycles, 600 of them computing, that does 64,000 FLOPs where 128 a cycle are possible."""
    (op,) = inference_profile().ops
    return replace(
        op, on_tile_execute=600.0, do_exchange=300.0, internal_sync=100.0, flops=64_000, executions=executions,
        accessed_bytes=16_000.0, peak_flops_per_cycle=128.0,
    )  # fmt: skip


def one_op(cycles: PhaseCycles, executions: int = 2) -> Profile:
    profile = inference_profile()
    seconds = profile.machine.seconds(cycles.total)
    return replace(profile, ops=(matmul(executions),), cycles=(cycles,), device_seconds_per_call=seconds)


def test_every_part_of_the_cycles_has_its_name() -> None:
    """Two runs of 500 ideal cycles each: 1,000 at the peak, 200 of the 1,200 that they compute beyond it."""
    cycles = PhaseCycles(
        on_tile_execute=1500.0, do_exchange=600.0, global_exchange=300.0, stream_copy_begin=100.0,
        stream_copy_mid=200.0, stream_copy_end=100.0, internal_sync=200.0, external_sync=1000.0,
    )  # fmt: skip
    assert {part.name: part.cycles for part in cycles_spent(one_op(cycles))} == {
        "at the matrix units' peak": 1000.0,
        "contractions below the peak": 200.0,
        "other computation": 300.0,
        "exchange between tiles": 600.0,
        "synchronisation of tiles": 200.0,
        "copies between IPUs": 300.0,
        "host and streaming memory": 400.0,
        "waiting for other IPUs": 1000.0,
    }


@pytest.mark.parametrize("kind", PROFILE_KINDS)
def test_shares_add_up_to_one(kind: str) -> None:
    assert sum(part.share for part in cycles_spent(PROFILE_KINDS[kind]())) == pytest.approx(1.0)


def test_the_roofline_counts_all_time_and_that_of_contractions() -> None:
    """128,000 FLOPs in 4,000 cycles are a quarter of 128 a cycle; in the contractions' own 2,000 they are half."""
    found = roofline(one_op(PhaseCycles(on_tile_execute=1200.0, do_exchange=600.0, external_sync=2200.0)))
    assert found is not None
    assert found.share == pytest.approx(0.25)
    assert found.share_while_contracting == pytest.approx(0.5)
    assert found.peak == pytest.approx(128 * 1.33e9)
    assert found.intensity == pytest.approx(4.0)


def test_without_contractions_there_is_no_roofline() -> None:
    profile = inference_profile()
    assert roofline(replace(profile, ops=())) is None
