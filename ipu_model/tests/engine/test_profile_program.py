"""A whole profile: its parts agree with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_support import Trained
from torch import nn, zeros
from tracing_support import traced

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.options import with_options
from ipu_model.predict import profile_program
from ipu_model.predict.hardware import system_named
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.program import Program
from published.convolutional import day03_program

DAY03 = day03_program(accumulation=8)
SMALL = Program(step_of(traced(Trained(nn.Linear(16, 16)), zeros(8, 16))), True, Batching(2, 5))


def test_numbers_agree() -> None:
    assert profile_program(SMALL).samples_per_call == 8 * 2 * 5
    profile = profile_program(DAY03, HostWork(1e-3))
    assert profile.samples_per_second == pytest.approx(512 / profile.call_seconds)
    assert profile.device_samples_per_second == pytest.approx(512 / profile.device_seconds_per_call)
    for cycles in profile.cycles:
        assert cycles.total == pytest.approx(profile.device_seconds_per_call * profile.machine.clock_hz)
    assert sum(profile.shares.values()) == pytest.approx(1.0)
    # OnTileExecute of IPU 1 = its ops + accumulation, update and passes, which are no ops of the graph.
    of_ops = sum(op.on_tile_execute * op.executions for op in profile.ops if op.ipu == 1)
    assert 0.9 * profile.cycles[1].on_tile_execute < of_ops < profile.cycles[1].on_tile_execute
    once = sum(op.flops for op in profile.ops) * 8  # without recomputation
    assert once < profile.flops_per_call < 1.4 * once


def test_a_loader_runs_before_the_call_or_beside_it() -> None:
    profile = profile_program(DAY03, HostWork(1e-3))
    load = next(span for span in profile.timeline if span.kind == "load")
    assert load.end <= min(span.start for span in profile.timeline if span.kind != "load")
    assert max(span.end for span in profile.timeline) == pytest.approx(profile.call_seconds)
    beside = profile_program(DAY03, HostWork(1e-4, loading=Loading.ASYNC))
    load = next(span for span in beside.timeline if span.kind == "load")
    assert (load.start, load.label) == (0.0, "loading the next call")


@pytest.mark.parametrize(
    ("options", "host", "limit"),
    [
        ({}, HostWork(1e-3), "host loader"),
        ({}, HostWork(seconds_per_call=1.0), "host call"),
        # published: at accumulation 3, two of five cycles are main cycles of at most one micro-batch
        ({"gradient_accumulation": 3}, None, "pipeline fill and flush"),
        ({"gradient_accumulation": 512}, None, "stage 0"),
        ({"optimiser_off_chip": True}, None, "weight update"),
    ],
)
def test_what_limits_a_program(options: dict[str, object], host: HostWork | None, limit: str) -> None:
    assert profile_program(with_options(DAY03, **options), host).limited_by == limit


def test_a_large_system_is_as_little_work_as_a_small_one() -> None:
    """Equal cycles and replicas are counted, not run: as many spans and ops for 128 IPUs as for two."""
    large = replace(with_options(DAY03, replicas=64, gradient_accumulation=1024), system=system_named("POD256"))
    small, found = profile_program(with_options(DAY03, gradient_accumulation=16)), profile_program(large)
    assert len(found.timeline) <= len(small.timeline) + 8
    assert len(found.ops) == len(small.ops)


def test_a_machine_that_is_too_small_is_refused_with_both_numbers() -> None:
    with pytest.raises(Error, match=r"needs 8 IPUs \(2 for each of 4 replicas\), and M2000 has 4"):
        profile_program(with_options(DAY03, replicas=4))
