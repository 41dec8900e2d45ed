"""`python -m ipu_model machines`: the machines that programs can be modelled on, every number with its source."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ipu_model.report.quantities import aligned, plain

if TYPE_CHECKING:
    from ipu_model.predict.calibration import Fact
    from ipu_model.predict.hardware import System

_WIDTH = 110


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "machines",
        help="print the machines that can be modelled",
        description="Prints the machines that can be modelled, and where each of their numbers comes from.",
        epilog="example: python -m ipu_model machines Bow-POD16",
    )
    parser.add_argument("names", nargs="*", metavar="MACHINE", help="print only these machines (default: all)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from ipu_model.predict.hardware import known_hardware, system_named

    systems = [system_named(name) for name in arguments.names] or list(known_hardware().systems.values())
    systems = list(dict.fromkeys(systems))
    print("\n".join(table(systems)))
    chips = dict.fromkeys(system.chip.name for system in systems)
    print("\nNumbers of the chips\n")
    print("\n".join(sources(chips)))
    print("\nNumbers of the systems\n")
    print("\n".join(sources(system.name for system in systems)))


def table(systems: Iterable[System]) -> list[str]:
    """Return the machines as lines: name, chip, sizes, clock and peak rate."""
    rows = [("machine", "chip", "IPUs", "tiles", "bytes a tile", "clock", "fp16 peak", "title")]
    for system in systems:
        chip = system.chip
        peak = chip.peak_flops(2, half_partials=True) * system.ipus
        rows.append((
            system.name, chip.name, f"{system.ipus}", f"{system.ipus * chip.tiles:,}", f"{chip.tile_bytes:,}",
            f"{chip.clock_hz / 1e9:g} GHz", f"{peak / 1e12:,.0f} TFLOP/s", f" {system.title}",
        ))  # fmt: skip
    lines = aligned([row[:-1] for row in rows], left=2, indent=0)
    return [f"{line}  {row[-1].strip()}" for line, row in zip(lines, rows)]


def sources(names: Iterable[str]) -> list[str]:
    """Return every number of the chips or systems `names`: once, with those that share it, its unit and its source."""
    from ipu_model.predict.hardware import provenance

    shared: dict[str, dict[Fact, list[str]]] = {}
    every = list(names)
    for name in every:
        for number, fact in provenance(name).items():
            shared.setdefault(number, {}).setdefault(fact, []).append(name)
    lines: list[str] = []
    for number, facts in shared.items():
        lines.append(number)
        for fact, owners in facts.items():
            lines += _described(fact, owners if len(owners) < len(every) else [])
    return lines


def _described(fact: Fact, owners: Sequence[str]) -> list[str]:
    value = f"{fact.value:,}" if isinstance(fact.value, int) else f"{fact.value:,.12g}"
    whose = f"{', '.join(owners)}: " if owners else ""
    words = f"{whose}{value} {fact.unit} ({fact.confidence}: {fact.source})"
    return textwrap.wrap(plain(words), _WIDTH, initial_indent="  ", subsequent_indent="    ")
