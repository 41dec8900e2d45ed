"""The trace, which has events as chrome://tracing and Perfetto read them, with ops, passes, host and memory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from report_support import PROFILES, inference_profile, pipeline_profile

from ipu_model.predict import profile_program
from ipu_model.predict.profile import Profile, Span
from ipu_model.predict.program import Recomputation
from ipu_model.report.trace import passes, trace_json
from published.convolutional import day03_program

Event = dict[str, Any]


class Trace:
    """A trace as a strict reader takes it: no repeated names, no numbers that JSON does not have."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.text = trace_json(profile)
        self.whole = json.loads(self.text, object_pairs_hook=_unique, parse_constant=pytest.fail)
        self.events: list[Event] = self.whole["traceEvents"]
        self.threads = {e["tid"]: e["args"]["name"] for e in self.of("M") if e["name"] == "thread_name"}

    def of(self, phase: str) -> list[Event]:
        return [event for event in self.events if event["ph"] == phase]

    def on(self, thread: str) -> list[Event]:
        (number,) = [tid for tid, known in self.threads.items() if known == thread]
        return [event for event in self.of("X") if event["tid"] == number]

    def require_sound(self) -> None:
        """Require what viewers rely on: all fields, order of time, and no overlap on a thread to the nanosecond."""
        assert set(self.whole) == {"traceEvents", "displayTimeUnit", "otherData"}
        timed = [event for event in self.events if event["ph"] != "M"]
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(timed))
        assert {event["tid"] for event in self.of("X")} == set(self.threads)
        ends: dict[int, int] = {}
        for event in self.events:
            assert event["ph"] in ("M", "X", "C")
            assert (type(event["name"]), type(event["pid"]), type(event["tid"])) == (str, int, int)
            assert isinstance(event["args"], dict)
            if event["ph"] == "C":
                assert all(isinstance(value, (int, float)) for value in event["args"].values())
            if event["ph"] == "X":
                begin = round(1000 * event["ts"])
                assert begin >= ends.get(event["tid"], 0)
                assert event["dur"] >= 0
                ends[event["tid"]] = begin + round(1000 * event["dur"])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@lru_cache(maxsize=4)
def resnet(accumulation: int = 8) -> Trace:
    """Return the trace of ResNet-101 over two IPUs, which recomputes on the first."""
    program = replace(day03_program(), recomputation=Recomputation.PIPELINE)
    return Trace(profile_program(replace(program, batching=replace(program.batching, accumulation=accumulation))))


class TestPasses:
    @settings(max_examples=40)
    @given(PROFILES)
    def test_any_profile_gives_a_sound_trace(self, profile: Profile) -> None:
        Trace(profile).require_sound()

    def test_the_threads_are_the_resources_and_the_process_is_the_program(self) -> None:
        trace = Trace(pipeline_profile())
        assert list(trace.threads.values()) == ["loader", "host", "IPU 0", "IPU 1"]
        (process,) = [event for event in trace.of("M") if event["name"] == "process_name"]
        assert process["args"] == {"name": "resnet101 (modelled on POD4)"}
        for name in ("IPU 0", "IPU 1"):
            total = sum(event["dur"] for event in trace.on(name))
            assert total == pytest.approx(1e6 * trace.profile.device_seconds_per_call, abs=0.1)

    def test_times_are_microseconds_and_what_stands_for_several_says_so(self) -> None:
        (forward,) = [event for event in Trace(inference_profile()).of("X") if event["cat"] == "forward"]
        # 1,000 cycles at 1.33 GHz, in whole nanoseconds.
        assert forward["dur"] == pytest.approx(1000 / 1330, abs=0.0005)
        assert (forward["name"], forward["args"]) == ("forward 1", {"micro-batch": 1})
        spans = Trace(pipeline_profile(accumulation=24)).of("X")
        repeated = {event["name"] for event in spans if event["args"].get("repeats") == 21}
        assert {"forward x 21", "recompute + backward x 21", "backward x 21"} <= repeated

    def test_every_micro_batch_of_two_device_iterations_is_an_event_with_its_number(self) -> None:
        traces = [Trace(pipeline_profile(updates=updates)).on("IPU 1") for updates in (1, 2)]
        kinds = ("forward", "backward", "update")
        once, twice = ([event for event in events if event["cat"] in kinds] for events in traces)
        numbers = [event["args"]["micro-batch"] for event in twice if event["cat"] == "forward"]
        assert numbers == [*range(1, 17)]
        assert [event["cat"] for event in twice] == 2 * [event["cat"] for event in once]
        assert [event["dur"] for event in twice] == pytest.approx(2 * [event["dur"] for event in once], abs=0.002)

    def test_a_recomputation_is_one_pass_with_what_follows_it_at_once(self) -> None:
        one = Span("IPU 0", "recompute", 1.0, 2.0, stage=0, micro_batch=3)
        two = Span("IPU 0", "backward", 3.0, 4.0, stage=0, micro_batch=3)
        (both,) = passes((one, two))
        assert (both.kind, both.start, both.end) == ("backward", 1.0, 7.0)
        assert list(passes((one, replace(two, micro_batch=4)))) == [one, replace(two, micro_batch=4)]
        assert list(passes((one,))) == [one]


