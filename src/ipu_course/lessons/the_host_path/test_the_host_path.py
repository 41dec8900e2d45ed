"""Lesson 15: the settings of the host path, the rule for I/O tiles, counted compilations, and mallocs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lesson_words import notes, text

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.the_host_path import allocators, compile_times
from ipu_course.lessons.the_host_path.allocators import SYSTEM, allocator_in_maps, find_allocators, time_allocation
from ipu_course.lessons.the_host_path.compilations import (
    Scaled,
    count_compilations,
    programs_in,
    small_land_cover,
)
from ipu_course.lessons.the_host_path.compile_times import PROGRAMS, fitted_seconds
from ipu_course.lessons.the_host_path.exercises import (
    BOUND_MS,
    IO_TILES,
    TILE_CASES,
    io_tiles_needed,
    path_step,
)
from ipu_course.lessons.the_host_path.explorer import PATHS
from ipu_course.lessons.the_host_path.land_cover import (
    BYTES,
    NUMBERS,
    SCORES,
    TILE_BYTES,
    TUNED,
    HostPath,
    PixelClassifier,
    micro_batch_bytes,
    profile_path,
    step_parts,
)
from ipu_course.lessons.the_host_path.replicas import replicated_step
from ipu_course.lessons.the_host_path.step_lanes import (
    HOST,
    IPU,
    LINK_LANE,
    describe_lanes,
    lane_bars,
    step_in_the_middle,
)
from ipu_course.models import WithLoss
from ipu_course.published import published_figures
from ipu_model.predict.calibration import calibrated

FOLDER = Path(__file__).parent
SETTINGS = [HostPath(), HostPath(3), HostPath(1, 64, BYTES), HostPath(3, 64, BYTES), HostPath(3, 128, SCORES)]


class TestSteps:
    @pytest.mark.parametrize("path", SETTINGS, ids=str)
    def test_the_picture_has_the_model_s_step(self, path: HostPath) -> None:
        """A call of 16 is 16 steps of the middle; with overlap, the first and the last micro-batch are alone."""
        parts = step_parts(path)
        middle = step_in_the_middle(parts, path.depth, path.io_tiles > 0)
        alone = step_in_the_middle(parts, path.depth, overlaps=False)
        expected = (14 * middle + 2 * alone) / 16 if path.io_tiles else middle
        assert path_step(path) == pytest.approx(expected, rel=0.01)

    @given(st.sampled_from(SETTINGS), st.integers(1, 6))
    def test_no_lane_does_two_things_at_a_time(self, path: HostPath, steps: int) -> None:
        bars = lane_bars(step_parts(path), path.depth, path.io_tiles > 0, steps)
        for lane in (HOST, LINK_LANE, IPU):
            own = sorted((bar.start, bar.end) for bar in bars if bar.lane == lane)
            assert all(before[1] <= after[0] + 1e-9 for before, after in zip(own, own[1:]))

    def test_images_arrive_before_they_are_computed_and_results_leave_afterwards(self) -> None:
        for path in SETTINGS:
            bars = lane_bars(step_parts(path), path.depth, path.io_tiles > 0, steps=6)
            ends = {(bar.what, bar.micro_batch): bar.end for bar in bars}
            for bar in bars:
                needed = {"in": "copy", "compute": "in", "out": "compute"}.get(bar.what)
                assert bar.start >= ends.get((needed or "", bar.micro_batch), 0.0) - 1e-9

    def test_only_marked_programs_overlap(self) -> None:
        assert profile_path(HostPath(3, 64, BYTES)).program.overlaps_input  # type: ignore[union-attr]
        assert not profile_path(HostPath(3, 64, BYTES), overlaps=False).program.overlaps_input  # type: ignore[union-attr]

    def test_results_are_those_of_plain_pytorch(self) -> None:
        network, images = small_land_cover(), torch.randn(2, 12, 8, 8)
        for results, dtype in ((BYTES, torch.uint8), (NUMBERS, torch.int32)):
            found = PixelClassifier(network, results)(images)
            assert found.dtype == dtype
            assert torch.equal(found.long(), network(images).argmax(1))

    def test_the_description_has_the_numbers(self) -> None:
        assert "computes for 7.0 ms, one after another" in describe_lanes(HostPath())
        assert "at the same time" in describe_lanes(HostPath(3, 64, BYTES))


class TestTiles:
    @pytest.mark.parametrize(("results", "tiles"), [(BYTES, 64), (NUMBERS, 64), (SCORES, 128)])
    def test_the_rule_is_what_the_model_needs(self, results: str, tiles: int) -> None:
        """The corrected rule gives the smallest power of two whose I/O tiles have room."""
        assert io_tiles_needed(16, micro_batch_bytes(results) // 16) == tiles
        assert engine.memory_verdict(profile_path(HostPath(3, tiles, results))) == "fits"
        assert engine.memory_verdict(profile_path(HostPath(3, tiles // 2, results))) == "does not fit"

    def test_cases_tell_every_limit(self) -> None:
        assert {io_tiles_needed(*case) for case in TILE_CASES} == {32, 64, 128, None}

    @given(st.integers(1, 64), st.integers(1, 10**7))
    def test_what_it_gives_holds_the_data_and_half_of_it_does_not(self, samples: int, size: int) -> None:
        tiles = io_tiles_needed(samples, size)
        needed = 1.05 * samples * size / TILE_BYTES
        assert needed > 128 if tiles is None else tiles >= needed and (tiles == 32 or tiles / 2 < needed)

    def test_text_is_no_answer(self) -> None:
        with letting_errors_through():
            assert judge(IO_TILES, [lambda samples, size: "many"]).correct is False


class TestBest:
    def test_all_settings_are_enumerated(self) -> None:
        """The instructor's notes: 46 tiles are best, 44 and 42 are too close to call; of the powers of two, 64."""
        steps = {tiles: HostPath(3, tiles, BYTES) for tiles in range(32, 193, 2)}
        fitting = {
            tiles: path_step(path)
            for tiles, path in steps.items()
            if engine.memory_verdict(profile_path(path)) == "fits"
        }
        best = min(fitting, key=fitting.__getitem__)
        assert best == 46
        for tiles in (42, 44):
            assert engine.memory_verdict(profile_path(steps[tiles])) == "too close to call"
        assert f"46 tiles, with {fitting[46]:.2f} ms" in notes("the_host_path")
        assert f"with 46 tiles, a step takes {fitting[46]:.2f} ms" in text("15")
        powers = {tiles: fitting[tiles] for tiles in (64, 128)}
        assert min(powers, key=powers.__getitem__) == 64
        assert f"{powers[64]:.2f} ms" in notes("the_host_path")

    def test_the_tuned_setting_is_the_explorer_s_best(self) -> None:
        paths = [HostPath(**state) for state in PATHS.states()]
        assert min((path for path in paths if engine.may_run(profile_path(path))), key=path_step) == TUNED

    def test_only_all_three_knobs_meet_the_bound(self) -> None:
        met = [
            (depth, tiles, results)
            for depth in (1, 3)
            for tiles in (0, 64, 128)
            for results in (SCORES, NUMBERS, BYTES)
            if path_step(HostPath(depth, tiles, results)) < BOUND_MS
        ]
        assert met == [(3, 64, BYTES)]


