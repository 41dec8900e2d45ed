"""Time of a call with its host: loading in line or beside the device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from cost_support import Trained
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, zeros
from tracing_support import traced

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.host import HostWork, Loading, call_time
from ipu_model.predict.program import Program

PROGRAM = Program(step_of(traced(Trained(nn.Linear(4, 4)), zeros(8, 4))), True, Batching(2, 5, 3))
SAMPLES = 8 * 2 * 5 * 3
CALL = calibrated().host.call_seconds


class TestCall:
    def test_samples_of_a_call(self) -> None:
        assert PROGRAM.samples_per_call == SAMPLES

    def test_synchronous_loading_comes_before_the_call(self) -> None:
        found = call_time(PROGRAM, HostWork(1e-3), 0.5)
        assert found.total == pytest.approx(SAMPLES * 1e-3 + CALL + 0.5)

    def test_a_process_loads_for_its_own_replicas(self) -> None:
        found = call_time(replace(PROGRAM, processes=2), HostWork(1e-3), 0.5)
        assert found.loader == pytest.approx(SAMPLES * 1e-3)

    def test_replicas_that_share_their_input_share_its_loading(self) -> None:
        grouped = replace(PROGRAM, batching=Batching(2, 5, 3, input_group=3))
        assert call_time(grouped, HostWork(1e-3), 0.5).loader == pytest.approx(SAMPLES / 3 * 1e-3)

    def test_asynchronous_loading_hides_behind_the_device(self) -> None:
        assert call_time(PROGRAM, HostWork(1e-3, loading=Loading.ASYNC), 0.5).total == pytest.approx(CALL + 0.5)

    def test_a_slow_asynchronous_loader_hides_the_device(self) -> None:
        found = call_time(PROGRAM, HostWork(1.0, loading=Loading.ASYNC), 0.5)
        assert found.total == pytest.approx(SAMPLES)
        assert found.waits_for_loader

    def test_workers_share_the_loading_and_load_ahead(self) -> None:
        assert call_time(PROGRAM, HostWork(1.0, workers=4), 0.5).total == pytest.approx(SAMPLES / 4)

    @pytest.mark.parametrize(
        ("processes", "workers", "hosts", "cores", "turns"),
        [
            (1, 4, 1, 4, 1),
            (1, 4, 1, 2, 2),
            (4, 4, 1, 8, 2),
            (4, 4, 2, 8, 1),
            (4, 0, 1, 2, 2),
            (3, 2, 2, 2, 2),
            (8, 8, 1, 0, 1),
        ],
    )
    def test_loaders_take_turns_on_the_cores_of_their_host(
        self, processes: int, workers: int, hosts: int, cores: int, turns: float
    ) -> None:
        """ceil(processes / hosts) processes with their workers (or themselves) on so many cores."""
        host = HostWork(1.0, workers=workers, hosts=hosts, cores_per_host=cores)
        found = call_time(replace(PROGRAM, processes=processes), host, 0.5)
        assert found.loader == pytest.approx(SAMPLES / max(1, workers) * turns)

    def test_work_for_each_call_is_added(self) -> None:
        assert call_time(PROGRAM, HostWork(seconds_per_call=0.1), 0.05).waits_for_host

    @given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 8), st.floats(1e-6, 1))
    def test_asynchronous_is_never_slower(self, sample: float, call: float, workers: int, device: float) -> None:
        sync, overlapped = (
            call_time(PROGRAM, HostWork(sample, call, loading, workers), device).total
            for loading in (Loading.SYNC, Loading.ASYNC)
        )
        assert overlapped <= sync
        assert overlapped >= device


class TestBadInput:
    @pytest.mark.parametrize(
        "change",
        [
            {"seconds_per_sample": -1},
            {"workers": -2},
            {"seconds_per_call": math.nan},
            {"hosts": 0},
            {"cores_per_host": -1},
        ],
    )
    def test_impossible_numbers_are_refused(self, change: dict[str, float]) -> None:
        with pytest.raises(Error, match=rf"HostWork.{next(iter(change))} cannot be"):
            HostWork(**change)

    def test_loading_may_be_given_by_name(self) -> None:
        assert HostWork(loading="async").loading is Loading.ASYNC  # type: ignore[arg-type]
