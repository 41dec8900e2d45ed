"""Lesson 08: the exercises' limits follow from their numbers, and what the views show is what the profiles say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offload_support import ELEMENTS, one_weight

import poptorch
from ipu_course import engine
from ipu_course.checks import letting_errors_through
from ipu_course.lessons.optimiser_offload import views as offload_view
from ipu_course.lessons.optimiser_offload.checks import check_bytes, check_options, check_rare_copies
from ipu_course.lessons.optimiser_offload.views import copies_share, show_places, state_bytes


@pytest.fixture(scope="module")
def modelled() -> engine.ModelledModule:
    return one_weight()


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(tmp_path / "progress.json"))


class TestExercises:
    def test_the_smallest_accumulation_is_the_only_right_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 40 / (4 m + 48) <= 1 / 5 from m = 38 on.
        assert min(m for m in range(1, 100) if 4 * m + 48 >= 40 * 5) == 38
        for m in range(1, 100):
            check_rare_copies(m)
            assert (": correct." in capsys.readouterr().out) == (m == 38)

    @pytest.mark.parametrize(("bytes_off_chip", "moved"), [(6, 120), (6.0, 120.0)])
    def test_numbers_of_either_kind_are_right(
        self, bytes_off_chip: float, moved: float, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check_bytes(bytes_off_chip, moved)
        assert ": correct." in capsys.readouterr().out

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers())))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            check_bytes(answer, 1)
            check_bytes(6, answer)
            check_rare_copies(answer)
            check_options(answer)

    def test_what_the_third_exercise_accepts_is_what_the_model_shards(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
        options = poptorch.Options().replicationFactor(4)
        options.Training.gradientAccumulation(16)
        options.TensorLocations.setOptimizerLocation(settings)
        check_options(options)
        assert ": correct." in capsys.readouterr().out
        # Two moments of 4 bytes, a quarter of the elements each.
        assert one_weight(options).profile().memory.off_chip_bytes == 2 * 4 * ELEMENTS / 4


class TestStateBytes:
    def test_tensors_are_counted_and_steps_are_not(self) -> None:
        states = {
            "Accl1___a": torch.zeros(10, dtype=torch.float16),
            "Accl2___a": torch.zeros(10),
            "Step___a": torch.zeros(()),
        }
        assert state_bytes(states, 10) == (2, 6.0)

    def test_no_state_is_none(self) -> None:
        assert state_bytes({}, 10) == (0, 0.0)


class TestViews:
    def test_the_share_is_that_of_the_profile(self, modelled: engine.ModelledModule) -> None:
        profile = modelled.profile(optimiser_off_chip=True)
        share = copies_share(profile)
        seconds = sum(span.seconds for span in profile.timeline if span.kind == "offload")
        assert share == pytest.approx(100 * seconds / profile.device_seconds_per_call, rel=0.05)
        assert share > 0

    def test_without_a_model_each_says_so_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert copies_share(None) is None
        show_places({"on chip": None, "off chip": None})
        offload_view.show_accumulations(None, (3, 8))
        offload_view.show_sharding(None, (1, 2), "POD16")
        assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 3

    def test_places_sum_up_what_leaves_the_tiles(
        self, modelled: engine.ModelledModule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows: list[dict[str, object]] = []
        monkeypatch.setattr(offload_view.show, "table", lambda given, index: rows.extend(given))
        monkeypatch.setattr(offload_view.show, "figure", lambda *_: None)
        show_places({"on": modelled.profile(), "off": modelled.profile(optimiser_off_chip=True)})
        assert [row["off chip"] for row in rows] == ["0 MB", "0 MB"]  # 131,072 bytes
        assert rows[0]["copies"] == "0%" != rows[1]["copies"]
