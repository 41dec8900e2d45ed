"""Lesson 10: the exercises' limits follow from their numbers, and what the views show is what the profiles say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offload_support import one_weight

import poptorch
from ipu_course import engine
from ipu_course.checks import letting_errors_through
from ipu_course.lessons.data_parallelism import constant_batch, scaling, state_in_parts
from ipu_course.lessons.data_parallelism.checks import (
    ACCUMULATION,
    CHANGES,
    INSTANCES,
    ITERATIONS,
    LOCAL,
    MICRO_BATCH,
    check_changes,
    check_counts,
    check_third_run,
)
from ipu_course.lessons.data_parallelism.constant_batch import UpdateFit
from ipu_course.lessons.data_parallelism.explorer import loading_host
from ipu_course.published_resnet50 import PUBLISHED_RATE, PUBLISHED_REPLICAS, published_resnet50

REPLICAS = (1, 2, 4, 8, 16, 32, 64)


@pytest.fixture(scope="module")
def program() -> engine.ModelledModule:
    found = published_resnet50()
    assert found is not None
    return found


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a view shows: the last table's rows and the last figure's description."""
    seen: dict[str, Any] = {}
    for view in (scaling, constant_batch, state_in_parts):
        monkeypatch.setattr(view.show, "table", lambda rows, index=None: seen.update(rows=rows))
        monkeypatch.setattr(view.show, "figure", lambda figure, words: seen.update(figure=figure, words=words))
    return seen


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(tmp_path / "progress.json"))


class TestExercises:
    def test_poptorchs_own_loader_gives_the_rows_and_calls_that_are_right(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = poptorch.Options().deviceIterations(ITERATIONS).replicationFactor(LOCAL)
        options.Training.gradientAccumulation(ACCUMULATION)
        options.Distributed.configureProcessId(0, INSTANCES)
        images = range(1_281_167)
        loader = poptorch.DataLoader(options, images, batch_size=MICRO_BATCH)  # type: ignore[arg-type]  # a sequence
        check_counts(20 * 10 * 64, loader.combinedBatchSize, len(loader))
        assert ": correct." in capsys.readouterr().out

    def test_the_smallest_accumulation_is_the_only_right_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        # 12 / (10 G + 12) <= 1 / 10 from G = 11 on.
        assert min(count for count in range(1, 100) if 10 * count + 12 >= 12 * 10) == 11
        for count in range(1, 60):
            check_third_run(22, count)
            assert (": correct." in capsys.readouterr().out) == (count == 11)

    def test_every_other_change_has_a_hint(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in CHANGES:
            for other in set(CHANGES.values()) - {CHANGES[name]}:
                check_changes({**CHANGES, name: other})
                assert f"not yet. Program {name}: " in capsys.readouterr().out

    def test_an_open_program_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        check_changes({**CHANGES, "D": ...})
        assert "still to fill in: D" in capsys.readouterr().out
        check_changes(dict.fromkeys(CHANGES, ...))
        assert "not attempted yet" in capsys.readouterr().out

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers()), st.just({"A": [1]})))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            check_counts(answer, answer, answer)
            check_counts(12_800, answer, 1)
            check_counts(12_800, 1_600, answer)
            check_third_run(answer, 1)
            check_third_run(22, answer)
            check_changes(answer)


