"""`python -m ipu_model validate`."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from typing import Any

from ipu_model.errors import Error


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
    """Print the comparison and whatever else was asked for."""
    from ipu_model.predict.band import BANDS
    from ipu_model.validate import record, text
    from ipu_model.validate.comparison import compare_rows
    from ipu_model.validate.leave_one_out import leave_one_out

    if arguments.record and arguments.rows:
        raise Error("--record writes all rows: call it without names of rows.")
    compared = compare_rows(arguments.rows)
    print(text.comparison_text(compared))
    if arguments.leave_one_out:
        print("\n" + text.left_out_text(*leave_one_out()))
    if arguments.constants:
        print("\n" + text.constants_text())
    if arguments.record:
        recorded = record.record_of(compared)
        record.write_record(recorded, Path(str(files("ipu_model"))) / "data")
        low, high = record.close_band_of_record(recorded)
        print(f"\nrecorded in {record.RECORD} and {BANDS}")
        print(f"memory.close_low and memory.close_high follow from the verdicts: {low:.3f} and {high:.3f}")
