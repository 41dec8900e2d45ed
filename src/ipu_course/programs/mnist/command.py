"""The sub-command ``mnist``: its options and their checks. What runs is in ``program``."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from ipu_course.argument_types import positive_integer, positive_number, seed
from ipu_course.programs.mnist.settings import STRATEGIES, Settings, check_pipeline

if TYPE_CHECKING:
    # argparse's class of sub-parsers has no public name, and is generic only for type checkers.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = "Train and test a small network on handwritten digits, split over four IPUs."
EPILOG = """examples:
  python -m ipu_course mnist --learning-rate 0.002 --debug --epochs 5
  python -m ipu_course mnist --profile --profile-dir pipeline_profile
  python -m ipu_course mnist --strategy sharded --profile --profile-dir sharding_profile
  python -m ipu_course mnist --offload-optimiser"""


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "mnist",
        help="MNIST on four IPUs, pipelined or sharded",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_tutorial_options(parser)
    _add_further_options(parser.add_argument_group("further options, beyond the tutorial's"))
    parser.set_defaults(run=run)


def settings_from(parsed: argparse.Namespace) -> Settings:
    """The settings that parsed arguments stand for. Raises ``SettingsError`` when they do not go together."""
    settings = Settings(**{field.name: getattr(parsed, field.name) for field in fields(Settings)})
    check_pipeline(settings)
    return settings


def run(parsed: argparse.Namespace) -> None:
    """Run the program with parsed arguments. Raises ``CourseError`` when it cannot be done."""
    settings = settings_from(parsed)
    from ipu_course.programs.mnist.program import run_program  # imports torch and poptorch: not needed for --help

    run_program(settings)


def _add_tutorial_options(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    _add_number(parser, "--batch-size", default.batch_size, "micro-batch size for training")
    _add_number(
        parser,
        "--device-iterations",
        default.device_iterations,
        "weight updates per call of the training model",
    )
    _add_number(parser, "--test-batch-size", default.test_batch_size, "batch size for inference")
    _add_number(parser, "--epochs", default.epochs, "passes over the training images")
    parser.add_argument(
        "--learning-rate",
        default=default.learning_rate,
        type=positive_number,
        metavar="RATE",
        help="learning rate of AdamW (default: %(default)s)",
    )
    parser.add_argument("--profile", action="store_true", help="write a report of time and memory for each model")
    parser.add_argument(
        "--profile-dir",
        default=default.profile_dir,
        metavar="DIR",
        help="where reports go (default: %(default)s)",
    )
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default=default.strategy,
        help="pipelined: all IPUs work at once; sharded: one after another (default: %(default)s)",
    )
    parser.add_argument("--debug", action="store_true", help="log in detail")
    parser.add_argument("--offload-optimiser", action="store_true", help="keep the optimiser state off chip")


def _add_further_options(group: argparse._ArgumentGroup) -> None:
    default = Settings()
    _add_number(group, "--gradient-accumulation", default.gradient_accumulation, "micro-batches per weight update")
    group.add_argument(
        "--data-dir",
        default=default.data_dir,
        metavar="DIR",
        help="folder of torchvision's MNIST; without it, the bundled digits (default: %(default)s)",
    )
    group.add_argument("--download", action="store_true", help="download MNIST into the data folder first")
    group.add_argument(
        "--seed",
        default=default.seed,
        type=seed,
        metavar="N",
        help="repeat a run: same seed, same results on the same machine (default: a new seed every time)",
    )


def _add_number(parser: argparse._ActionsContainer, option: str, default: int, meaning: str) -> None:
    text = meaning + " (default: %(default)s)"
    parser.add_argument(option, default=default, type=positive_integer, metavar="N", help=text)
