"""Modelled results of benchmarks: what they are made of, as rows, records and a figure."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest

from ipu_course import engine
from ipu_course.programs.bench import changed, modelled_result, rows, settings_of_model, sweep
from ipu_course.programs.bench.figure import description, sweep_figure
from ipu_course.programs.bench.module import benchmark_module, example_micro_batch, make_optimiser, options_for
from ipu_course.programs.bench.report import csv_text, json_text, record, text_table
from ipu_course.programs.bench.results import Result, around
from ipu_course.programs.bench.settings import BenchSettings

TRAINING = settings_of_model("resnet18", image_size=32, batch_size=2, gradient_accumulation=8)
INFERENCE = settings_of_model("resnet18", training=False, image_size=32, batch_size=2, data="synthetic")
SPLIT = {"shards": 2, "pipeline": True, "pipeline_splits": ("layer3",)}


def result(settings: BenchSettings) -> Result:
    found = modelled_result(settings)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replicas": 2, **SPLIT, "recomputation": True, "half_partials": True},
        {"precision": "16.32", "eight_bit_io": True, "optimiser": "rmsprop", "variable_offloading": True},
        {**SPLIT, "pipeline": False, "stable_norm": True, "available_memory_proportion": 0.2},
    ],
)
def test_a_result_is_that_of_the_poptorch_program(changes: dict[str, Any]) -> None:
    """Sharing one capture between benchmarks must not change any of them."""
    settings = changed(TRAINING, device_iterations=3, **changes)
    module = benchmark_module(settings, "meta")
    profile = engine.profile_module(
        module, example_micro_batch(settings), options_for(settings), make_optimiser(settings, module)
    )
    found = result(settings)
    assert profile is not None
    assert found.profile.call_seconds == profile.call_seconds
    assert found.profile.samples_per_call == settings.images_per_step == profile.samples_per_call
    assert found.profile.memory.max_tile_bytes == profile.memory.max_tile_bytes


class TestSteps:
    def test_the_first_step_includes_the_start_and_is_left_out(self) -> None:
        found = result(TRAINING)
        seconds = found.profile.call_seconds
        assert len(found.step_rates) == TRAINING.repeat == 10
        assert found.step_rates[0] == pytest.approx(TRAINING.images_per_step / (seconds + found.start_seconds))
        assert set(found.step_rates[1:]) == {TRAINING.images_per_step / seconds}
        assert found.images_per_second == pytest.approx(TRAINING.images_per_step / seconds)
        assert found.step_rates[0] < found.images_per_second

    def test_the_start_sends_at_least_the_weights(self) -> None:
        # ResNet-18 has 11.69 million parameters of 2 bytes; the link of an M2000 takes 14.55 GB/s (row M4).
        assert result(INFERENCE).start_seconds > 11.69e6 * 2 / 14.55e9

    def test_one_step_only_is_no_average(self) -> None:
        found = result(changed(TRAINING, repeat=1))
        assert found.images_per_second == found.step_rates[0]


class TestLatency:
    def test_it_is_a_call_of_one_batch(self) -> None:
        found, one = result(INFERENCE), result(changed(INFERENCE, device_iterations=1))
        assert found.latency_seconds == one.profile.call_seconds == one.latency_seconds
        assert found.latency_device_seconds == one.profile.device_seconds_per_call < one.profile.call_seconds
        # A batch's share of a long call is shorter: it is not charged with the call.
        assert found.latency_seconds > found.profile.call_seconds / INFERENCE.device_iterations

    def test_in_a_pipeline_it_is_a_batch_for_each_stage(self) -> None:
        found = result(changed(INFERENCE, **SPLIT))
        assert found.latency_seconds == result(changed(INFERENCE, **SPLIT, device_iterations=2)).profile.call_seconds

    def test_training_has_none(self) -> None:
        assert result(TRAINING).latency_seconds is None


class TestLoader:
    def test_it_has_to_give_what_the_ipus_take(self) -> None:
        found = result(changed(TRAINING, eight_bit_io=True))
        assert found.loader_images_per_second == found.images_per_second
        assert found.loader_bytes_per_second == pytest.approx(3 * 32 * 32 * found.images_per_second)

    def test_synthetic_data_need_none(self) -> None:
        assert result(INFERENCE).loader_images_per_second == 0.0
        assert result(changed(INFERENCE, data="generated")).loader_images_per_second > 0


class TestMemory:
    def test_what_does_not_fit_says_what_helps_and_what_it_would_do(self) -> None:
        found = result(settings_of_model("resnet18", image_size=64, batch_size=512))
        assert found.verdict == "does not fit"
        assert not found.is_sure_to_fit
        assert found.tile_kib > found.tile_limit_kib == 624
        assert found.remedies
        (row,) = rows([found])
        assert row["fits"] == "no"
        assert str(row["images/s"]) == f"({found.images_per_second:,.0f})"

    def test_what_fits_needs_no_advice(self) -> None:
        assert result(TRAINING).is_sure_to_fit
        assert result(TRAINING).remedies == ()


class TestReplicas:
    def test_replicas_of_one_instance_or_several_make_the_same_rate(self) -> None:
        together = result(changed(TRAINING, replicas=4))
        apart = result(changed(TRAINING, replicas=4, instances=4))
        assert apart.profile.samples_per_call == together.profile.samples_per_call == 64
        assert apart.images_per_second == pytest.approx(together.images_per_second, rel=0.05)

    def test_they_scale_at_most_with_their_number(self) -> None:
        one, four = result(TRAINING), result(changed(TRAINING, replicas=4))
        assert one.images_per_second < four.images_per_second < 4 * one.images_per_second


def test_a_sweep_has_a_result_for_each_batch_size() -> None:
    found = sweep(INFERENCE, (1, 2, 4))
    assert [each.settings.batch_size for each in found] == [1, 2, 4]
    rates = [each.images_per_second for each in found]
    assert rates == sorted(rates)  # a larger batch gives the same tiles more to do at once
    assert around(6) == (1, 3, 6, 12)


def test_without_an_ipu_model_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert modelled_result(TRAINING) is None
    assert sweep(TRAINING) == ()
    assert not engine.machine_ipus("POD16")


class TestOutput:
    def test_rows_are_a_table_with_numbers_to_the_right(self) -> None:
        head, rule, first, second = text_table(rows(sweep(INFERENCE, (1, 16)))).splitlines()
        end = head.index("batch") + len("batch")
        assert (first[:end][-2:], second[:end][-2:]) == (" 1", "16")
        assert set(rule) == {"-"}

    def test_a_record_says_what_is_modelled_and_its_units(self) -> None:
        found = result(TRAINING)
        (read,) = json.loads(json_text([record(found)]))
        assert read["settings"]["batch_size"] == 2
        assert read["modelled"]["images_per_second"] == found.images_per_second
        assert read["modelled"]["images_per_second_of_each_step"] == list(found.step_rates)
        assert read["modelled"]["fits"] == "fits"

    def test_csv_has_a_line_for_each_result(self) -> None:
        found = sweep(INFERENCE, (1, 2))
        lines = list(csv.DictReader(io.StringIO(csv_text([record(each) for each in found]))))
        assert [line["settings.batch_size"] for line in lines] == ["1", "2"]
        assert [float(line["modelled.images_per_second"]) for line in lines] == [e.images_per_second for e in found]

    def test_the_figure_has_a_panel_for_each_quantity(self) -> None:
        found = sweep(INFERENCE, (1, 2))
        panels = sweep_figure(found, "a sweep").axes
        assert [axes.get_ylabel() for axes in panels] == ["images/s", "latency, ms a batch", "KiB on the fullest tile"]
        assert np.asarray(panels[0].lines[0].get_ydata()).tolist() == [each.images_per_second for each in found]
        assert f"1: {found[0].images_per_second:,.0f} images/s" in description(found)
        assert len(sweep_figure([result(TRAINING)], "training").axes) == 2

    def test_no_results_are_no_figure(self) -> None:
        with pytest.raises(ValueError, match="no results"):
            sweep_figure([], "nothing")
