"""The programs of the IPU Model, one sub-command each; those about programs have a module of their own."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model import __version__
from ipu_model.commands import programs
from ipu_model.errors import Error
from ipu_model.report.quantities import aligned, plain

if TYPE_CHECKING:
    from ipu_model.predict.calibration import Fact

_WIDTH = 110
_VALIDATION = Path(__file__).resolve().parents[3] / "validation"
"""Where a checkout of the sources has the package `published`, which no wheel contains."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; commands set `run`, which returns the exit code and imports what it needs."""
    parser = argparse.ArgumentParser(
        prog="python -m ipu_model",
        description="The IPU Model predicts what programs would do on IPUs. All numbers are modelled.",
        epilog="example: python -m ipu_model fit --help explains what a program is and lists the options",
    )
    parser.add_argument("--version", action="version", version=f"ipu-model {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    programs.register(subparsers)
    machines = subparsers.add_parser(
        "machines",
        help="print the machines that can be modelled",
        description="Prints the machines that can be modelled, and where each of their numbers comes from.",
        epilog="example: python -m ipu_model machines Bow-POD16",
    )
    machines.add_argument("names", nargs="*", metavar="MACHINE", help="print only these machines (default: all)")
    machines.set_defaults(run=print_machines)
    validate = subparsers.add_parser(
        "validate",
        help="compare the model with published measurements",
        description="Prints every published row beside its modelled value, with the signed error.",
        epilog="example: python -m ipu_model validate day03",
    )
    validate.add_argument(
        "rows", nargs="*", metavar="ROW", help="print only rows whose id begins with this (day03, mlperf, ...)"
    )
    validate.add_argument(
        "--leave-one-out", action="store_true", help="refit the constants with one fitted row left out at a time"
    )
    validate.add_argument("--long", action="store_true", help="rebuild programs that take minutes too")
    validate.add_argument("--constants", action="store_true", help="list the calibrated constants with their sources")
    validate.add_argument(
        "--record", action="store_true", help="write the errors as the record that tests compare with"
    )
    validate.set_defaults(run=run_validate)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the command line) name and return its exit code.

    Codes: 0 done, 1 nothing that fits was found or nobody reads the output any more, 2 an error in one line, 130
    stopped with Ctrl-C.
    """
    parsed = make_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed) or 0
        sys.stdout.flush()
    except Error as problem:
        print(f"python -m ipu_model {parsed.command}: error: {problem.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"python -m ipu_model {parsed.command}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Python would complain once more when it empties it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


# --- the machines that programs can be modelled on, every number with its source


def print_machines(arguments: argparse.Namespace) -> None:
    from ipu_model.predict.hardware import known_hardware, system_named

    systems = [system_named(name) for name in arguments.names] or list(known_hardware().systems.values())
    systems = list(dict.fromkeys(systems))
    rows = [("machine", "chip", "IPUs", "tiles", "bytes a tile", "clock", "fp16 peak", "title")]
    for system in systems:
        chip = system.chip
        peak = chip.peak_flops(2, half_partials=True) * system.ipus
        rows.append((
            system.name, chip.name, f"{system.ipus}", f"{system.ipus * chip.tiles:,}", f"{chip.tile_bytes:,}",
            f"{chip.clock_hz / 1e9:g} GHz", f"{peak / 1e12:,.0f} TFLOP/s", system.title,
        ))  # fmt: skip
    for line, (*_, title) in zip(aligned([row[:-1] for row in rows], left=2, indent=0), rows):
        print(f"{line}  {title}")
    for what, names in (("chips", [system.chip.name for system in systems]), ("systems", [s.name for s in systems])):
        print(f"\nNumbers of the {what}\n")
        print("\n".join(sources(list(dict.fromkeys(names)))))


def sources(names: Sequence[str]) -> list[str]:
    """Return every number of the chips or systems `names`: once, with those that share it, its unit and its source."""
    from ipu_model.predict.hardware import provenance

    shared: dict[str, dict[Fact, list[str]]] = {}
    for name in names:
        for number, fact in provenance(name).items():
            shared.setdefault(number, {}).setdefault(fact, []).append(name)
    lines: list[str] = []
    for number, facts in shared.items():
        lines.append(number)
        for fact, owners in facts.items():
            value = f"{fact.value:,}" if isinstance(fact.value, int) else f"{fact.value:,.12g}"
            whose = f"{', '.join(owners)}: " if len(owners) < len(names) else ""
            words = f"{whose}{value} {fact.unit} ({fact.confidence}: {fact.source})"
            lines += textwrap.wrap(plain(words), _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


# --- published measurements


def run_validate(arguments: argparse.Namespace) -> None:
    if _VALIDATION.is_dir():
        sys.path.insert(0, str(_VALIDATION))
    try:
        command = import_module("published.command")
    except ModuleNotFoundError as missing:
        if missing.name != "published":
            raise
        raise Error(
            "The published measurements and their programs are not in the installed package: they are in the folder "
            "ipu_model/validation of the project's sources. Get the sources and call python ipu_model/validation in "
            "their folder, which compares this installation."
        ) from missing
    command.run(arguments)
