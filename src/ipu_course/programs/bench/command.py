"""The sub-command ``bench``: its options and their checks. What runs is in ``program``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipu_course.errors import SettingsError
from ipu_course.programs.bench.settings import RUN_BATCH, RUN_STEPS, BenchSettings, changes_from
from ipu_course.programs.options import add_options, add_program, positive_integer

if TYPE_CHECKING:
    from ipu_course.programs.options import Subparsers

# Options that the page has in place of a value.
WORDS = {
    "--synthetic-data": ("data", "synthetic"),
    "--generated-data": ("data", "generated"),
    "--batch-norm": ("normalisation", "batch"),
    "--disable-variable-offloading": ("variable_offloading", False),
}

DESCRIPTION = """Model the throughput, latency and memory of CNNs on IPUs. Choose a configuration of the benchmark page
by its name, or describe your own. docs/benchmarks.md lists the page's command lines with their modelled results."""
EPILOG = """examples
  python -m ipu_course bench --list
  python -m ipu_course bench --config resnet50-train-m2000
  python -m ipu_course bench --config resnet50-infer-synthetic --sweep --figure sweep.png
  python -m ipu_course bench --config resnet50-train-m2000 --machine POD16 --replicas 4
  python -m ipu_course bench --model efficientnet-b0 --inference --batch-size 8 --run --image-size 64
  python -m ipu_course bench --all --csv results.csv"""


def register(subparsers: Subparsers) -> None:
    """Add the sub-command."""
    parser = add_program(
        subparsers,
        "bench",
        run,
        help="model the throughput, latency and memory of CNN benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    what = parser.add_argument_group("what to model")
    what.add_argument("--list", action="store_true", help="list the configurations and the models")
    what.add_argument("--all", action="store_true", help="model the whole page, and print it as one table")
    what.add_argument("--config", metavar="NAME", help="model one configuration of the page")
    what.add_argument("--sweep", action="store_true", help="model a range of batch sizes")
    what.add_argument(
        "--batch-sizes",
        nargs="+",
        type=positive_integer,
        metavar="N",
        help="the batch sizes of --sweep (default: the page's)",
    )
    _add_settings(parser.add_argument_group("the benchmark (what you give here changes the configuration)"))
    _add_run(parser.add_argument_group("measuring on this machine"))
    _add_output(parser.add_argument_group("output"))


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="the network; --list names the known ones")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--training", dest="training", action="store_const", const=True, help="model training (default)")
    kind.add_argument("--inference", dest="training", action="store_const", const=False, help="model inference")
    add_options(group, BenchSettings, defaults=False)
    for option, (name, value) in WORDS.items():
        text = f"the page's word for --{name.replace('_', '-')} {'off' if value is False else value}"
        group.add_argument(option, dest=name, action="store_const", const=value, help=text)


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run",
        dest="execute",
        action="store_true",
        help="also execute some small steps on one replica, with random images, and measure them",
    )
    group.add_argument(
        "--run-steps", type=positive_integer, metavar="N", help=f"how many steps to measure (default: {RUN_STEPS})"
    )
    group.add_argument(
        "--run-batch-size", type=positive_integer, metavar="N", help=f"batch size of these steps (default: {RUN_BATCH})"
    )
    group.add_argument(
        "--run-accumulation",
        type=positive_integer,
        metavar="N",
        help="micro-batches of a step (default: as few as the pipeline allows)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", metavar="FILE", help="write the results as JSON; with -, print them and nothing else")
    group.add_argument("--csv", metavar="FILE", help="write the results as CSV; with -, print them and nothing else")
    group.add_argument("--figure", metavar="FILE.png", help="with --sweep: draw the results")


def run(parsed: argparse.Namespace) -> None:
    """Do what the parsed arguments say. Raises ``CourseError`` when it cannot be done."""
    check_arguments(parsed)
    from ipu_course.programs.bench import program

    program.run_program(parsed, changes_from(parsed))


def check_arguments(parsed: argparse.Namespace) -> None:
    """Raise ``SettingsError`` for arguments that do not go together."""
    changes = ["--" + name.replace("_", "-") for name in changes_from(parsed)]
    if parsed.list or parsed.all:
        which = "--list" if parsed.list else "--all"
        others = [f"--{name}" for name in ("config", "sweep") if getattr(parsed, name)] + changes
        others += ["--run"] if parsed.execute else []
        others += ["--all"] if parsed.list and parsed.all else []
        if others:
            raise SettingsError(f"{which} shows the whole page, so {' and '.join(others)} cannot change it")
    elif not (parsed.config or parsed.model):
        raise SettingsError("say what to model: --config NAME or --model NAME; --list names them, --all models all")
    for option, needed in (("batch_sizes", "sweep"), ("figure", "sweep")):
        if getattr(parsed, option) and not getattr(parsed, needed):
            raise SettingsError(f"--{option.replace('_', '-')} needs --{needed}")
    if parsed.sweep and parsed.batch_size:
        raise SettingsError("--batch-size is one size, but --sweep takes several; use --batch-sizes N N ... instead")
    if parsed.sweep and parsed.execute:
        raise SettingsError("--run executes one benchmark, --sweep models several; leave one of them out")
    _check_run(parsed)
    _check_output(parsed)


def _check_run(parsed: argparse.Namespace) -> None:
    for name in ("run_steps", "run_batch_size", "run_accumulation"):
        if getattr(parsed, name) and not parsed.execute:
            raise SettingsError(f"--{name.replace('_', '-')} needs --run")
    if parsed.run_steps == 1:
        raise SettingsError("--run-steps 1: the first step includes compilation and is left out; use 2 or more")


def _check_output(parsed: argparse.Namespace) -> None:
    if parsed.list and (parsed.json or parsed.csv):
        raise SettingsError("--list prints names; --json and --csv are for results")
    if parsed.json == parsed.csv == "-":
        raise SettingsError("--json - and --csv - both print; write one of them to a file")
    if parsed.figure and not parsed.figure.lower().endswith(".png"):
        raise SettingsError(f"--figure {parsed.figure}: figures are PNG files; use a name that ends in .png")
