"""PopTorch's timing calls, which the performance model answers (executor reference, section 14)."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from executor_support import inference, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from modelling_support import Chain, inferred, trainable, trained

import ipu_model
import poptorch
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.hardware import system_named
from ipu_model.predict.profile import Profile, Span
from ipu_model.predict.program import Program
from poptorch._backend.modelling import EVENTS, latency, perf_counters

LATENCIES = ("getLatency", "getHostIpuLatency", "getComputeLatency", "getIpuHostLatency")
EVERY_N = poptorch.OutputMode.EveryN
EMPTY = {event: [[]] for event in EVENTS}
X = torch.ones(4, 8)


def streams(into: float, out: float) -> tuple[Span, ...]:
    return Span("IPU 0", "stream in", 0.0, into), Span("IPU 0", "stream out", 0.0, out)


def lasting(program: Program, seconds: float, *timeline: Span) -> Profile:
    """Return the program's profile with another device time and other stream times and wait for one call."""
    shares = {"run start": sum(span.seconds for span in timeline if span.kind == "wait") / seconds}
    changed = replace(profile_program(program), device_seconds_per_call=seconds, shares=shares)
    return replace(changed, timeline=timeline or streams(0.0, 0.0))


class TestCounters:
    """`D x A x R` times for each input, one for each result that comes back for each output."""

    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["All", "Final", "Sum"]))
    def test_the_number_of_times(self, d: int, a: int, r: int, mode: str) -> None:
        options = trainable(1, a).deviceIterations(d).replicationFactor(r).outputMode(poptorch.OutputMode[mode])
        program = trained(options, ipus=1)
        counters = perf_counters(program, lasting(program, 1.0))
        sent, returned = [d * a * r] * 2, [{"All": d * a * r, "Final": r, "Sum": r}[mode]] * 2
        lengths = {event: [len(times) for times in lists] for event, lists in counters.items()}
        assert lengths == {"input": sent, "input_complete": sent, "output": returned, "output_complete": returned}

    @pytest.mark.parametrize(
        ("program", "seconds", "timeline", "expected"),
        [
            (  # Steps of one IPU follow one another: two of 5 s each, with 1 s in and 0.5 s out.
                lambda: inferred(quiet().deviceIterations(2), ipus=1), 10.0, streams(2.0, 1.0),
                {"input": [0.0, 5.0], "input_complete": [1.0, 6.0],
                 "output": [4.5, 9.5], "output_complete": [5.0, 10.0]},
            ),
            (  # The wait for the host comes before the first transfer.
                lambda: inferred(quiet().deviceIterations(2), ipus=1), 8.0,
                (Span("IPU 0", "wait", 0.0, 2.0), Span("IPU 0", "stream in", 2.0, 1.0), Span("host", "call", 0.0, 9.0)),
                {"input": [2.0, 5.0], "input_complete": [2.5, 5.5], "output_complete": [5.0, 8.0]},
            ),
            (  # D x R / N = 4: the ends of the third and the sixth of six equal steps, for both replicas.
                lambda: inferred(quiet().deviceIterations(6).replicationFactor(2).outputMode(EVERY_N, 3), ipus=1),
                6.0, (), {"output_complete": [3.0, 6.0, 3.0, 6.0]},
            ),
            (  # M + K - 1 = 4 cycles of 1 s; a micro-batch is in the pipeline for K = 2 of them.
                lambda: inferred(quiet().deviceIterations(3), ipus=2), 4.0, (),
                {"input": [0.0, 1.0, 2.0], "output_complete": [2.0, 3.0, 4.0]},
            ),
            (  # Training fills and flushes for each of D = 2 updates: A + 2 (K - 1) = 5 cycles of 1 s.
                lambda: trained(trainable(2).deviceIterations(2).outputMode(poptorch.OutputMode.All), ipus=2), 10.0, (),
                {"input": [0.0, 1.0, 2.0, 5.0, 6.0, 7.0], "output_complete": [2.0, 3.0, 4.0, 7.0, 8.0, 9.0]},
            ),
            (  # Shards run one micro-batch after another.
                lambda: inferred(quiet().deviceIterations(2).setExecutionStrategy(poptorch.ShardedExecution()), ipus=2),
                4.0, (), {"input": [0.0, 2.0], "output_complete": [2.0, 4.0]},
            ),
        ],
        ids=["one IPU", "waiting", "every third", "pipeline", "training", "shards"],
    )  # fmt: skip
    def test_when_they_are(self, program: Any, seconds: float, timeline: tuple[Span, ...], expected: Any) -> None:
        counters = perf_counters(program(), lasting(program(), seconds, *timeline))
        assert {event: counters[event][0] for event in expected} == expected

    def test_synthetic_data_leaves_the_inner_lists_empty(self) -> None:
        program = trained(trainable(1).enableSyntheticData(True), ipus=1)
        assert perf_counters(program, lasting(program, 1.0)) == {event: [[], []] for event in EVENTS}
        model = executor(quiet().enableSyntheticData(True))
        model(X)
        assert model.getPerfCounters() == EMPTY
        assert model.getLatency() == (0.0, 0.0, 0.0)

    @settings(max_examples=15, deadline=None)
    @given(st.integers(1, 4), st.floats(0, 2), st.floats(0, 2))
    def test_a_micro_batch_arrives_before_it_leaves(self, d: int, into: float, out: float) -> None:
        """Also where streams would take longer than the whole call, which a schedule never says."""
        program = inferred(quiet().deviceIterations(d), ipus=1)
        counters = perf_counters(program, lasting(program, 1.0, *streams(into, out)))
        for ticks in zip(*(counters[event][0] for event in EVENTS)):
            assert list(ticks) == pytest.approx(sorted(ticks))
            assert 0.0 <= ticks[0] <= ticks[-1] <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        ([[0.0, 5.0]], [[2.0, 9.0]], (2.0, 4.0, 3.0)),
        # Each group of inputs counts from its earliest: two replicas of two steps that return one result each.
        ([[0.0, 1.0, 0.5, 1.5]], [[2.0, 3.5]], (2.0, 3.0, 2.5)),
        # Of several tensors the earliest start and the latest end.
        ([[0.0], [1.0]], [[2.0], [3.0], [2.5]], (3.0, 3.0, 3.0)),
        # Zeros without data.
        ([[], []], [[], []], (0.0, 0.0, 0.0)),
        ([], [], (0.0, 0.0, 0.0)),
    ],
)
def test_least_greatest_and_average_latency(starts: Any, ends: Any, expected: tuple[float, ...]) -> None:
    assert latency({"input": starts, "output_complete": ends}, "input", "output_complete") == expected


