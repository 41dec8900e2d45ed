"""Lesson 09: the exercises follow from the page, the views from the results, and the text from what the model says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipu_course import engine
from ipu_course.checks import letting_errors_through
from ipu_course.lessons.cnn_benchmarks.batches import (
    peak_flops,
    rate_band,
    share_of_peak,
    show_batches,
    show_fit,
    show_latencies,
    show_steps,
    step_averages,
)
from ipu_course.lessons.cnn_benchmarks.checks import PRINTED, check_budget, check_lines, check_throughput
from ipu_course.lessons.cnn_benchmarks.rates import (
    command_line_rows,
    full_pipeline,
    option_value,
    show_machines,
    show_networks,
    show_sent,
)
from ipu_course.programs.bench import Result, changed, configuration, modelled_result, settings_of_model
from ipu_course.programs.bench.page import Configuration, benchmark_page


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(tmp_path / "progress.json"))


def modelled(name: str, **changes: Any) -> Result:
    """The result of a configuration of the page with some settings changed."""
    result = modelled_result(changed(configuration(name).settings, **changes), name)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def small() -> Result:
    """A benchmark that is captured in no time."""
    small_settings = settings_of_model("resnet18", training=False, image_size=32, batch_size=2)
    result = modelled_result(small_settings, "small")
    assert result is not None
    return result


@pytest.fixture(scope="module")
def resnet50() -> dict[int, Result]:
    """ResNet-50 on one IPU with synthetic data, by batch size."""
    return {batch: modelled("resnet50-infer-synthetic", batch_size=batch) for batch in (4, 16, 90, 96, 100, 112)}


def printed_lines() -> list[Configuration]:
    """The training lines that the page prints in full, as the lesson numbers them."""
    return [
        each for each in benchmark_page().configurations
        if each.settings.training and each.settings.machine != "POD64"
    ]  # fmt: skip


class TestExercises:
    def test_one_throughput_is_right(self, capsys: pytest.CaptureFixture[str]) -> None:
        # Averages of 1,200, 1,200, 1,180 and 1,220: the first value of each is far below all others.
        assert all(values[0] < min(values[1:]) / 3 for values in PRINTED.values())
        for throughput in range(4000, 5600, 20):
            check_throughput(throughput)
            assert (": correct." in capsys.readouterr().out) == (throughput == 4800)

    def test_the_largest_batch_within_the_budget_is_the_only_right_one(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        within = [batch for batch in range(1, 100) if 0.7 + 0.3 + (0.05 + 0.03) * batch <= 2]
        assert max(within) == 12
        for batch in range(1, 100):
            check_budget(batch, 1e3 * batch / (1 + 0.08 * batch))
            assert (": correct." in capsys.readouterr().out) == (batch == 12)

    def test_the_contradicting_lines_are_those_of_the_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = printed_lines()
        contradicting = [
            number
            for number, each in enumerate(lines, 1)
            if "Group Dim" in each.heading
            and f"Group Dim {option_value(each.command_line, '--group-dim')})" not in each.heading
        ]
        batches: dict[str, list[int]] = {}
        for each in lines:
            batches.setdefault(each.settings.model, []).append(each.settings.global_batch)
        lonely = {model: min(each, key=each.count) for model, each in batches.items() if len(set(each)) > 1}
        (odd,) = [
            number
            for number, each in enumerate(lines, 1)
            if each.settings.global_batch == lonely.get(each.settings.model)
        ]
        check_lines(contradicting, odd)
        assert ": correct." in capsys.readouterr().out

    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.one_of(st.integers(), st.text()))))
    def test_no_answer_makes_a_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            check_throughput(answer)
            check_budget(answer, 1)
            check_budget(12, answer)
            check_lines(answer, 5)
            check_lines([5, 6], answer)


class TestSteps:
    def test_averages_are_those_of_the_printed_values(self, small: Result) -> None:
        averages = step_averages(small)
        values = small.step_rates
        assert averages["the first value"][0] == pytest.approx(values[0])
        assert averages["average of all 10 values"][0] == pytest.approx(sum(values) / 10)
        assert averages["average without the first"] == pytest.approx((small.images_per_second,) * 2)

    def test_seconds_count_the_first_step_in_full(self, small: Result) -> None:
        cached, compiled = step_averages(small)["all images by all seconds"]
        images, step = 10 * small.settings.images_per_step, small.profile.call_seconds
        assert cached == pytest.approx(images / (small.start_seconds + 10 * step))
        assert compiled == pytest.approx(images / (small.profile.compilation_seconds + small.start_seconds + 10 * step))

    def test_a_run_of_one_step_has_averages_too(self, small: Result) -> None:
        one = modelled_result(changed(small.settings, repeat=1))
        assert one is not None
        assert all(rate > 0 for pair in step_averages(one).values() for rate in pair)


class TestRates:
    def test_the_peak_is_that_of_the_data_sheet(self, small: Result) -> None:
        # 64 products and sums a tile and cycle; the data sheet of the POD64 says 15.978 PFLOP/s for 64 IPUs.
        assert peak_flops(small) == 1472 * 1.33e9 * 128
        assert peak_flops(small) == pytest.approx(15.978e15 / 64, rel=0.01)

    def test_a_band_of_times_is_turned_round_for_rates(self, small: Result) -> None:
        low, high = rate_band(small)
        assert low < small.images_per_second < high
        assert low * small.profile.error_band.high == pytest.approx(high * small.profile.error_band.low)

    @pytest.mark.parametrize(("accumulation", "expected"), [(1024, 1024 / 1030), (64, 64 / 70)])
    def test_a_pipeline_of_four_has_six_cycles_more(self, accumulation: int, expected: float) -> None:
        assert full_pipeline(accumulation, 4) == pytest.approx(expected)


class TestCommandLines:
    @pytest.mark.parametrize("line", ["train.py --shards=4 --pipeline", "train.py --shards 4 --pipeline"])
    def test_values_stand_behind_a_space_or_an_equals_sign(self, line: str) -> None:
        assert option_value(line, "--shards") == "4"
        assert option_value(line, "--replicas") == "-"

    def test_rows_say_what_the_lines_print_and_not_what_the_course_takes(self) -> None:
        row = command_line_rows(printed_lines())[4]
        assert row["heading"] == "EfficientNet-B4 / Standard (Group Dim 1) / M2000"
        assert (row["--group-dim"], row["accumulation"], row["replicas"]) == ("16", "40", "1")
        assert printed_lines()[4].settings.group_dim == 1


def test_without_a_model_every_view_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_steps(None)
    show_batches(())
    show_latencies((), 2)
    show_fit(())
    show_sent({"synthetic": None})
    show_machines((None, None))
    show_networks({"ResNet-50": None})
    assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 7


class TestWhatTheTextSays:
    """Relations that the lesson states in words; its cells print the numbers."""

    def test_two_milliseconds_lie_between_batch_4_and_16(self, resnet50: dict[int, Result]) -> None:
        assert (resnet50[4].latency_seconds or 0) < 0.002 < (resnet50[16].latency_seconds or 0)

    def test_a_batch_beyond_the_pages_largest_fits_and_is_slower(self, resnet50: dict[int, Result]) -> None:
        """As published of a C600: 90 images ran; 96 ran, too, but slower, and without I/O tiles only."""
        assert resnet50[90].verdict == resnet50[96].verdict == "fits"
        assert resnet50[96].images_per_second < resnet50[90].images_per_second
        exchange = {batch: resnet50[batch].profile.cycles[0].do_exchange / batch for batch in (90, 96)}
        assert exchange[96] > 1.05 * exchange[90]

    def test_batch_100_fits_but_gains_nothing_and_112_does_not_fit(self, resnet50: dict[int, Result]) -> None:
        assert (resnet50[100].verdict, resnet50[112].verdict) == ("fits", "does not fit")
        assert resnet50[100].images_per_second < 1.01 * resnet50[90].images_per_second

    def test_only_batch_1_has_a_note_on_its_band(self, resnet50: dict[int, Result]) -> None:
        assert any("little work at a time" in note for note in modelled("resnet50-infer-synthetic").profile.notes)
        assert resnet50[4].profile.notes == resnet50[90].profile.notes == ()

    def test_with_16_bits_sending_is_most_of_the_time(self) -> None:
        eight, sixteen = (modelled("resnet50-infer-generated", batch_size=64, eight_bit_io=on) for on in (True, False))
        assert eight.profile.shares["stream"] < 0.5 < sixteen.profile.shares["stream"]

    def test_what_64_ipus_lack_is_mostly_the_accumulation(self) -> None:
        small, large = modelled("resnet50-train-m2000"), modelled("resnet50-train-pod64")
        same = modelled("resnet50-train-pod64", gradient_accumulation=1024)
        assert small.settings.global_batch == large.settings.global_batch
        assert large.images_per_second < 15.5 * small.images_per_second
        assert 15.8 * small.images_per_second < same.images_per_second < 16 * small.images_per_second

    def test_efficientnet_gives_most_images_and_uses_the_ipu_least(self, resnet50: dict[int, Result]) -> None:
        standard, modified = (
            modelled("efficientnet-b0-infer-synthetic", batch_size=16, group_dim=dim, expand_ratio=ratio)
            for dim, ratio in ((1, 6), (16, 4))
        )
        assert standard.images_per_second > 2 * resnet50[16].images_per_second
        assert share_of_peak(standard) < share_of_peak(modified) < share_of_peak(resnet50[16])
        assert modified.images_per_second == pytest.approx(standard.images_per_second, rel=0.1)
        operations = modified.profile.flops_per_call / standard.profile.flops_per_call
        assert operations == pytest.approx(1.6, abs=0.06)
