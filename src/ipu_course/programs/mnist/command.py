"""The sub-command ``mnist``. What runs is in ``program``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipu_course.programs.mnist.settings import MnistSettings, check_data_dir, check_pipeline
from ipu_course.programs.options import add_options, add_program, settings_from

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

EPILOG = """examples:
  python -m ipu_course mnist --learning-rate 0.002 --debug --epochs 5
  python -m ipu_course mnist --profile --profile-dir pipeline_profile
  python -m ipu_course mnist --strategy sharded --profile --profile-dir sharding_profile
  python -m ipu_course mnist --offload-optimiser"""


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = add_program(
        subparsers,
        "mnist",
        run,
        help="train a small network on handwritten digits, pipelined or sharded over four IPUs",
        description="Train and test a small network on handwritten digits, split over four IPUs.",
        epilog=EPILOG,
    )
    add_options(parser, MnistSettings)


def run(parsed: argparse.Namespace) -> None:
    """Run the program with parsed arguments. Raises ``CourseError`` when it cannot be done."""
    settings = settings_from(MnistSettings, parsed)
    check_data_dir(settings)
    check_pipeline(settings)
    from ipu_course.programs.mnist.program import run_program  # imports torch and poptorch: not needed for --help

    run_program(settings)