class TestOps:
    def test_each_ipu_has_a_thread_of_ops_in_the_order_of_execution_within_their_passes(self) -> None:
        """Recomputation and backward pass alternate there as they run."""
        resnet().require_sound()
        for memory in resnet().profile.memory:
            drawn = resnet().on(f"IPU {memory.ipu} ops")
            for phases in (("forward",), ("recompute", "backward")):
                shown = [(event["name"], event["cat"]) for event in drawn if event["cat"] in phases]
                steps = [(step.name, step.phase) for step in memory.liveness if step.phase in phases]
                assert shown[: len(steps)] == steps
            working = [event for event in resnet().on(f"IPU {memory.ipu}") if event["cat"] != "wait"]
            spans = [(event["ts"], event["ts"] + event["dur"]) for event in working]
            for op in drawn:
                assert any(begin <= op["ts"] + 2e-3 and op["ts"] + op["dur"] <= end + 2e-3 for begin, end in spans)
        # Every pass that is drawn alone has all its ops.
        profile = resnet().profile
        steps = Counter(step.phase for step in profile.memory[1].liveness)
        alone = Counter(s.kind for s in profile.timeline if s.ipu == 1 and s.repeats == 1)
        drawn = Counter(event["cat"] for event in resnet().on("IPU 1 ops"))
        assert drawn["forward"] == alone["forward"] * steps["forward"]

    def test_all_but_one_of_the_equal_micro_batches_are_blocks_so_that_the_size_does_not_grow(self) -> None:
        """Two stages: two cycles fill the pipeline and two drain it, and of those between only the first is drawn."""
        few, many = resnet(24), resnet(1752)
        drawn = [event["name"] for event in many.on("IPU 0") if event["cat"] == "forward"]
        assert drawn == ["forward 1", "forward 2", "forward 3", f"forward x {1752 - 3}"]
        ops = [event for event in many.on("IPU 0 ops") if event["cat"] != "update"]
        assert {event["args"]["micro-batch"] for event in ops} == {1, 2, 3, 1751, 1752}
        assert len(many.text) == pytest.approx(len(few.text), rel=0.2)
        assert len(many.text) < 20e6

    def test_an_op_says_what_it_works_on_at_first_and_memory_is_a_counter_that_reaches_the_peak(self) -> None:
        first = next(event for event in resnet().on("IPU 0 ops") if event["name"].endswith("conv1: convolution"))
        assert "float16[64, 3, 64, 64]" in first["args"]["operands"]
        assert first["args"]["FLOPs"] > 0
        assert 0 < first["args"]["share of the matrix units' peak"] < 1
        for memory in resnet().profile.memory:
            name = f"IPU {memory.ipu}: memory of the fullest tile"
            held = [event["args"]["KiB"] for event in resnet().of("C") if event["name"] == name]
            assert max(held) == pytest.approx(memory.max_tile_bytes / 1024, abs=1)
