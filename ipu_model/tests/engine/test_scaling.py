"""Scaling over replicas: Amdahl's law, the parts of an update, and curves beside perfect scaling."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from cost_support import Trained
from hypothesis import given
from hypothesis import strategies as st
from optimiser_support import spec_of
from torch import nn, zeros
from tracing_support import traced

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.scaling import constant_share, limit, scaling, speed_up, update_time
from ipu_model.optimiser import Hyper
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.program import Program

SHARES = st.floats(0.0, 1.0)
REPLICAS = st.integers(1, 4096)


def test_it_is_an_attribute_of_the_package_as_soon_as_that_is_imported() -> None:
    """In a fresh Python, in which nothing else has imported it yet."""
    program = (
        "import sys, ipu_model; assert 'torch' not in sys.modules\n"
        "print(ipu_model.scaling.limit(0.05), ipu_model.scaling.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [str(limit(0.05)), "ipu_model.explore.scaling"]


@pytest.fixture(scope="module")
def program() -> Program:
    graph = traced(Trained(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))), zeros(16, 256))
    optimiser = spec_of("SGD2", Hyper(lr=0.1, momentum=0.9))
    return Program(step_of(graph), training=True, batching=Batching(accumulation=8), optimiser=optimiser)


class TestAmdahl:
    @pytest.mark.parametrize(("replicas", "times"), [(16, 13.9), (64, 39.3), (256, 72.1)], ids=lambda value: str(value))
    def test_one_per_cent_constant(self, replicas: int, times: float) -> None:
        """The guide's example (section 7.3): a share of 1 %."""
        assert speed_up(0.01, replicas) == pytest.approx(times, abs=0.05)

    @given(share=SHARES, replicas=REPLICAS)
    def test_bounds(self, share: float, replicas: int) -> None:
        gained = speed_up(share, replicas)
        assert 1 - 1e-9 <= gained <= replicas * (1 + 1e-9)
        assert gained <= limit(share) * (1 + 1e-9)

    @given(share=st.floats(0.001, 1.0), replicas=st.integers(2, 4096))
    def test_the_share_can_be_read_off_a_speed_up(self, share: float, replicas: int) -> None:
        assert constant_share(speed_up(share, replicas), replicas) == pytest.approx(share)

    def test_without_a_constant_share_there_is_no_limit(self) -> None:
        assert limit(0.0) == math.inf

    @pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
    def test_impossible_shares(self, share: float) -> None:
        with pytest.raises(Error, match="between 0 and 1"):
            speed_up(share, 4)

    def test_more_than_perfect_has_no_constant_share(self) -> None:
        with pytest.raises(Error, match="at most 4"):
            constant_share(4.5, 4)
        with pytest.raises(Error, match="two replicas or more"):
            constant_share(1.0, 1)


class TestUpdate:
    def test_two_runs_predict_a_third(self, program: Program) -> None:
        found = update_time(program)
        third = profile_program(replace(program, batching=Batching(accumulation=40))).call_seconds
        assert replace(found, micro_batches=40).total == pytest.approx(third)

    def test_parts_add_up_to_the_modelled_call(self, program: Program) -> None:
        found = update_time(program)
        assert found.total == pytest.approx(profile_program(program).call_seconds)
        assert found.constant_share == pytest.approx(found.constant / found.total)

    def test_replicas_make_the_constant_part_longer(self, program: Program) -> None:
        four = replace(program, batching=Batching(accumulation=8, replicas=4))
        assert update_time(four).constant > update_time(program).constant

    def test_device_iterations_share_the_call(self, program: Program) -> None:
        longer = replace(program, batching=Batching(accumulation=8, device_iterations=10))
        assert update_time(longer).constant < update_time(program).constant

    def test_inference_has_no_updates(self, program: Program) -> None:
        with pytest.raises(Error, match="training"):
            update_time(replace(program, training=False, optimiser=None))


class TestCurves:
    def test_one_replica_is_perfect(self, program: Program) -> None:
        (point,) = scaling(program, [1])
        assert point.efficiency == pytest.approx(1)
        assert (point.global_batch, point.instances) == (16 * 8, 1)

    def test_each_point_has_the_smallest_machine_that_is_large_enough(self, program: Program) -> None:
        points = scaling(program, [1, 4, 5, 16, 17, 64, 65])
        machines = [point.profile.machine.name for point in points if point.profile is not None]
        assert machines == ["M2000", "M2000", "POD16", "POD16", "POD64", "POD64", "POD128"]

    def test_no_point_is_better_than_theory(self, program: Program) -> None:
        assert all(point.efficiency <= 1 + 1e-9 for point in scaling(program, [1, 2, 4, 8, 16, 64, 256]))

    def test_a_constant_global_batch_is_shared_out(self, program: Program) -> None:
        points = scaling(program, [1, 2, 4, 8], constant_global_batch=True)
        assert [point.accumulation for point in points] == [8, 4, 2, 1]
        assert {point.global_batch for point in points} == {128}
        growing = scaling(program, [8])[0]
        assert points[-1].efficiency < growing.efficiency

    def test_a_batch_that_cannot_be_shared_out_is_refused(self, program: Program) -> None:
        point = scaling(program, [3], constant_global_batch=True)[0]
        assert point.profile is None
        assert "divides 8" in point.refused
        assert math.isnan(point.efficiency)

    def test_a_machine_that_does_not_exist_is_refused(self, program: Program) -> None:
        assert "No system has 512 IPUs" in scaling(program, [512])[0].refused

    def test_instances_load_side_by_side(self, program: Program) -> None:
        """One process that needs 1 ms a sample gives 1,000 samples a second, four of them 4,000."""
        host = HostWork(1e-3, loading=Loading.ASYNC)
        single = scaling(program, [4], host=host)[0]
        spread = scaling(program, [4], host=host, replicas_per_instance=1)[0]
        assert single.samples_per_second == pytest.approx(1000)
        assert (spread.instances, spread.samples_per_second) == (4, pytest.approx(4000))

    def test_replicas_that_instances_cannot_share_evenly(self, program: Program) -> None:
        assert "dealt out evenly" in scaling(program, [7], replicas_per_instance=2)[0].refused

    def test_unknown_options_are_refused(self, program: Program) -> None:
        with pytest.raises(Error, match="no option 'gradient_acumulation'"):
            scaling(program, [1], gradient_acumulation=4)
