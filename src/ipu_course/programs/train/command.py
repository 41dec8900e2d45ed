"""The sub-command ``train``: its options and their checks. What runs is in ``program``."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from ipu_course.argument_types import integer_from_zero, positive_integer, positive_number, seed
from ipu_course.programs.train.settings import NO_SPLIT, PRECISIONS, Settings, check_settings

if TYPE_CHECKING:
    # argparse's class of sub-parsers has no public name, and is generic only for type checkers.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = """Train an image classifier on CIFAR-10, by default ResNet-101 split over two IPUs, and tell how long
an epoch takes: measured on this machine, modelled on IPUs."""
EPILOG = """examples: the hands-on's steps
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 3
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 8
  python -m ipu_course train --batch-size 64 --precision 16.16 --gradient-accumulation 8 --device-iterations 4
  ... --eight-bit-io
  ... --eight-bit-io --async-dataloader
all of them modelled, beside the published results:
  python -m ipu_course train --ladder
a model that a laptop trains in a minute:
  python -m ipu_course train --model resnet18 --image-size 32 --limit-batches 20"""
DATASETS = ("auto", "cifar10", "shapes")


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "train",
        help="ResNet-101 (or another torchvision model) on CIFAR-10, step by step faster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_hands_on_options(parser)
    _add_model_options(parser.add_argument_group("model and training, beyond the hands-on's"))
    _add_data_options(parser.add_argument_group("data"))
    _add_profile_options(parser.add_argument_group("modelled profiles"))
    parser.set_defaults(run=run)


def settings_from(parsed: argparse.Namespace) -> Settings:
    """The settings that parsed arguments stand for. Raises ``SettingsError`` when they do not go together."""
    values = {field.name: getattr(parsed, field.name) for field in fields(Settings)}
    if values["split"] is not None:
        values["split"] = tuple(values["split"])
    settings = Settings(**values)
    check_settings(settings)
    return settings


def run(parsed: argparse.Namespace) -> None:
    """Run the program with parsed arguments. Raises ``CourseError`` when it cannot be done."""
    settings = settings_from(parsed)
    from ipu_course.programs.train.program import run_program  # imports torch and poptorch: not needed for --help

    run_program(settings)


def _add_hands_on_options(parser: argparse.ArgumentParser) -> None:
    default = Settings()
    _add_count(parser, "--batch-size", default.batch_size, "micro-batch size")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=default.precision,
        help="bits of the images, then of the model (default: %(default)s)",
    )
    _add_count(parser, "--gradient-accumulation", default.gradient_accumulation, "micro-batches per weight update")
    _add_count(parser, "--device-iterations", default.device_iterations, "weight updates per call")
    parser.add_argument("--eight-bit-io", action="store_true", help="send images as uint8, normalise on the IPU")
    parser.add_argument("--async-dataloader", action="store_true", help="load the next batch while the IPUs work")
    _add_count(parser, "--replicas", default.replicas, "copies of the model that train together")
    _add_count(parser, "--epochs", default.epochs, "passes over the images")


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    default = Settings()
    group.add_argument(
        "--model", default=default.model, metavar="NAME", help="a classifier of torchvision (default: %(default)s)"
    )
    group.add_argument(
        "--split",
        nargs="+",
        metavar="LAYER",
        help=f"layers that begin on the next IPU, such as layer3.8; {NO_SPLIT}: one IPU (default: layer3.8 for "
        f"{default.model}, {NO_SPLIT} for other models)",
    )
    _add_count(group, "--image-size", default.image_size, "pixels in a row and in a column")
    _add_count(group, "--limit-batches", None, "calls in an epoch (default: as many as the images fill)")
    group.add_argument(
        "--learning-rate",
        default=default.learning_rate,
        type=positive_number,
        metavar="RATE",
        help="learning rate of AdamW (default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        type=seed,
        metavar="N",
        help="repeat a run: same seed, same results on the same machine (default: a new seed every time)",
    )
    group.add_argument("--debug", action="store_true", help="log in detail")


def _add_data_options(group: argparse._ArgumentGroup) -> None:
    default = Settings()
    group.add_argument(
        "--dataset",
        choices=DATASETS,
        default=default.dataset,
        help="auto: CIFAR-10 where its files are, else synthetic shapes of its format (default: %(default)s)",
    )
    group.add_argument(
        "--data-folder",
        default=default.data_folder,
        metavar="DIR",
        help="where torchvision's files of CIFAR-10 are or go (default: %(default)s)",
    )
    group.add_argument("--download", action="store_true", help="download CIFAR-10 into the data folder first")
    group.add_argument(
        "--num-workers",
        default=default.num_workers,
        type=integer_from_zero,
        metavar="N",
        help="processes that load images; 0: the program itself (default: %(default)s)",
    )


def _add_profile_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--profile-only", action="store_true", help="print the modelled profile, do not train")
    group.add_argument(
        "--ladder", action="store_true", help="model all steps of the hands-on and compare with its results"
    )
    group.add_argument(
        "--measure-loader",
        action="store_true",
        help="model the host with this machine's loader, measured first (default: the hands-on's host)",
    )


def _add_count(parser: argparse._ActionsContainer, option: str, default: int | None, meaning: str) -> None:
    text = meaning if default is None else meaning + " (default: %(default)s)"
    parser.add_argument(option, default=default, type=positive_integer, metavar="N", help=text)
