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


class TestNumbers:
    def test_samples_of_a_call(self) -> None:
        assert profile_program(SMALL).samples_per_call == 8 * 2 * 5

    def test_throughput_is_samples_over_time(self) -> None:
        found = profile_program(DAY03, HostWork(1e-3))
        assert found.samples_per_second == pytest.approx(512 / found.call_seconds)
        assert found.device_samples_per_second == pytest.approx(512 / found.device_seconds_per_call)

    def test_cycles_are_the_device_time(self) -> None:
        found = profile_program(DAY03)
        for cycles in found.cycles:
            assert cycles.total == pytest.approx(found.device_seconds_per_call * found.machine.clock_hz)

    def test_shares_sum_to_one(self) -> None:
        assert sum(profile_program(DAY03).shares.values()) == pytest.approx(1.0)

    def test_ops_add_up_to_the_stages_work(self) -> None:
        """OnTileExecute of IPU 1 = its ops + accumulation, update and passes, which are no ops of the graph."""
        found = profile_program(DAY03)
        of_ops = sum(op.on_tile_execute * op.executions for op in found.ops if op.ipu == 1)
        assert 0.9 * found.cycles[1].on_tile_execute < of_ops < found.cycles[1].on_tile_execute

    def test_flops_count_recomputation(self) -> None:
        found = profile_program(DAY03)
        once = sum(op.flops for op in found.ops) * 8
        assert once < found.flops_per_call < 1.4 * once


class TestHost:
    def test_a_synchronous_loader_runs_before_the_call(self) -> None:
        found = profile_program(DAY03, HostWork(1e-3))
        load = next(span for span in found.timeline if span.kind == "load")
        assert load.end <= min(span.start for span in found.timeline if span.kind != "load")

    def test_an_asynchronous_loader_runs_beside_it(self) -> None:
        found = profile_program(DAY03, HostWork(1e-4, loading=Loading.ASYNC))
        load = next(span for span in found.timeline if span.kind == "load")
        assert load.start == 0.0
        assert load.label == "loading the next call"

    def test_the_timeline_ends_with_the_call(self) -> None:
        found = profile_program(DAY03, HostWork(1e-3))
        assert max(span.end for span in found.timeline) == pytest.approx(found.call_seconds)


class TestLimits:
    def test_a_slow_loader(self) -> None:
        assert profile_program(DAY03, HostWork(1e-3)).limited_by == "host loader"

    def test_much_work_for_each_call(self) -> None:
        assert profile_program(DAY03, HostWork(seconds_per_call=1.0)).limited_by == "host call"

    def test_few_micro_batches_in_a_pipeline(self) -> None:
        """published: at accumulation 3, two of five cycles are main cycles of at most one micro-batch."""
        assert profile_program(with_options(DAY03, gradient_accumulation=3)).limited_by == "pipeline fill and flush"

    def test_many_micro_batches_leave_the_slowest_stage(self) -> None:
        assert profile_program(with_options(DAY03, gradient_accumulation=512)).limited_by == "stage 0"

    def test_state_off_chip_leaves_the_update(self) -> None:
        assert profile_program(with_options(DAY03, optimiser_off_chip=True)).limited_by == "weight update"


class TestSize:
    def test_a_large_system_is_as_little_work_as_a_small_one(self) -> None:
        """Equal cycles and replicas are counted, not run: as many spans and ops for 128 IPUs as for two."""
        large = replace(with_options(DAY03, replicas=64, gradient_accumulation=1024), system=system_named("POD256"))
        small, found = profile_program(with_options(DAY03, gradient_accumulation=16)), profile_program(large)
        assert len(found.timeline) <= len(small.timeline) + 8
        assert len(found.ops) == len(small.ops)

    def test_a_machine_that_is_too_small(self) -> None:
        with pytest.raises(Error, match=r"needs 8 IPUs \(2 for each of 4 replicas\), and M2000 has 4"):
            profile_program(with_options(DAY03, replicas=4))
