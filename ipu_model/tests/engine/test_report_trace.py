"""The trace: events as chrome://tracing and Perfetto read them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from report_strategies import PROFILES
from report_support import inference_profile, pipeline_profile

from ipu_model.predict.profile import Profile
from ipu_model.report.trace import trace_json


def events(profile: Profile, phase: str) -> list[dict]:
    return [event for event in json.loads(trace_json(profile))["traceEvents"] if event["ph"] == phase]


def thread_names(profile: Profile) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events(profile, "M") if e["name"] == "thread_name"}


class TestSchema:
    @settings(max_examples=40)
    @given(PROFILES)
    def test_every_event_has_what_a_viewer_needs(self, profile: Profile) -> None:
        trace = json.loads(trace_json(profile))
        assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
        for event in trace["traceEvents"]:
            assert event["ph"] in ("M", "X")
            assert isinstance(event["name"], str)
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)
            assert isinstance(event["args"], dict)
            if event["ph"] == "X":
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                assert event["cat"] in [span.kind for span in profile.timeline]

    @settings(max_examples=40)
    @given(PROFILES)
    def test_events_are_in_the_order_of_time_and_never_overlap_on_a_thread(self, profile: Profile) -> None:
        spans = events(profile, "X")
        assert len(spans) == len(profile.timeline)
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(spans))
        for thread in {event["tid"] for event in spans}:
            own = [event for event in spans if event["tid"] == thread]
            # Whole nanoseconds: microseconds times 1000.
            assert all(round(1000 * (a["ts"] + a["dur"])) <= round(1000 * b["ts"]) for a, b in pairwise(own))

    @settings(max_examples=40)
    @given(PROFILES)
    def test_every_thread_has_a_name(self, profile: Profile) -> None:
        assert {event["tid"] for event in events(profile, "X")} == set(thread_names(profile))


class TestContents:
    def test_the_threads_are_the_resources_and_the_process_is_the_program(self) -> None:
        profile = pipeline_profile()
        assert list(thread_names(profile).values()) == ["loader", "host", "IPU 0", "IPU 1"]
        (process,) = [event for event in events(profile, "M") if event["name"] == "process_name"]
        assert process["args"] == {"name": "resnet101 (modelled on POD4)"}

    def test_times_are_microseconds(self) -> None:
        (forward,) = [event for event in events(inference_profile(), "X") if event["cat"] == "forward"]
        # 1,000 cycles at 1.33 GHz, in whole nanoseconds.
        assert forward["dur"] == pytest.approx(1000 / 1330, abs=0.0005)
        assert forward["name"] == "forward 1"
        assert forward["args"] == {"micro-batch": 0}

    def test_what_stands_for_several_says_so(self) -> None:
        spans = events(pipeline_profile(collapsed=True), "X")
        repeated = [event for event in spans if event["args"].get("repeats") == 6]
        assert {"forward x 6", "recompute x 6", "backward x 6"} <= {event["name"] for event in repeated}

    def test_the_spans_add_up_to_the_device_s_time(self) -> None:
        profile = pipeline_profile()
        for name in ("IPU 0", "IPU 1"):
            (thread,) = [tid for tid, known in thread_names(profile).items() if known == name]
            total = sum(event["dur"] for event in events(profile, "X") if event["tid"] == thread)
            assert total == pytest.approx(1e6 * profile.device_seconds_per_call, abs=0.1)
