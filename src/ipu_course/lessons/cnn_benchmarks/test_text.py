"""The figures in the text of lesson 09 are those of the model, of its constants, and of its validation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lesson_words import text

from ipu_course.figures.hardware import hardware
from ipu_course.lessons.cnn_benchmarks import lesson, modelled
from ipu_course.lessons.cnn_benchmarks.limits import limits_of
from ipu_course.programs.bench import configuration
from ipu_model.predict.calibration import constant_facts
from ipu_model.predict.hardware import system_named

VALIDATION = (Path(__file__).parents[4] / "docs" / "validation.md").read_text(encoding="utf-8")
TEXT = text("09")


def test_the_products_have_the_ipus_and_the_clocks_of_the_machines() -> None:
    clocks = {name: system_named(name).chip.clock_hz for name in ("C600", "M2000", "Bow-2000")}
    gc200 = f"{clocks['M2000'] / 1e9:g}"
    assert f"| C600 | card | 1 | {clocks['C600'] / 1e9:g} |" in TEXT
    assert f"| chip | 1 | {gc200}; {clocks['Bow-2000'] / 1e9:g} |" in TEXT
    machine, small, large = (system_named(name).ipus for name in ("M2000", "POD16", "POD64"))
    assert f"| machine | {machine} GC200 | {gc200} |" in TEXT
    assert f"| {small}, {large} GC200 | {gc200} |" in TEXT


def test_the_first_step_takes_nearly_all_of_the_run() -> None:
    run = modelled("resnet50-infer-synthetic")
    assert f"--batch-size {run.settings.batch_size} " in configuration("resnet50-infer-synthetic").command_line
    step = run.profile.call_seconds
    first = run.profile.compilation_seconds + run.start_seconds + step
    assert first / (first + (run.settings.repeat - 1) * step) > 0.99
    assert "one value of ten, although it took more than 99 % of the time" in TEXT


def test_the_errors_of_the_rows_scored_blind_are_those_of_the_validation() -> None:
    speed = re.search(r"off by ([\d.]+)% at the median, \d+% at worst, on (\d+) published rows of speed", VALIDATION)
    transformers = re.search(r"and by (\d+)\.\d% at the median, (\d+)% at worst, on 12 training programs", VALIDATION)
    assert speed
    assert transformers
    assert f"{speed[1]} % at the median of {speed[2]} such rows" in TEXT
    assert f"and {transformers[1]} %, at worst {transformers[2]} %, on twelve training runs of transformers" in TEXT


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_the_validation_leaves_out_what_poptorch_itself_needs_for_a_call(batch: int) -> None:
    row = re.search(rf"ResNet-50 inference, one C600, batch {batch} \|[^|]*\|[^|]*\| ([\d,]+) ", VALIDATION)
    assert row
    here = modelled("resnet50-infer-synthetic", machine="C600", batch_size=batch)
    seconds = here.profile.call_seconds - constant_facts()["host"]["call_seconds"].value
    assert here.profile.samples_per_call / seconds == pytest.approx(float(row[1].replace(",", "")), abs=1)
    assert lesson.published(f"c600_{batch}").value < here.images_per_second


def test_the_parts_of_a_call_s_cost_and_how_they_are_known() -> None:
    facts = constant_facts()
    poptorch_s, start = facts["host"]["call_seconds"], facts["stream"]["run_wait_seconds"]
    assert (poptorch_s.confidence, start.confidence) == ("estimated", "fitted")
    assert f"*estimated*, {1e3 * poptorch_s.value:.2f} ms for PopTorch" in TEXT
    assert f"*fitted* on another program's trace, {1e3 * start.value:.2f} ms for the IPU's start" in TEXT


def test_the_rates_of_the_host_links() -> None:
    sent, alone = (
        {"ResNet-50": modelled("resnet50-infer-generated", batch_size=16, eight_bit_io=True, data=data)}
        for data in ("generated", "synthetic")
    )
    (limits,) = limits_of(sent, alone).values()
    rate = limits.link_bytes_per_second / 1e9
    assert f"{rate:.2f} GB/s are four streams at {rate / 4:.1f} GB/s, *fitted* for one IPU" in TEXT
    assert constant_facts()["stream"]["ipu_bytes_per_second"].confidence == "fitted"
    told = re.search(r"The ([\d.]+) GB/s in lesson 00 come from a traffic test of an M2000", TEXT)
    assert told
    assert float(told[1]) == pytest.approx(hardware().host_bytes_per_second / 1e9, abs=0.051)