def executor(options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return inference(Chain(1), options)


class TestExecutor:
    def test_nothing_is_known_before_a_run(self) -> None:
        model = executor()
        assert model.getPerfCounters() == EMPTY
        model.compile(X)
        assert model.getPerfCounters() == EMPTY
        assert [getattr(model, name)() for name in LATENCIES] == [(0.0, 0.0, 0.0)] * 4

    def test_the_parts_make_up_the_whole(self) -> None:
        model = executor(quiet().deviceIterations(2))
        model(X)
        profile, counters = ipu_model.profile(model), model.getPerfCounters()
        assert [len(counters[event][0]) for event in EVENTS] == [2, 2, 2, 2]
        assert counters["output_complete"][0][-1] == pytest.approx(profile.device_seconds_per_call)
        least, greatest, average = model.getLatency()
        assert 0.0 < least <= average <= greatest <= profile.device_seconds_per_call * (1 + 1e-9)
        parts = [getattr(model, name)()[2] for name in LATENCIES[1:]]
        assert all(seconds > 0.0 for seconds in parts)
        assert sum(parts) == pytest.approx(model.getLatency()[2])
        # Detaching keeps the last run, and destroying drops it.
        before = model.getPerfCounters()
        model.detachFromDevice()
        assert model.getPerfCounters() == before != EMPTY
        model.destroy()
        assert model.getPerfCounters() == EMPTY


def test_the_compilation_time_is_modelled_and_needs_the_progress_bar() -> None:
    model, silent = executor(poptorch.Options()), executor(quiet())
    with pytest.raises(poptorch.Error, match="Please compile the model"):
        model.compilationTime()
    model.compile(X)
    assert model.compilationTime() == timedelta(seconds=ipu_model.profile(model).compilation_seconds)
    assert model.compilationTime() > timedelta(seconds=1)
    silent.compile(X)
    with pytest.raises(poptorch.Error, match="showCompilationProgressBar"):
        silent.compilationTime()


def test_the_cycle_count_is_the_device_time_of_one_run(caplog: pytest.LogCaptureFixture) -> None:
    """But for the wait with which a run starts. It has to be switched on; then every run is logged."""
    model, silent = executor(quiet().logCycleCount(True).deviceIterations(2)), executor()
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        silent(X)
        assert "IPU cycles" not in caplog.text
        with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
            silent.cycleCount()
        for prepare in (lambda: None, lambda: model.compile(X)):
            prepare()
            with pytest.raises(poptorch.Error, match="Please run the model at least once"):
                model.cycleCount()
        model(X)
        model(X)
    seconds = ipu_model.profile(model).device_seconds_per_call - calibrated().stream.run_wait_seconds
    assert isinstance(model.cycleCount(), int)
    assert model.cycleCount() == round(seconds * system_named("GC200").chip.clock_hz) > 0
    assert caplog.messages.count(f"Total number of IPU cycles: {model.cycleCount()}") == 2