class TestText:
    def test_of_the_steps(self) -> None:
        words, parts = text("15"), step_parts(HostPath(3, 64, BYTES))
        first, deeper = path_step(HostPath()), path_step(HostPath(3))
        assert f"from {first:.1f} ms to about 8 ms" in words
        assert f"{first:.2f} - {deeper:.2f} ms" in words
        moved = parts.images_in + parts.results_out
        assert f"take {moved + parts.copy:.1f} ms with the copy and {moved:.1f} ms without it" in words
        assert f"computes for {parts.computing:.1f} ms in any case" in words
        assert 0.32 < step_parts(HostPath()).computing / first < 0.34

    def test_of_the_bytes(self) -> None:
        words = text("15")
        images = micro_batch_bytes(BYTES) - 16 * 256 * 256
        assert f"{images / 1e6:.0f} MB of images" in words
        assert f"{(micro_batch_bytes(SCORES) - images) / 1e6:.0f} MB of scores" in words
        assert f"16 images of {images / 16e6:.1f} MB" in words

    def test_of_the_error_band(self) -> None:
        band = profile_path(HostPath(3, 64, BYTES)).error_band
        assert f"{band.low} to {band.high} times" in text("15")

    def test_replicas_wait_for_each_other_only_without_prefetching(self) -> None:
        assert replicated_step(8, 0) > replicated_step(8, 1) + 5
        assert replicated_step(8, 3) == pytest.approx(replicated_step(4, 3), rel=0.01)


