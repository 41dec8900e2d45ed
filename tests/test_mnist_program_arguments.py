"""The options of ``python -m ipu_course mnist``: defaults, refusals and the arithmetic of a step."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ipu_course.errors import SettingsError
from ipu_course.programs.calls import smaller_calls
from ipu_course.programs.command_line import main, make_parser
from ipu_course.programs.mnist.settings import MnistSettings, check_data, check_data_dir, check_pipeline
from ipu_course.programs.options import settings_from

BUNDLED_TRAINING, BUNDLED_TEST = 20_000, 800
TUTORIAL_OPTIONS = (
    "--batch-size",
    "--device-iterations",
    "--test-batch-size",
    "--epochs",
    "--learning-rate",
    "--profile",
    "--profile-dir",
    "--strategy",
    "--debug",
    "--offload-optimiser",
)


def parse(*options: str) -> MnistSettings:
    return settings_from(MnistSettings, make_parser().parse_args(["mnist", *options]))


def test_the_defaults_are_the_tutorial_s() -> None:
    settings = parse()
    # "How to run the example script" and "Setting hyperparameters" of the tutorial.
    assert settings.batch_size == 40
    assert settings.device_iterations == 10
    assert settings.gradient_accumulation == 10
    assert settings.test_batch_size == 8
    assert settings.epochs == 3
    assert settings.learning_rate == 0.001
    assert settings.profile is False
    assert settings.profile_dir == "./profile"
    assert settings.strategy == "pipelined"
    assert settings.debug is False
    assert settings.offload_optimiser is False


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--learning-rate 0.002 --debug --epochs 5", {"learning_rate": 0.002, "debug": True, "epochs": 5}),
        ("--profile --profile-dir pipeline_profile", {"profile": True, "profile_dir": "pipeline_profile"}),
        (
            "--strategy sharded --profile --profile-dir sharding_profile",
            {"strategy": "sharded", "profile": True, "profile_dir": "sharding_profile"},
        ),
        ("--offload-optimiser", {"offload_optimiser": True}),
    ],
)
def test_the_tutorial_s_example_command_lines_are_understood(options: str, changed: dict[str, Any]) -> None:
    assert parse(*options.split()) == replace(MnistSettings(), **changed)


def test_the_other_options_are_understood() -> None:
    options = (
        "--batch-size 20 --device-iterations 5 --test-batch-size 4 --gradient-accumulation 8 "
        "--data-dir here --download --seed 7"
    )
    assert parse(*options.split()) == MnistSettings(
        batch_size=20,
        device_iterations=5,
        test_batch_size=4,
        gradient_accumulation=8,
        data_dir="here",
        download=True,
        seed=7,
    )


def test_help_names_every_option_and_the_additions_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["mnist", "--help"])
    assert end.value.code == 0
    tutorial, additions = capsys.readouterr().out.split("beyond the tutorial's")
    described = tutorial.split("options:")[1]
    for option in TUTORIAL_OPTIONS:
        assert option in described
    for option in ("--gradient-accumulation", "--data-dir", "--download", "--seed"):
        assert option in additions
        assert option not in described


def test_help_needs_neither_torch_nor_poptorch() -> None:
    code = (
        "import sys\nfrom ipu_course.programs.command_line import main\n"
        "try:\n    main(['mnist', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules or 'poptorch' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert finished.returncode == 0


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "ipu_course", "--help"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert finished.returncode == 0
    assert "mnist" in finished.stdout


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--batch-size", "0"], "argument --batch-size: '0' is below 1"),
        (["--epochs", "-2"], "argument --epochs: '-2' is below 1"),
        (["--device-iterations", "2.5"], "argument --device-iterations: '2.5' is not a whole number"),
        (["--learning-rate", "0"], "argument --learning-rate: '0' is not a number above 0"),
        (["--learning-rate", "nan"], "argument --learning-rate: 'nan' is not a number above 0"),
        (["--learning-rate", "fast"], "argument --learning-rate: 'fast' is not a number"),
        (["--seed", "-1"], "argument --seed: '-1' is not between 0 and"),
        (["--strategy", "phased"], "argument --strategy: invalid choice: 'phased'"),
        (["--offload-optimizer"], "unrecognized arguments: --offload-optimizer"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(
    options: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["mnist", *options])
    assert end.value.code == 2
    assert fragment in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("folder", ["/nope", "mnist_dat", "file"])
def test_a_data_folder_that_is_not_there_is_refused(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["mnist", "--data-dir", folder]) == 2
    assert f"--data-dir {folder}: there is no such folder; leave it out" in capsys.readouterr().err
    check_data_dir(MnistSettings())
    check_data_dir(MnistSettings(data_dir=folder, download=True))


def test_without_a_program_the_error_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "PROGRAM" in capsys.readouterr().err.splitlines()[-1]


class TestPipelineRule:
    # poptorch-execution.md, section 4: training S stages needs an accumulation of at least 2 S - 1.

    @pytest.mark.parametrize("accumulation", [1, 6])
    def test_too_little_accumulation_is_refused(self, accumulation: int, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["mnist", "--gradient-accumulation", str(accumulation)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"--gradient-accumulation {accumulation} cannot fill the pipeline" in line
        assert "2 x 4 - 1 = 7" in line

    def test_the_smallest_accumulation_is_accepted(self) -> None:
        assert parse("--gradient-accumulation", "7").gradient_accumulation == 7

    def test_sharded_execution_has_no_minimum(self) -> None:
        assert parse("--strategy", "sharded", "--gradient-accumulation", "1").gradient_accumulation == 1


class TestStepArithmetic:
    def test_the_tutorial_s_steps(self) -> None:
        assert MnistSettings().training_step == 40 * 10 * 10
        assert MnistSettings().test_step == 8 * 100

    def test_the_defaults_fit_the_bundled_digits(self) -> None:
        check_data(MnistSettings(), BUNDLED_TRAINING, BUNDLED_TEST)

    def test_a_training_step_too_large_tells_the_arithmetic_and_what_works(self) -> None:
        # 20000 / (40 x 10) = 50 device iterations, 20000 / (10 x 100) = batch 20; accumulation 5 is below 7.
        with pytest.raises(SettingsError) as refusal:
            check_data(MnistSettings(device_iterations=100), BUNDLED_TRAINING, BUNDLED_TEST)
        message = str(refusal.value)
        assert "--batch-size 40 x --gradient-accumulation 10 x --device-iterations 100 = 40000" in message
        assert "there are 20000" in message
        assert message.endswith("nearest settings that work: --device-iterations 50 or --batch-size 20")

    def test_a_test_step_too_large_tells_the_arithmetic_and_what_works(self) -> None:
        with pytest.raises(SettingsError) as refusal:
            check_data(MnistSettings(test_batch_size=9), BUNDLED_TRAINING, BUNDLED_TEST)
        message = str(refusal.value)
        assert "--test-batch-size 9 x 100 device iterations = 900 images, but there are 800" in message
        assert message.endswith("use --test-batch-size 8 or less")

    def test_a_test_set_below_one_step_of_single_images_has_no_setting(self) -> None:
        with pytest.raises(SettingsError, match="larger test set"):
            check_data(MnistSettings(), BUNDLED_TRAINING, 99)

    @given(
        batch_size=st.integers(1, 50_000),
        gradient_accumulation=st.integers(7, 5_000),
        device_iterations=st.integers(1, 5_000),
        strategy=st.sampled_from(["pipelined", "sharded"]),
        images=st.integers(7, 60_000),
    )
    def test_every_suggestion_works_and_is_the_largest_that_does(
        self, batch_size: int, gradient_accumulation: int, device_iterations: int, strategy: str, images: int
    ) -> None:
        settings = MnistSettings(
            batch_size=batch_size,
            gradient_accumulation=gradient_accumulation,
            device_iterations=device_iterations,
            strategy=strategy,
        )
        assume(settings.training_step > images)
        suggestions = smaller_calls(settings.factors, images)
        assert suggestions
        for suggestion in suggestions:
            words = suggestion.split()
            names = [option[2:].replace("-", "_") for option in words[::2]]
            values: dict[str, Any] = dict(zip(names, map(int, words[1::2])))
            changed = replace(settings, **values)
            check_pipeline(changed)
            check_data(changed, images, BUNDLED_TEST)
            if len(values) == 1:
                ((name, value),) = values.items()
                larger: dict[str, Any] = {name: value + 1}
                assert replace(settings, **larger).training_step > images