class TestUpdateFit:
    @given(
        st.floats(1e-4, 1), st.floats(0, 1), st.integers(1, 100), st.integers(1, 100), st.integers(1, 100)
    )  # fmt: skip
    def test_two_runs_on_a_line_give_every_third(self, m: float, u: float, one: int, more: int, third: int) -> None:
        fit = UpdateFit((one, one * m + u), (one + more, (one + more) * m + u))
        assert fit.seconds(third) == pytest.approx(third * m + u, rel=1e-6, abs=1e-9)

    @given(st.floats(1e-3, 1), st.floats(0, 1), st.sampled_from(REPLICAS))
    def test_efficiency_is_the_time_of_one_over_replicas_times_theirs(self, m: float, u: float, count: int) -> None:
        fit = UpdateFit((1, m + u), (2, 2 * m + u))
        expected = fit.seconds(64) / (count * fit.seconds(64 // count))
        assert fit.efficiency(count, 64) == pytest.approx(expected, rel=1e-6)

    def test_runs_with_the_same_accumulation_are_refused(self) -> None:
        with pytest.raises(ValueError, match="cannot be told apart"):
            UpdateFit((4, 1.0), (4, 2.0))

    def test_it_predicts_what_the_model_says(self, program: engine.ModelledModule) -> None:
        """The lesson's claim, within a hundredth: the model need not be a line, and is nearly one."""
        seconds = {
            count: program.profile(replicas=16, machine="POD16", gradient_accumulation=count).call_seconds
            for count in (1, 10, 20)
        }
        assert UpdateFit((10, seconds[10]), (20, seconds[20])).seconds(1) == pytest.approx(seconds[1], rel=0.01)


class TestThePublishedProgram:
    def test_modelled_and_published_rates_are_near(self, program: engine.ModelledModule) -> None:
        """MLPerf v1.1, POD16: 43.19 s for 1,281,167 images. docs/validation.md wants 8 %."""
        profile = program.profile(replicas=PUBLISHED_REPLICAS, machine="POD16")
        assert profile.samples_per_call == 3_200
        assert profile.samples_per_second == pytest.approx(PUBLISHED_RATE, rel=0.08)
        assert pytest.approx(0.1079, rel=0.001) == 3_200 / PUBLISHED_RATE  # the update that the lesson names


class TestViews:
    def test_a_point_of_the_curve_is_a_row(self, program: engine.ModelledModule, shown: dict[str, Any]) -> None:
        points = program.scaling((1, 16))
        scaling.show_scaling(points, (PUBLISHED_REPLICAS, PUBLISHED_RATE))
        assert [row["replicas"] for row in shown["rows"]] == [1, 16]
        assert shown["rows"][0]["efficiency"] == "100.0%"
        assert shown["rows"][1]["images a second"] == f"{points[1].samples_per_second:,.0f}"

    def test_code_for_exchange_with_more_replicas_fills_the_last_of_a_tile(
        self, program: engine.ModelledModule, shown: dict[str, Any]
    ) -> None:
        """The program ran with 16 and with 64 replicas (MLPerf v1.1), and leaves hardly any room."""
        scaling.show_scaling(program.scaling((1, 16, 32, 64)), (PUBLISHED_REPLICAS, PUBLISHED_RATE))
        assert [row["fits"] for row in shown["rows"]] == ["yes"] * 4
        few, many = (program.profile(replicas=count, machine="POD64").memory for count in (16, 64))
        assert few.max_tile_bytes < 0.98 * few.tile_bytes < many.max_tile_bytes < many.tile_bytes

    def test_hosts_feed_as_many_replicas_as_their_loaders_can(
        self, program: engine.ModelledModule, shown: dict[str, Any]
    ) -> None:
        """2 ms an image: 8 workers load 4,000 a second, 64 cores 32,000; a replica takes a little more than 2,000."""
        replicas = (1, 2, 4, 16, 32, 64)
        ways = {"1": (1, None), "instances": (1, 2), "hosts": (4, 2)}
        hosts = {
            name: program.scaling(replicas, host=loading_host(8, count), replicas_per_instance=each)
            for name, (count, each) in ways.items()
        }
        scaling.show_hosts(hosts, program.scaling(replicas))
        assert [row["feeds up to"] for row in shown["rows"]] == ["1 replica", "16 replicas", "64 replicas"]
        assert [row["64: limited by"] for row in shown["rows"]] == ["host loader", "host loader", "IPUs"]
        assert [round(points[-1].samples_per_second) for points in hosts.values()][:2] == [4_000, 32_000]

    def test_a_constant_batch_costs_efficiency(self, program: engine.ModelledModule, shown: dict[str, Any]) -> None:
        constant_batch.show_constant_batch(program, (1, 4, 64), 64, UpdateFit((1, 2.0), (2, 3.0)))
        rows = shown["rows"]
        assert [row["accumulation"] for row in rows] == [64, 16, 1]
        # m = u = 1: of 64 replicas with one micro-batch each, T(64) / (64 T(1)) = 65 / 128.
        assert rows[-1]["Amdahl's law"] == "51%"
        efficiencies = [int(row["efficiency"].rstrip("%")) for row in rows]
        assert efficiencies == sorted(efficiencies, reverse=True)
        assert efficiencies[-1] < 80

    def test_parts_of_the_state_are_smaller_with_more_replicas(
        self, program: engine.ModelledModule, shown: dict[str, Any]
    ) -> None:
        state_in_parts.show_state_in_parts(program, (1, 4, 16), "POD16")
        rows = shown["rows"]
        assert len({row["state, whole"] for row in rows}) == 1
        parts = [float(row["state, in parts"].split()[0]) for row in rows]
        # Parts of 1 / R, and tensors below 8,192 elements stay whole: these are 0.2 % of all.
        assert parts[1] == pytest.approx(parts[0] / 4, rel=0.1)
        assert parts[2] == pytest.approx(parts[0] / 16, rel=0.1)

    def test_the_share_of_an_update_is_what_grows_when_it_has_fewer_micro_batches(self) -> None:
        module = one_weight()
        many, few = (module.profile(replicas=4, gradient_accumulation=count) for count in (64, 1))
        assert scaling.update_share(few) > scaling.update_share(many) > 0

    def test_without_a_model_each_says_so_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        scaling.show_scaling((), (16, 1.0))
        scaling.show_hosts({}, ())
        constant_batch.show_constant_batch(None, (1, 2), 64, None)
        state_in_parts.show_state_in_parts(None, (1, 2), "POD16")
        assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 4

    def test_a_refused_point_has_a_row_too(self, shown: dict[str, Any]) -> None:
        points = one_weight().scaling((1, 3), constant_global_batch=True)  # accumulation 4 is no multiple of 3
        scaling.show_scaling(points, (1, 1.0))
        assert shown["rows"][1]["images a second"] == "refused"
        assert torch.tensor([point.replicas for point in points]).tolist() == [1, 3]
