"""A program's description: batch arithmetic, counts, the time of a call and of compilation; what is remembered."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hand_written import op, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from net_support import FLOAT, Trained, adamw, calling, memory_of_program, program_of, squares, stepped
from torch import nn

from ipu_model import predict
from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.predict import compilation_seconds
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.host import CallTime, HostWork, Loading, call_time
from ipu_model.predict.profile import EXCHANGE_CODE
from ipu_model.predict.program import Program, Recomputation, remembered
from ipu_model.step import Source, Step, step_of_ops
from published.building import begin_block

STEP = step_of_ops([op("relu", (8, 4), "x")], [(tensor("x", 8, 4), Source.INPUT)])
PROGRAM = Program(STEP, True, Batching(2, 5, 3))
SAMPLES = 8 * 2 * 5 * 3


# --- batch arithmetic (executor reference, sections 6, 7)

COUNT = st.integers(1, 5)


@given(d=COUNT, a=COUNT, chunks=COUNT, group=COUNT, orthogonal=st.booleans())
def test_every_slice_is_read_by_one_replica_or_one_whole_group(d, a, chunks, group, orthogonal) -> None:
    alone = Batching(d, a, chunks)
    read = [alone.slice_index(step, replica) for step in range(d * a) for replica in range(chunks)]
    assert read == list(range(alone.slices))
    batching = Batching(d, a, chunks * group, group, orthogonal)
    assert batching.slices == d * a * chunks
    for step in range(d * a):
        readers = [batching.slice_index(step, replica) - step * chunks for replica in range(chunks * group)]
        if orthogonal:
            assert readers == [replica % chunks for replica in range(chunks * group)]
        else:
            assert readers == [replica // group for replica in range(chunks * group)]


@given(d=COUNT, a=COUNT, r=COUNT, keep=st.sampled_from([Keep.ALL, Keep.FINAL, Keep.EVERY_N]), data=st.data())
def test_the_multiplier_counts_the_kept_results(d, a, r, keep, data) -> None:
    divisors = [n for n in range(1, d + 1) if d % n == 0]
    returns = Returns(keep, data.draw(st.sampled_from(divisors)) if keep is Keep.EVERY_N else 1)
    batching = Batching(d, a, r)
    kept = sum(returns.kept(step, batching.steps) for step in range(batching.steps))
    assert kept * r == returns.multiplier(batching)


# --- counts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batching": Batching(device_iterations=0)}, "0 device iterations: 1 is the least"),
        ({"batching": Batching(accumulation=-1)}, "-1 gradient accumulation"),
        ({"batching": Batching(replicas=0)}, "0 replicas"),
        ({"processes": 0}, "0 processes"),
        ({"prefetch_depth": -1}, "-1 prefetch depth: 0 is the least"),
        ({"io_tiles": -32}, "-32 I/O tiles: 0 is the least"),
        ({"io_tiles": 1472, "overlaps_input": True}, "1472 I/O tiles leave none of the 1472 tiles"),
    ],
)
def test_impossible_counts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Error, match=words):
        replace(PROGRAM, **changes)


# --- the time of a call with its host

CALL, DEVICE = calibrated().host.call_seconds, 0.5
LOADED = SAMPLES * 1e-3


@pytest.mark.parametrize(
    ("host", "changes", "loader", "total"),
    [
        # Synchronous loading comes before the call.
        (HostWork(1e-3), {}, LOADED, LOADED + CALL + DEVICE),
        # A process loads for its own replicas, and once for replicas that share their input.
        (HostWork(1e-3), {"processes": 2}, LOADED, LOADED + CALL + DEVICE),
        (HostWork(3e-3), {"batching": Batching(2, 5, 3, input_group=3)}, LOADED, LOADED + CALL + DEVICE),
        # Asynchronous loading hides behind the device, or the device behind a slow loader.
        (HostWork(1e-3, loading=Loading.ASYNC), {}, LOADED, CALL + DEVICE),
        (HostWork(1.0, loading=Loading.ASYNC), {}, SAMPLES, SAMPLES),
        # Workers share the loading and load ahead.
        (HostWork(1.0, workers=4), {}, SAMPLES / 4, SAMPLES / 4),
        (HostWork(seconds_per_call=1.0), {}, 0.0, CALL + 1.0 + DEVICE),
        # Loaders take turns on the cores of their host: ceil(processes / hosts) processes with their workers, or
        # themselves, on so many cores.
        *(
            (
                HostWork(10.0, workers=workers, hosts=hosts, cores_per_host=cores),
                {"processes": processes},
                SAMPLES * 10 / max(1, workers) * turns,
                SAMPLES * 10 / max(1, workers) * turns + (CALL + DEVICE) * (workers == 0),
            )
            for processes, workers, hosts, cores, turns in [
                (1, 4, 1, 4, 1), (1, 4, 1, 2, 2), (4, 4, 1, 8, 2), (4, 4, 2, 8, 1), (4, 0, 1, 2, 2), (3, 2, 2, 2, 2),
                (8, 8, 1, 0, 1),
            ]
        ),
    ],
)  # fmt: skip
def test_seconds_of_a_call(host: HostWork, changes: dict[str, Any], loader: float, total: float) -> None:
    found = call_time(replace(PROGRAM, **changes), host, DEVICE)
    assert (found.loader, found.total) == pytest.approx((loader, total))


@pytest.mark.parametrize(
    ("loader", "host", "device", "overlaps", "limit"),
    [
        # One after another, the longest part is the bottleneck; a loader beside the rest is if the rest is over first.
        (3, 2, 2.5, False, "host loader"), (3, 2, 2.5, True, None), (5, 2, 2.5, True, "host loader"),
        (3, 3.5, 2, False, "host call"), (3, 3.5, 2, True, "host call"), (2, 1, 3, False, None),
    ],
)  # fmt: skip
def test_the_bottleneck_of_a_call(loader: float, host: float, device: float, overlaps: bool, limit: str | None) -> None:
    assert CallTime(loader, host, device, overlaps).bottleneck == limit


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds_per_sample", -1), ("workers", -2), ("seconds_per_call", math.nan), ("hosts", 0), ("cores_per_host", -1)],
)
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(Error, match=rf"HostWork.{name} cannot be"):
        HostWork(**{name: value})


# --- compilation: a line through published ones, 20 s for each IPU and 4.3 s for each layer with weights


def attention(query: nn.Module, key: nn.Module, value: nn.Module, out: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return out((query(x) @ key(x).transpose(1, 2)).softmax(-1) @ value(x))


def two_layers(*, freezes: bool = False, ipus: int = 1) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[0].requires_grad_(not freezes)
    begin_block(model[1], ipus - 1)
    return model


@pytest.mark.parametrize(
    ("model", "training", "seconds"),
    [
        (calling(attention, *(nn.Linear(16, 16) for _ in range(4))), True, 20 + 4 * 4.3),  # products are no layers
        (two_layers(freezes=True), True, 20 + 2 * 4.3),
        (two_layers(ipus=2), True, 2 * 20 + 2 * 4.3),
        (two_layers(), False, 0.385 * (20 + 2 * 4.3)),  # 35 s of 91 s, as published for the MNIST tutorial
    ],
)
def test_ipus_and_layers_with_weights_count(model: nn.Module, training: bool, seconds: float) -> None:
    module = Trained(model) if training else model.eval()
    program = Program(stepped(module, torch.zeros(2, 8, 16), training=training), training)
    assert compilation_seconds(program) == pytest.approx(seconds)


# --- what programs share is computed once, and freed with their step

PIPELINE = program_of(squares(4, width=32, ipus=2), optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE)


def test_each_step_is_asked_once_for_each_key() -> None:
    asked: list[tuple[Step, int]] = []

    @remembered
    def doubled(step: Step, number: int) -> int:
        asked.append((step, number))
        return 2 * number

    one, other = (step_of(squares(1, width=8)) for _ in range(2))
    calls = [(one, 1), (other, 1), (one, 2), (one, 1), (other, 1)]
    assert [doubled(*call) for call in calls] == [2, 2, 4, 2, 2]
    assert asked == [(one, 1), (other, 1), (one, 2)]


def test_a_step_that_is_gone_leaves_nothing_behind() -> None:
    """Neither a value of its own nor, with a profile of it, itself."""

    @remembered
    def settings(step: Step) -> CostSettings:
        return CostSettings(stable_norm=True)

    program = program_of(squares(1, width=8))
    value_there = weakref.ref(settings(program.step))
    predict.profile_lately(program, predict.HostWork())
    step_there = weakref.ref(program.step)
    gc.collect()
    assert value_there() is not None
    del program
    gc.collect()
    assert value_there() is step_there() is None


def test_equal_settings_share_costs_of_which_only_the_latest_are_kept() -> None:
    def costs(share: float, **more: bool) -> object:
        return costs_of(PIPELINE.step, CostSettings(available_memory_proportion={0: share}, **more))

    first = costs(0.5)
    assert costs(0.5) is first
    assert costs(0.5, half_partials=True) is not first
    for tenths in range(10):
        costs(0.01 * tenths)
    assert costs(0.5) is not first


@settings(max_examples=20)
@given(
    st.integers(1, 3) | st.integers(1, 64),
    st.integers(1, 40),
    st.sampled_from([{}, {}, {"recomputation": Recomputation.NONE}, {"optimiser": None}]),
)
def test_memory_that_is_remembered_is_what_would_be_found(accumulation: int, iterations: int, change: Any) -> None:
    program = replace(PIPELINE, batching=Batching(iterations, accumulation), **change)
    memory = predict.memory_of_program(program)
    assert memory == memory_of_program(program)
    if accumulation > 1 and not change:  # repetitions share it
        assert memory is predict.memory_of_program(replace(PIPELINE, batching=Batching(10, 512)))


def test_other_constants_show_at_once() -> None:
    """Ten times as many bytes per phase of either size give ten times the exchange code on every IPU."""
    usual, names = PIPELINE.calibration, ("exchange_code_bytes_per_phase", "exchange_code_bytes_per_copy")
    dearer = usual.with_values({f"memory.{name}": 10 * getattr(usual.memory, name) for name in names})
    changed = replace(PIPELINE, settings=replace(PIPELINE.settings, device=Device(calibration=dearer)))
    before, after, again = (predict.memory_of_program(program) for program in (PIPELINE, changed, PIPELINE))
    assert before == again
    for plain, more in zip(before, after):
        assert more.bytes_by_category[EXCHANGE_CODE] == pytest.approx(10 * plain.bytes_by_category[EXCHANGE_CODE])
