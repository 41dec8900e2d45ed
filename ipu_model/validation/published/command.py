"""What `python -m ipu_model validate` does where this package is."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from ipu_model.errors import Error
from ipu_model.predict.band import BANDS
from published.comparison import RECORD, compare_rows
from published.leave_one_out import leave_one_out
from published.record import close_band_of_record, record_of, write_record
from published.rows import published
from published.text import comparison_text, constants_text, left_out_text


def run(arguments: argparse.Namespace) -> None:
    if arguments.record and arguments.rows:
        raise Error("--record writes all rows: call it without names of rows.")
    long = arguments.long or arguments.record
    comparison = compare_rows(arguments.rows, long=long)
    print(comparison_text(comparison))
    if arguments.leave_one_out:
        print("\n" + left_out_text(leave_one_out(row for row in published().rows if long or not row.long)))
    if arguments.constants:
        print("\n" + constants_text())
    if arguments.record:
        left_out = leave_one_out(row for row in published().rows if row.families)
        record = record_of(comparison, {row.row.id: row.without for row in left_out})
        write_record(record, RECORD, Path(str(files("ipu_model"))) / "data" / BANDS)
        low, high = close_band_of_record(record)
        print(f"\nrecorded in {RECORD.name} and {BANDS}")
        print(f"memory.close_low and memory.close_high follow from the verdicts: {low:.3f} and {high:.3f}")
