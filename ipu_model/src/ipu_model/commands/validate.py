"""`python -m ipu_model validate`: compares the model with published measurements, which no wheel contains."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ipu_model.errors import Error

FOLDER = Path(__file__).resolve().parents[3] / "validation"
"""Where a checkout of the sources has the package `published`."""
_PACKAGE = "published"


def register(subparsers: Any) -> None:
    """Add the sub-command's parser. `Any`: argparse does not name the type of its sub-parsers in public."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate",
        help="compare the model with published measurements",
        description="Prints every published row beside its modelled value, with the signed error.",
        epilog="example: python -m ipu_model validate day03",
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="print only rows whose id begins with this (day03, mlperf, ...)"
    )
    parser.add_argument(
        "--leave-one-out", action="store_true", help="refit the constants with one fitted row left out at a time"
    )
    parser.add_argument("--constants", action="store_true", help="list the calibrated constants with their sources")
    parser.add_argument("--record", action="store_true", help="write the errors as the record that tests compare with")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if FOLDER.is_dir():
        sys.path.insert(0, str(FOLDER))
    try:
        command = import_module(f"{_PACKAGE}.command")
    except ModuleNotFoundError as missing:
        if missing.name != _PACKAGE:
            raise
        raise Error(
            "The published measurements and their programs are not in the installed package: they are in the folder "
            "ipu_model/validation of the project's sources. Get the sources and call python ipu_model/validation in "
            "their folder, which compares this installation."
        ) from missing
    command.run(arguments)
