"""Time of a call with its host: loading in line or beside the device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hand_written import op, tensor
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.host import HostWork, Loading, call_time
from ipu_model.predict.program import Program
from ipu_model.step import Source, step_of_ops

STEP = step_of_ops([op("relu", (8, 4), "x")], [(tensor("x", 8, 4), Source.INPUT)])
PROGRAM = Program(STEP, True, Batching(2, 5, 3))
SAMPLES = 8 * 2 * 5 * 3
CALL, DEVICE = calibrated().host.call_seconds, 0.5


@pytest.mark.parametrize(
    ("host", "changes", "loader", "total"),
    [
        # Synchronous loading comes before the call.
        (HostWork(1e-3), {}, SAMPLES * 1e-3, SAMPLES * 1e-3 + CALL + DEVICE),
        # A process loads for its own replicas, and once for replicas that share their input.
        (HostWork(1e-3), {"processes": 2}, SAMPLES * 1e-3, SAMPLES * 1e-3 + CALL + DEVICE),
        (
            HostWork(3e-3),
            {"batching": Batching(2, 5, 3, input_group=3)},
            SAMPLES * 1e-3,
            SAMPLES * 1e-3 + CALL + DEVICE,
        ),
        # Asynchronous loading hides behind the device, or the device behind a slow loader.
        (HostWork(1e-3, loading=Loading.ASYNC), {}, SAMPLES * 1e-3, CALL + DEVICE),
        (HostWork(1.0, loading=Loading.ASYNC), {}, SAMPLES, SAMPLES),
        # Workers share the loading and load ahead.
        (HostWork(1.0, workers=4), {}, SAMPLES / 4, SAMPLES / 4),
        (HostWork(seconds_per_call=1.0), {}, 0.0, CALL + 1.0 + DEVICE),
    ],
)
def test_seconds_of_a_call(host: HostWork, changes: dict[str, Any], loader: float, total: float) -> None:
    found = call_time(replace(PROGRAM, **changes), host, DEVICE)
    assert found.loader == pytest.approx(loader)
    assert found.total == pytest.approx(total)
    assert found.waits_for_loader == (loader > CALL + host.seconds_per_call + DEVICE)
    assert found.waits_for_host == (host.seconds_per_call > DEVICE)


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
    processes: int, workers: int, hosts: int, cores: int, turns: float
) -> None:
    """ceil(processes / hosts) processes with their workers (or themselves) on so many cores."""
    host = HostWork(1.0, workers=workers, hosts=hosts, cores_per_host=cores)
    found = call_time(replace(PROGRAM, processes=processes), host, DEVICE)
    assert found.loader == pytest.approx(SAMPLES / max(1, workers) * turns)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 8), st.floats(1e-6, 1))
def test_asynchronous_is_never_slower(sample: float, call: float, workers: int, device: float) -> None:
    sync, overlapped = (
        call_time(PROGRAM, HostWork(sample, call, loading, workers), device).total
        for loading in (Loading.SYNC, Loading.ASYNC)
    )
    assert device <= overlapped <= sync


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds_per_sample", -1),
        ("workers", -2),
        ("seconds_per_call", math.nan),
        ("hosts", 0),
        ("cores_per_host", -1),
    ],
)
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(Error, match=rf"HostWork.{name} cannot be"):
        HostWork(**{name: value})


def test_loading_may_be_given_by_name() -> None:
    assert HostWork(loading="async").loading is Loading.ASYNC  # type: ignore[arg-type]
