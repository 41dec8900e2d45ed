"""Bands of throughput, and the words about what limits a program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_support import inference_profile, pipeline_profile

from ipu_model.predict.host import CallTime
from ipu_model.predict.profile import ErrorBand, Profile
from ipu_model.report.findings import device_range, end_to_end_range, explained_limit, first_iteration, verdict

TIMES = st.floats(1e-4, 10.0)


def timed(loader: float, host: float, device: float, overlaps: bool, band: ErrorBand) -> tuple[Profile, CallTime]:
    """Return a profile with the times that the model of the host gives, and these times."""
    call = CallTime(loader, host, device, overlaps)
    limited_by = "host loader" if call.waits_for_loader else "stage 0"
    profile = replace(
        inference_profile(), device_seconds_per_call=device, call_seconds=call.total,
        host_seconds_per_call=loader + host, limited_by=limited_by, error_band=band,
    )  # fmt: skip
    return profile, call


class TestBands:
    def test_a_slower_device_is_the_lower_end_of_the_device_s_band(self) -> None:
        profile = replace(pipeline_profile(), error_band=ErrorBand(0.8, 1.25))
        found = device_range(profile)
        assert found.low == pytest.approx(found.value * 0.8)
        assert found.high == pytest.approx(found.value * 1.25)

    @given(TIMES, TIMES, TIMES, st.booleans(), st.floats(0.3, 1.0), st.floats(1.0, 3.0))
    def test_end_to_end_it_is_what_the_model_of_the_host_makes_of_another_device_time(
        self, loader: float, host: float, device: float, overlaps: bool, low: float, high: float
    ) -> None:
        profile, call = timed(loader, host, device, overlaps, ErrorBand(low, high))
        found = end_to_end_range(profile)
        assert found.low == pytest.approx(1 / replace(call, device=device * high).total)
        assert found.high == pytest.approx(1 / replace(call, device=device * low).total)

    def test_a_program_that_waits_for_its_loader_has_no_band(self) -> None:
        found = end_to_end_range(pipeline_profile(overlaps=True, loader=0.9))
        assert found.low == found.value == found.high == pytest.approx(512 / 0.9)


class TestWords:
    def test_the_verdict_has_the_bytes_of_the_worst_tile(self) -> None:
        assert verdict(inference_profile()) == "fits: fullest tile 1,000 of 638,976 bytes (0.2 %), tile 0 of IPU 0"

    @pytest.mark.parametrize(
        "limit",
        ["host loader", "host call", "run start", "stream", "stage 3", "pipeline fill and flush", "weight update"],
    )
    def test_everything_that_limits_is_explained(self, limit: str) -> None:
        assert explained_limit(limit).endswith(".")
        assert limit not in ("stage 3",) or "Stage 3" in explained_limit(limit)

    def test_what_is_not_known_is_not_explained(self) -> None:
        assert explained_limit("the weather") == ""

    def test_one_iteration_is_a_part_only_if_there_are_several(self) -> None:
        profile = pipeline_profile()
        assert first_iteration(profile) is None
        several = replace(profile, device_iterations=4)
        assert first_iteration(several) == (0.0, profile.device_seconds_per_call / 4)
