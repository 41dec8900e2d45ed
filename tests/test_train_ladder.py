"""``python -m ipu_course train --ladder``: the ladder modelled beside its published results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from train_support import profile

from ipu_course.data_folder import FOLDER_VARIABLE, data_file
from ipu_course.errors import DataError
from ipu_course.ladder import PUBLISHED_FILE, ModelledStep, climb, published_ladder
from ipu_course.programs.command_line import main
from ipu_course.programs.train.ladder_table import ladder_table
from ipu_course.programs.train.settings import check_settings
from ipu_model.predict.calibration import constant_facts

# day03-resnet101.md: the epoch times as printed, whole seconds.
PUBLISHED_SECONDS = {
    "half precision": 52,
    "gradient accumulation 8": 46,
    "device iterations 4": 45,
    "8-bit I/O": 13,
    "asynchronous loading": 8,
}


@pytest.fixture(scope="module")
def steps() -> tuple[ModelledStep, ...]:
    return climb()


def modelled(call_seconds: float = 0.2, tile_kib: float = 500, step: int = 1) -> ModelledStep:
    return ModelledStep(published_ladder().steps[step], profile(call_seconds, tile_kib), 260)


class TestPublished:
    def test_epochs_last_as_long_as_published(self) -> None:
        found = {step.name: step.epoch_seconds for step in published_ladder().steps}
        assert found.pop("base, 32-bit") is None
        # The progress bars cut seconds off, they do not round.
        assert {name: int(seconds or 0) for name, seconds in found.items()} == PUBLISHED_SECONDS

    def test_every_step_is_a_program_that_can_run(self) -> None:
        for step in published_ladder().steps:
            check_settings(step.settings)
            if step.calls_per_epoch is not None:
                assert step.settings.calls_per_epoch(published_ladder().training_images) == step.calls_per_epoch

    def test_each_step_changes_one_thing(self) -> None:
        settings = [step.settings for step in published_ladder().steps]
        for before, after in zip(settings, settings[1:]):
            changed = [name for name in vars(before) if getattr(before, name) != getattr(after, name)]
            assert len(changed) == 1

    def test_every_number_has_its_source(self) -> None:
        ladder = published_ladder()
        assert all(step.source for step in ladder.steps)
        assert set(ladder.host.fitted_on) == set(PUBLISHED_SECONDS)
        assert "fitted on the five published epochs" in ladder.host.source

    def test_the_fitted_host_leaves_each_step_time_for_the_device(self) -> None:
        ladder = published_ladder()
        for step in ladder.steps:
            if step.seconds_per_call is None or step.settings.async_dataloader:
                continue
            eight_bit = step.settings.eight_bit_io
            per_image = ladder.host.seconds_per_eight_bit_image if eight_bit else ladder.host.seconds_per_image
            loading = step.settings.images_per_call * per_image + ladder.host.seconds_per_call
            micro_batches = step.settings.gradient_accumulation * step.settings.device_iterations
            # day03-resnet101.md: 6.45 M cycles of 1.33 GHz for a micro-batch, 4.9 ms, with profiling on.
            assert 0.003 < (step.seconds_per_call - loading) / micro_batches < 0.007

    def test_a_damaged_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        content = json.loads(data_file(PUBLISHED_FILE).read_text(encoding="utf-8"))
        del content["steps"][2]["name"]
        (tmp_path / PUBLISHED_FILE).write_text(json.dumps(content), encoding="utf-8")
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
        published_ladder.cache_clear()
        try:
            with pytest.raises(DataError, match="is damaged"):
                published_ladder()
        finally:
            published_ladder.cache_clear()


class TestTable:
    def test_error_is_modelled_against_published(self) -> None:
        # Published: 260 calls at the mean of 4.94, 4.94, 4.95 and 4.95 a second, 4.945.
        assert modelled(call_seconds=1.1 / 4.945).error == pytest.approx(0.1)

    def test_without_memory_there_is_no_time(self) -> None:
        too_large = modelled(tile_kib=900)
        assert too_large.epoch_seconds is None
        assert too_large.error is None
        (line,) = [line for line in ladder_table([too_large], published_ladder()).splitlines() if "900" in line]
        # Modelled: nothing but the memory; published: 52.6 s, 4.94 it/s, it fits.
        assert line.split()[2:] == ["-", "52.6", "-", "-", "4.95", "900", "no", "yes", "memory"]

    def test_a_close_call_has_a_time(self) -> None:
        """What the model cannot be sure of compiles and runs, with a warning."""
        close = modelled(tile_kib=625, call_seconds=0.25)
        (line,) = [line for line in ladder_table([close], published_ladder()).splitlines() if "625" in line]
        assert line.split()[2:] == [
            "65.0",
            "52.6",
            "+23.6",
            "%",
            "4.00",
            "4.95",
            "625",
            "close",
            "yes",
            "host",
            "loader",
        ]

    def test_a_line_holds_both_and_what_limits(self) -> None:
        lines = ladder_table([modelled(call_seconds=0.25)], published_ladder()).splitlines()
        (line,) = [line for line in lines if line.startswith("half precision")]
        # 260 calls of 0.25 s are 65 s; 65 / 52.58 - 1 is 23.6 %.
        assert line.split()[2:] == ["65.0", "52.6", "+23.6", "%", "4.00", "4.95", "500", "yes", "yes", "host", "loader"]

    def test_columns_are_aligned(self) -> None:
        lines = ladder_table(
            [modelled(), modelled(step=2), modelled(tile_kib=900, step=0)], published_ladder()
        ).splitlines()
        where = {line.index("modelled", 20) for line in lines if line.strip().startswith("modelled  derived")}
        assert len(where) == 1
        ends = {re.search(r"(yes|no)  ", line).end() for line in lines if re.search(r"(yes|no)  ", line)}  # type: ignore[union-attr]
        assert len(ends) == 1

    def test_it_says_where_the_numbers_are_from(self) -> None:
        text = " ".join(ladder_table([modelled()], published_ladder()).split())
        assert "modelled: by the IPU Model" in text
        assert "mean of epochs 2 to 5" in text
        assert "0.80 ms an image, 0.18 ms with 8-bit I/O, 34 ms a call" in text


class TestModelled:
    def test_memory_verdicts_are_the_published_ones(self, steps: tuple[ModelledStep, ...]) -> None:
        assert [each.profile.fits for each in steps] == [each.published.fits for each in steps]

    def test_epochs_are_close_to_the_published_ones(self, steps: tuple[ModelledStep, ...]) -> None:
        errors = {each.published.name: each.error for each in steps if each.published.epoch_seconds is not None}
        assert len(errors) == len(PUBLISHED_SECONDS)
        assert {name: error for name, error in errors.items() if error is None or abs(error) > 0.12} == {}

    def test_what_limits_is_what_the_publication_says(self, steps: tuple[ModelledStep, ...]) -> None:
        # day03-resnet101.md, "What dominates": rows 2 to 4 are bound by the host.
        assert [each.profile.limited_by for each in steps[1:4]] == ["host loader"] * 3

    def test_every_step_is_at_least_as_fast_as_the_one_before(self, steps: tuple[ModelledStep, ...]) -> None:
        seconds = [each.epoch_seconds or 0.0 for each in steps[1:]]
        assert seconds == sorted(seconds, reverse=True)

    def test_the_program_prints_it(
        self, steps: tuple[ModelledStep, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ipu_course.programs.train.program.climb", lambda: steps)
        assert main(["train", "--ladder"]) == 0
        printed = capsys.readouterr().out
        for each in steps:
            assert any(line.startswith(each.published.name) for line in printed.splitlines())


class TestProfileOnly:
    def test_it_prints_the_report_and_the_epoch_without_training(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise AssertionError("trained")

        monkeypatch.setattr("ipu_course.programs.train.program._train", fail)
        options = "--profile-only --model resnet18 --image-size 32 --gradient-accumulation 4 --dataset shapes"
        assert main(["train", *options.split()]) == 0
        printed = capsys.readouterr().out
        # 50000 / (64 x 4) = 195 calls.
        assert re.search(r"An epoch of 195 calls, modelled on IPU: \d+\.\d s\n", printed)
        assert "MEMORY" in printed.upper()

    def test_what_does_not_fit_is_profiled_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--profile-only", "--precision", "32.32", "--dataset", "shapes"]) == 0
        assert "modelled on IPU: does not fit" in capsys.readouterr().out


def test_course_and_engine_have_the_same_numbers_of_the_published_host() -> None:
    """The engine validates itself with them, the course shows them; each is a distribution of its own."""
    engine = {name: fact.value for name, fact in constant_facts()["published_host"].items()}
    host = published_ladder().host
    assert host.seconds_per_image == engine["day03_converted_image_seconds"]
    assert host.seconds_per_eight_bit_image == engine["day03_byte_image_seconds"]
    assert host.seconds_per_call == engine["day03_call_seconds"]