class TestCompilations:
    def test_the_fitted_line_is_the_model_s(self) -> None:
        constants = calibrated().compilation
        assert fitted_seconds(1, 0) == constants.seconds_per_ipu
        assert fitted_seconds(0, 1) == constants.seconds_per_layer

    def test_it_was_fitted_to_the_published_times(self) -> None:
        published = published_figures(FOLDER)
        for each in PROGRAMS:
            assert fitted_seconds(each.ipus, each.layers) == pytest.approx(published[each.key].value, rel=0.11)

    def test_the_figure_describes_every_program(self, capsys: pytest.CaptureFixture[str]) -> None:
        compile_times.show_compile_times()
        told = capsys.readouterr().out
        assert all(each.name in told for each in PROGRAMS)
        assert "41 derived [2]" in told

    def test_compilations_are_counted_while_the_body_runs(self) -> None:
        options = poptorch.Options().showCompilationProgressBar(False)
        with count_compilations() as found:
            poptorch.inferenceModel(small_land_cover(), options)(torch.zeros(2, 12, 8, 8))
        assert found.count == 1
        poptorch.inferenceModel(small_land_cover(), options)(torch.zeros(2, 12, 8, 8))
        assert found.count == 1

    @pytest.mark.parametrize(
        ("rate", "divisor", "made"), [(0.1, 255.0, 1), (0.2, 255.0, 1), (0.1, 256.0, 2)], ids=["same", "rate", "number"]
    )
    def test_a_cache_knows_what_the_lesson_says(self, rate: float, divisor: float, made: int, tmp_path: Path) -> None:
        for own_rate, own_divisor in ((0.1, 255.0), (rate, divisor)):
            network = WithLoss(Scaled(own_divisor))
            options = poptorch.Options().showCompilationProgressBar(False).enableExecutableCaching(str(tmp_path))
            optimizer = poptorch.optim.SGD(network.parameters(), lr=own_rate)
            model = poptorch.trainingModel(network, options, optimizer)
            model.compile(torch.zeros(4, 12, 8, 8), torch.zeros(4, dtype=torch.int64))
        assert programs_in(str(tmp_path)) == made


MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000002000-7f0000003000 r-xp 00000000 08:01 2 /usr/lib/{library}
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0 [stack]
"""


class TestAllocators:
    @pytest.mark.parametrize(
        ("library", "name"),
        [
            ("libjemalloc.so.2", "jemalloc"),
            ("libtcmalloc_minimal.so.4", "tcmalloc"),
            ("libtbbmalloc_proxy.so.2", "tbbmalloc"),
            ("libabsl_malloc_internal.so", SYSTEM),
        ],
    )
    def test_a_process_s_maps_tell_its_allocator(self, library: str, name: str) -> None:
        assert allocator_in_maps(MAPS.format(library=library)) == name

    def test_a_library_of_this_environment_is_found_with_what_it_needs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(allocators, "FOLDERS", (str(tmp_path),))
        monkeypatch.setattr(sys, "platform", "linux")
        for name in ("libtbbmalloc.so", "libtbbmalloc_proxy.so", "libtbbmalloc_proxy.so.2"):
            (tmp_path / name).touch()
        assert find_allocators()["tbbmalloc"] == f"{tmp_path}/libtbbmalloc.so:{tmp_path}/libtbbmalloc_proxy.so"

    def test_other_systems_have_no_ld_preload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        assert find_allocators() == {}

    def test_allocation_is_measured_in_another_process(self) -> None:
        run = time_allocation(dict(os.environ), runs=1)
        assert run is not None
        assert run.seconds > 0

    def test_a_process_that_does_not_start_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(allocators, "WORK", "raise SystemExit(127)\n")
        assert time_allocation(dict(os.environ), runs=1) is None

    def test_the_table_names_what_was_measured(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs: dict[str, Any] = {
            "one.so": allocators.AllocatorRun(0.25, "jemalloc"),
            "": allocators.AllocatorRun(0.5, SYSTEM),
        }
        monkeypatch.setattr(allocators, "find_allocators", lambda: {"jemalloc": "one.so", "tcmalloc": "broken.so"})
        monkeypatch.setattr(
            allocators, "time_allocation", lambda environment: runs.get(environment.get("LD_PRELOAD", "").split(":")[0])
        )
        monkeypatch.delenv("LD_PRELOAD", raising=False)
        allocators.show_allocators()
        told = capsys.readouterr().out
        assert "0.25 s" in told
        assert "did not start" in told
