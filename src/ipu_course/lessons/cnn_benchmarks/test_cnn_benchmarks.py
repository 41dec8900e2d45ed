"""Lesson 09: its exercises follow from the page and the model, and its text from what the model says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.cnn_benchmarks import (
    lesson,
    modelled,
    modelled_batches,
    show_batches,
    show_limits,
    show_machines,
    show_scored_blind,
    show_steps,
)
from ipu_course.lessons.cnn_benchmarks.batches import peak_flops, share_of_peak, step_averages
from ipu_course.lessons.cnn_benchmarks.command_lines import command_line_rows, option_value, printed_lines
from ipu_course.lessons.cnn_benchmarks.exercises import (
    BUDGET,
    LINES_OF_THE_PAGE,
    SimulatedRun,
    after_the_first,
    largest_within,
    mistaken_rates,
    modelled_ms,
    slow_ms,
)
from ipu_course.lessons.cnn_benchmarks.limits import limits_of
from ipu_course.lessons.cnn_benchmarks.published_rows import BLIND, ROWS
from ipu_course.programs.bench import Result, modelled_result, settings_of_model
from ipu_course.published_resnet50 import PUBLISHED_RATE, PUBLISHED_REPLICAS


@pytest.fixture(scope="module")
def small() -> Result:
    """A benchmark that is captured in no time."""
    small_settings = settings_of_model("resnet18", training=False, image_size=32, batch_size=2)
    result = modelled_result(small_settings, "small")
    assert result is not None
    return result


class TestMeasuring:
    def test_the_rate_is_that_of_the_written_times(self) -> None:
        # 16 + 16 + 16 + 8 images; loading takes 4 + 6 + 40 + 5 ms, the calls take 20 + 34 + 22 + 13 ms.
        run = SimulatedRun()
        assert after_the_first(run.call, run, run.clock) == pytest.approx(56 / 0.144)

    def test_every_mistake_gives_a_rate_of_its_own(self) -> None:
        run = SimulatedRun()
        rates = sorted([*mistaken_rates(), after_the_first(run.call, run, run.clock)])
        assert len(rates) == 10
        assert all(higher > 1.001 * lower for lower, higher in zip(rates, rates[1:]))


class TestBudget:
    def test_the_answers_follow_from_the_modelled_latencies(self) -> None:
        largest, safe = largest_within(modelled_ms), largest_within(slow_ms)
        assert judge(BUDGET, (largest, safe), modelled("resnet50-infer-generated")).correct
        assert modelled_ms(largest) <= 2 < modelled_ms(largest + 1)
        assert slow_ms(safe) <= 2 < slow_ms(safe + 1)

    def test_the_next_batch_is_too_close_to_call(self) -> None:
        # What the praise says: it misses the budget by less than the error band, whose other end would keep it.
        fast = modelled("resnet50-infer-generated", batch_size=7).profile.error_band.low
        assert fast * modelled_ms(largest_within(modelled_ms) + 1) < 2


class TestLines:
    def test_the_contradicting_lines_are_those_of_the_page(self) -> None:
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
        assert judge(LINES_OF_THE_PAGE, (contradicting, odd)).correct

    @given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.one_of(st.integers(), st.text()))))
    def test_no_answer_makes_the_check_raise(self, answer: object) -> None:
        with letting_errors_through():
            judge(LINES_OF_THE_PAGE, (answer, 5))
            judge(LINES_OF_THE_PAGE, ([5, 6], answer))

    @pytest.mark.parametrize("line", ["train.py --shards=4 --pipeline", "train.py --shards 4 --pipeline"])
    def test_values_stand_behind_a_space_or_an_equals_sign(self, line: str) -> None:
        assert option_value(line, "--shards") == "4"
        assert option_value(line, "--replicas") == "-"

    def test_rows_say_what_the_lines_print_and_not_what_the_course_takes(self) -> None:
        row = command_line_rows()[4]
        assert row["heading"] == "EfficientNet-B4 / Standard (Group Dim 1) / M2000"
        assert (row["--group-dim"], row["accumulation"], row["replicas"]) == ("16", "40", "1")
        assert printed_lines()[4].settings.group_dim == 1


class TestPublishedRows:
    def test_rates_and_blind_scores_are_those_of_the_validation(self) -> None:
        from published.rows import published

        rows = {row.id: row for row in published().rows}
        for batch, identity in zip((1, 4, 16, 64), ("blind.B4", "blind.B5", "blind.B6", "blind.B7")):
            assert rows[identity].value == lesson.published(f"c600_{batch}").value
            assert rows[identity].blind == BLIND[batch]
        assert rows["blind.B3"].value == lesson.published("alcf_bow16").value

    def test_derived_figures_follow_from_published_ones(self) -> None:
        low, high = (lesson.published(f"c600_{batch}").value for batch in (1, 64))
        assert lesson.published("gain_1_to_64").value == pytest.approx(high / low, abs=1e-3)
        assert lesson.published("mlperf_pod16").value == pytest.approx(PUBLISHED_RATE, abs=1)
        assert {row.letter: row.ipus for row in ROWS}["C"] == PUBLISHED_REPLICAS

    def test_the_largest_is_more_than_ten_times_the_smallest(self) -> None:
        rates = [lesson.published(row.key).value for row in ROWS]
        assert max(rates) > 10 * min(rates)


class TestSteps:
    def test_averages_are_those_of_the_printed_values(self, small: Result) -> None:
        averages = step_averages(small)
        values = small.step_rates
        assert averages["the first value"][0] == pytest.approx(values[0])
        assert averages["average of all 10 values"][0] == pytest.approx(sum(values) / 10)
        assert averages["average without the first"] == pytest.approx((small.images_per_second,) * 2)

    def test_seconds_count_the_first_step_in_full(self, small: Result) -> None:
        cached, compiled = step_averages(small)["all images divided by all seconds"]
        images, step = 10 * small.settings.images_per_step, small.profile.call_seconds
        assert cached == pytest.approx(images / (small.start_seconds + 10 * step))
        assert compiled == pytest.approx(images / (small.profile.compilation_seconds + small.start_seconds + 10 * step))


class TestRates:
    def test_the_peak_is_that_of_the_data_sheet(self, small: Result) -> None:
        # 64 products and sums a tile and cycle; the data sheet of the POD64 says 15.978 PFLOP/s for 64 IPUs.
        assert peak_flops(small) == 1472 * 1.33e9 * 128
        assert peak_flops(small) == pytest.approx(15.978e15 / 64, rel=0.01)


def test_without_a_model_every_view_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    nothing: Any = engine.NOT_MODELLED
    show_steps(nothing)
    show_batches(nothing, {})
    show_scored_blind(lesson, nothing)
    show_limits({"ResNet-50": nothing}, {"ResNet-50": nothing})
    show_machines([nothing])
    assert capsys.readouterr().out.splitlines() == [engine.NOT_HERE] * 5


class TestWhatTheTextSays:
    """Relations that the lesson states in words; its cells print the numbers."""

    def test_96_fits_and_is_slower_than_90(self) -> None:
        """As published of a C600: 90 images ran; 96 ran, too, but slower, and without I/O tiles only."""
        at_90, at_96 = modelled_batches("resnet50-infer-synthetic", (90, 96), machine="C600")
        assert at_90.verdict == at_96.verdict == "fits"
        assert at_96.images_per_second < at_90.images_per_second

    def test_batch_1_is_further_off_today_than_on_the_day(self) -> None:
        published = lesson.published("c600_1").value
        today = modelled("resnet50-infer-synthetic", machine="C600")
        assert today.images_per_second > BLIND[1] > published
        low, high = today.rate_band
        assert low < published / today.images_per_second < high

    @pytest.mark.parametrize(
        ("name", "eight_bit_io", "bottleneck"),
        [
            ("efficientnet-b0", True, "host link"),
            ("resnet50", True, "IPUs"),
            ("resnet50", False, "host link"),
            ("resnext101", True, "IPUs"),
        ],
    )
    def test_what_limits_if_sending_and_computing_overlap(self, name: str, eight_bit_io: bool, bottleneck: str) -> None:
        sent, alone = (
            {name: modelled(f"{name}-infer-generated", batch_size=16, eight_bit_io=eight_bit_io, data=data)}
            for data in ("generated", "synthetic")
        )
        (found,) = limits_of(sent, alone).values()
        assert found.bottleneck == bottleneck
        # One after the other: the times add up, so the rate is below both bounds.
        times = 1 / found.link_rate + 1 / found.alone.images_per_second
        assert found.sent.images_per_second == pytest.approx(1 / times, rel=0.02)

    def test_efficientnet_gives_most_images_and_uses_the_matrix_units_least(self) -> None:
        few, resnet50 = (
            modelled(f"{name}-infer-generated", batch_size=16, data="synthetic")
            for name in ("efficientnet-b0", "resnet50")
        )
        assert few.images_per_second > 2 * resnet50.images_per_second
        assert share_of_peak(few) < share_of_peak(resnet50)

    def test_what_64_ipus_lack_is_mostly_the_accumulation(self) -> None:
        first, last = modelled("resnet50-train-m2000"), modelled("resnet50-train-pod64")
        same = modelled("resnet50-train-pod64", gradient_accumulation=1024)
        assert first.settings.global_batch == last.settings.global_batch
        assert last.images_per_second < 15.5 * first.images_per_second
        assert 15.8 * first.images_per_second < same.images_per_second < 16 * first.images_per_second
