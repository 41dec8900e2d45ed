"""The options of ``python -m ipu_course train``: defaults, refusals and the arithmetic of a call."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ipu_course.errors import SettingsError
from ipu_course.programs.calls import smaller_calls
from ipu_course.programs.command_line import main, make_parser
from ipu_course.programs.options import declared, settings_from
from ipu_course.programs.train.cifar10 import SOURCES
from ipu_course.programs.train.settings import WORKSHOP_OPTIONS, TrainSettings, check_data, check_settings

TRAINING_IMAGES = 50_000
HALF = "--batch-size 64 --precision 16.16 --gradient-accumulation "


def parse(options: str = "") -> TrainSettings:
    return settings_from(TrainSettings, make_parser().parse_args(["train", *options.split()]))


@pytest.mark.parametrize(
    ("options", "namespace"),
    [
        # Command lines and first lines of output of the workshop, its five steps in order.
        (
            HALF + "3",
            "Namespace(async_dataloader=False, batch_size=64, device_iterations=1, eight_bit_io=False, epochs=5, "
            "gradient_accumulation=3, precision='16.16', replicas=1)",
        ),
        (
            HALF + "8",
            "Namespace(async_dataloader=False, batch_size=64, device_iterations=1, eight_bit_io=False, epochs=5, "
            "gradient_accumulation=8, precision='16.16', replicas=1)",
        ),
        (
            HALF + "8 --device-iteration 4",
            "Namespace(async_dataloader=False, batch_size=64, device_iterations=4, eight_bit_io=False, epochs=5, "
            "gradient_accumulation=8, precision='16.16', replicas=1)",
        ),
        (
            HALF + "8 --device-iteration 4 --eight-bit-io",
            "Namespace(async_dataloader=False, batch_size=64, device_iterations=4, eight_bit_io=True, epochs=5, "
            "gradient_accumulation=8, precision='16.16', replicas=1)",
        ),
        (
            HALF + "8 --device-iteration 4 --eight-bit-io --async-dataloader",
            "Namespace(async_dataloader=True, batch_size=64, device_iterations=4, eight_bit_io=True, epochs=5, "
            "gradient_accumulation=8, precision='16.16', replicas=1)",
        ),
    ],
)
def test_the_workshop_s_command_lines_give_its_first_line(options: str, namespace: str) -> None:
    assert parse(options).as_namespace() == namespace


def test_further_options_follow_in_order_when_they_are_used() -> None:
    line = parse("--seed 3 --model resnet18 --split layer2.1 layer4.0 --gradient-accumulation 5").as_namespace()
    assert line.endswith("replicas=1, model='resnet18', seed=3, split=('layer2.1', 'layer4.0'))")


def test_without_options_it_is_the_workshop_s_model() -> None:
    settings = parse()
    # day03-resnet101.md, "The program".
    assert (settings.model, settings.split_layers, settings.stages) == ("resnet101", ("layer3.8",), 2)
    assert settings.batch_size == 64
    assert settings.image_size == 64
    assert settings.learning_rate == 0.001
    assert settings.num_workers == 0


def test_the_other_options_are_understood() -> None:
    options = (
        "--batch-size 8 --precision 16.32 --gradient-accumulation 1 --replicas 2 --epochs 2 --model vgg16 --split none "
        "--image-size 32 --limit-batches 7 --num-workers 3 --data-folder here --download --dataset cifar10 "
        "--profile-only --measure-loader --learning-rate 0.1 --seed 7 --debug"
    )
    assert parse(options) == TrainSettings(
        batch_size=8,
        precision="16.32",
        gradient_accumulation=1,
        replicas=2,
        epochs=2,
        model="vgg16",
        split=("none",),
        image_size=32,
        limit_batches=7,
        num_workers=3,
        data_folder="here",
        download=True,
        dataset="cifar10",
        profile_only=True,
        measure_loader=True,
        learning_rate=0.1,
        seed=7,
        debug=True,
    )


def test_the_data_sources_are_those_of_the_data_set() -> None:
    (dataset,) = [field for field in fields(TrainSettings) if field.name == "dataset"]
    assert declared(dataset).arguments["choices"] == SOURCES


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    described = capsys.readouterr().out.split("options:")[1]
    for field in fields(TrainSettings):
        assert "--" + field.name.replace("_", "-") in described


def test_help_needs_neither_torch_nor_poptorch() -> None:
    code = (
        "import sys\nfrom ipu_course.programs.command_line import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'poptorch' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert finished.returncode == 0


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ("--batch-size 0", "argument --batch-size: '0' is below 1"),
        ("--replicas -1", "argument --replicas: '-1' is below 1"),
        ("--device-iterations 2.5", "argument --device-iterations: '2.5' is not a whole number"),
        ("--num-workers -1", "argument --num-workers: '-1' is below 0"),
        ("--precision 8.8", "argument --precision: invalid choice: '8.8'"),
        ("--dataset mnist", "argument --dataset: invalid choice: 'mnist'"),
        ("--learning-rate inf", "argument --learning-rate: 'inf' is not a number above 0"),
        ("--seed -1", "argument --seed: '-1' is not between 0 and"),
        ("--d 3", "ambiguous option: --d could match"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(options: str, fragment: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", *options.split()])
    assert end.value.code == 2
    assert fragment in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        # poptorch-execution.md, section 4: training S stages needs an accumulation of at least 2 S - 1.
        ("--gradient-accumulation 2", "at least 2 x 2 - 1 = 3 micro-batches"),
        ("--split layer2.0 layer3.8 layer4.0 --gradient-accumulation 6", "at least 2 x 4 - 1 = 7 micro-batches"),
        ("--dataset shapes --download", "leave one of them out"),
        ("--ladder --batch-size 32 --model vgg16", "--batch-size and --model cannot change it"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    options: str, fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *options.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m ipu_course train: error: ")
    assert fragment in line


def test_one_ipu_has_no_least_accumulation() -> None:
    assert parse("--split none --gradient-accumulation 1").stages == 1
    assert parse("--model resnet18 --gradient-accumulation 1").stages == 1


class TestCallArithmetic:
    @pytest.mark.parametrize(
        ("options", "calls"),
        # day03-resnet101.md, column "steps/epoch".
        [("3", 260), ("8", 97), ("8 --device-iterations 4", 24)],
    )
    def test_the_published_numbers_of_calls(self, options: str, calls: int) -> None:
        assert parse(HALF + options).calls_per_epoch(TRAINING_IMAGES) == calls

    def test_a_limit_shortens_an_epoch_and_never_lengthens_it(self) -> None:
        assert parse("--limit-batches 20").calls_per_epoch(TRAINING_IMAGES) == 20
        assert parse("--limit-batches 999").calls_per_epoch(TRAINING_IMAGES) == 260

    def test_more_calls_than_the_images_fill_are_refused(self) -> None:
        check_data(parse("--limit-batches 260"), TRAINING_IMAGES)
        with pytest.raises(SettingsError, match=r"50000 images fill 260 calls of 192; use --limit-batches 260 or less"):
            check_data(parse("--limit-batches 261"), TRAINING_IMAGES)

    def test_a_call_too_large_tells_the_arithmetic_and_what_works(self) -> None:
        # 50000 / (64 x 8) = 97.6 device iterations, 50000 / 8000 = 6.25 images, 50000 / 64000 is below 1.
        with pytest.raises(SettingsError) as refusal:
            check_data(TrainSettings(gradient_accumulation=8, device_iterations=1000), TRAINING_IMAGES)
        message = str(refusal.value)
        assert "--device-iterations 1000 x --replicas 1 = 512000 images, but there are 50000" in message
        assert message.endswith("nearest settings that work: --device-iterations 97 or --batch-size 6")

    @given(
        batch_size=st.integers(1, 50_000),
        gradient_accumulation=st.integers(3, 5_000),
        device_iterations=st.integers(1, 5_000),
        replicas=st.integers(1, 64),
        images=st.integers(3, 60_000),
    )
    def test_every_suggestion_works_and_is_the_largest_that_does(
        self, batch_size: int, gradient_accumulation: int, device_iterations: int, replicas: int, images: int
    ) -> None:
        settings = TrainSettings(
            batch_size=batch_size,
            gradient_accumulation=gradient_accumulation,
            device_iterations=device_iterations,
            replicas=replicas,
        )
        assume(settings.images_per_call > images)
        for suggestion in smaller_calls(settings.factors, images):
            words = suggestion.split()
            names = [option[2:].replace("-", "_") for option in words[::2]]
            values: dict[str, Any] = dict(zip(names, map(int, words[1::2])))
            changed = replace(settings, **values)
            check_settings(changed)
            check_data(changed, images)
            if len(values) == 1:
                ((name, value),) = values.items()
                larger: dict[str, Any] = {name: value + 1}
                assert replace(settings, **larger).images_per_call > images

    def test_there_is_always_a_suggestion(self) -> None:
        assert smaller_calls(TrainSettings(batch_size=50_000, replicas=64).factors, 3)


def test_the_workshop_s_options_are_settings() -> None:
    assert set(WORKSHOP_OPTIONS) <= {field.name for field in fields(TrainSettings)}
    assert sorted(WORKSHOP_OPTIONS) == list(WORKSHOP_OPTIONS)
