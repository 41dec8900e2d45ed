"""The sub-command ``train``. What runs is in ``program``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipu_course.programs.options import add_options, add_program, settings_from
from ipu_course.programs.train.settings import TrainSettings, check_settings

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

DESCRIPTION = """Train an image classifier on CIFAR-10, by default ResNet-101 split over two IPUs, and print how long
an epoch takes, as measured on this machine and as modelled for IPUs."""
EPILOG = """the steps of the workshop:
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 3
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 8
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 8 --device-iterations 4
  ... --eight-bit-io
  ... --eight-bit-io --async-dataloader
all of these steps as modelled, beside the published results:
  python -m ipu_course train --ladder
a model that a laptop trains in a minute:
  python -m ipu_course train --model resnet18 --image-size 32 --limit-batches 20"""


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = add_program(
        subparsers,
        "train",
        run,
        help="train ResNet-101, or another torchvision model, on CIFAR-10",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_options(parser, TrainSettings)


def run(parsed: argparse.Namespace) -> None:
    """Run the program with parsed arguments. Raises ``CourseError`` when it cannot be done."""
    settings = settings_from(TrainSettings, parsed)
    check_settings(settings)
    from ipu_course.programs.train.program import run_program  # imports torch and poptorch: not needed for --help

    run_program(settings)
