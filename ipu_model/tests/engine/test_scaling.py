"""Scaling over replicas: Amdahl's law, the parts of an update, and curves beside perfect scaling."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from cost_support import Trained, stepped
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, zeros

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.explore.scaling import constant_share, limit, scaling, speed_up, update_time
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.program import Program

PROGRAM = Program(
    stepped(Trained(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))), zeros(16, 256)),
    training=True,
    batching=Batching(accumulation=8),
    optimiser=OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9)),
)


def test_it_is_an_attribute_of_the_package_as_soon_as_that_is_imported() -> None:
    """In a fresh Python, in which nothing else has imported it yet."""
    program = (
        "import sys, ipu_model; assert 'torch' not in sys.modules\n"
        "print(ipu_model.scaling.limit(0.05), ipu_model.scaling.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [str(limit(0.05)), "ipu_model.explore.scaling"]


@pytest.mark.parametrize(("replicas", "times"), [(16, 13.9), (64, 39.3), (256, 72.1)])
def test_one_per_cent_constant(replicas: int, times: float) -> None:
    """The guide's example (section 7.3)."""
    assert speed_up(0.01, replicas) == pytest.approx(times, abs=0.05)


@given(share=st.floats(0.0, 1.0), replicas=st.integers(1, 4096))
def test_bounds_and_the_share_that_can_be_read_off_a_speed_up(share: float, replicas: int) -> None:
    gained = speed_up(share, replicas)
    assert 1 - 1e-9 <= gained <= min(replicas, limit(share)) * (1 + 1e-9)
    if replicas > 1 and share > 0.001:
        assert constant_share(gained, replicas) == pytest.approx(share)
    assert limit(0.0) == math.inf


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: speed_up(-0.1, 4), "between 0 and 1"),
        (lambda: speed_up(1.1, 4), "between 0 and 1"),
        (lambda: limit(math.nan), "between 0 and 1"),
        (lambda: speed_up(0.5, 0), "at least one replica, not 0"),
        (lambda: constant_share(4.5, 4), "at most 4"),
        (lambda: constant_share(0.0, 4), "more than 0"),
        (lambda: constant_share(1.0, 1), "two replicas or more"),
        (lambda: update_time(replace(PROGRAM, training=False, optimiser=None)), "Only training programs"),
        (lambda: scaling(PROGRAM, [1], gradient_acumulation=4), "no option 'gradient_acumulation'"),
    ],
)
def test_mistakes(ask: Callable[[], object], words: str) -> None:
    with pytest.raises(Error, match=words):
        ask()


def test_two_runs_predict_a_third() -> None:
    update = update_time(PROGRAM)
    third = profile_program(replace(PROGRAM, batching=Batching(accumulation=40))).call_seconds
    assert replace(update, micro_batches=40).total == pytest.approx(third)
    assert update.total == pytest.approx(profile_program(PROGRAM).call_seconds)
    assert update.constant_share == pytest.approx(update.constant / update.total)
    # Replicas lengthen the constant part, and device iterations share it.
    more, longer = Batching(accumulation=8, replicas=4), Batching(accumulation=8, device_iterations=10)
    assert update_time(replace(PROGRAM, batching=longer)).constant < update.constant
    assert update_time(replace(PROGRAM, batching=more)).constant > update.constant


def test_each_point_has_the_smallest_machine_that_is_large_enough() -> None:
    points = scaling(PROGRAM, [1, 4, 5, 16, 17, 64, 65])
    machines = [point.profile.machine.name for point in points if point.profile is not None]
    assert machines == ["M2000", "M2000", "POD16", "POD16", "POD64", "POD64", "POD128"]
    assert points[0].efficiency == pytest.approx(1)
    assert (points[0].global_batch, points[0].instances) == (16 * 8, 1)
    assert all(point.efficiency <= 1 + 1e-9 for point in points)


def test_a_constant_global_batch_is_shared_out_and_instances_load_side_by_side() -> None:
    points = scaling(PROGRAM, [1, 2, 4, 8], constant_global_batch=True)
    assert [point.accumulation for point in points] == [8, 4, 2, 1]
    assert {point.global_batch for point in points} == {128}
    assert points[-1].efficiency < scaling(PROGRAM, [8])[0].efficiency
    # One process that needs 1 ms a sample gives 1,000 samples a second, four of them 4,000.
    host = HostWork(1e-3, loading=Loading.ASYNC)
    (single,) = scaling(PROGRAM, [4], host=host)
    (spread,) = scaling(PROGRAM, [4], host=host, replicas_per_instance=1)
    assert single.samples_per_second == pytest.approx(1000)
    assert (spread.instances, spread.samples_per_second) == (4, pytest.approx(4000))


@pytest.mark.parametrize(
    ("replicas", "asked", "words"),
    [
        (3, {"constant_global_batch": True}, "divides 8"),
        (0, {"constant_global_batch": True}, "among 0 replicas"),
        (0, {}, "at least one replica"),
        (512, {}, "No system has 512 IPUs"),
        (7, {"replicas_per_instance": 2}, "dealt out evenly over 3 instances"),
    ],
)
def test_points_that_are_impossible_say_why(replicas: int, asked: dict[str, int], words: str) -> None:
    (point,) = scaling(PROGRAM, [replicas], **asked)  # type: ignore[arg-type]
    assert point.profile is None
    assert words in point.refused
    assert math.isnan(point.samples_per_second)
