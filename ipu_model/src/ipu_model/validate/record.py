"""What the model said about the published rows when that was last written down, and the error bands that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from ipu_model.predict.band import BANDS, Family, FamilyBand
from ipu_model.predict.verdict import CloseBand, close_band_of
from ipu_model.validate.comparison import Compared, ComparedVerdict, Comparison, Outcome
from ipu_model.validate.rows import Kind, Row, VerdictRow, published_rows, published_verdicts

RECORD = "validation_record.json"
TOLERANCE = 0.002
"""How much larger than recorded an error may be: what rounding and order of summation could do, and no more."""
DEVIATIONS = 2.0
"""A band reaches as many times the root mean square of its rows' errors to each side: about 95 % of normal errors."""
_FULLEST_TILES = ("day03.memory.half", "day03.memory.float", "small.memory.fullest")
"""The rows that compare the fullest tile of a program with a published report of it."""
_LEAST_VERDICT_CHANGE = (Outcome.RIGHT, Outcome.CLOSE, Outcome.WRONG)


class Record(msgspec.Struct, frozen=True):
    """The signed error of each number, and the share of a tile and outcome of each verdict, by the row's id."""

    errors: Mapping[str, float]
    shares: Mapping[str, float]
    outcomes: Mapping[str, Outcome]


@lru_cache(maxsize=1)
def recorded() -> Record:
    """Return the record that `python -m ipu_model validate --record` wrote."""
    return msgspec.json.decode((files("ipu_model") / "data" / RECORD).read_bytes(), type=Record)


def record_of(comparison: Comparison) -> Record:
    """Return the record of a comparison."""
    return Record(
        {each.row.id: round(each.error, 4) for each in comparison.numbers},
        {each.row.id: round(each.share, 4) for each in comparison.verdicts},
        {each.row.id: each.outcome for each in comparison.verdicts},
    )


def write_record(record: Record, folder: Path) -> None:
    """Write the record and the error bands that follow from it into `folder`."""
    for name, content in ((RECORD, record), (BANDS, bands_of(record.errors))):
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        (folder / name).write_bytes(text + b"\n")


def grown(compared: Iterable[Compared], errors: Mapping[str, float]) -> tuple[Compared, ...]:
    """Return the rows whose error is larger than recorded, or that the record does not know."""
    return tuple(
        each for each in compared if each.row.id not in errors or abs(each.error) > abs(errors[each.row.id]) + TOLERANCE
    )


def worsened(compared: Iterable[ComparedVerdict], outcomes: Mapping[str, Outcome]) -> tuple[ComparedVerdict, ...]:
    """Return the verdicts that are further from right than recorded, or that the record does not know."""
    rank = _LEAST_VERDICT_CHANGE.index
    return tuple(
        each for each in compared if each.row.id not in outcomes or rank(each.outcome) > rank(outcomes[each.row.id])
    )


def bands_of(errors: Mapping[str, float]) -> dict[Family, FamilyBand]:
    """Return the error band of each family that has rows.

    To each side it is twice the root mean square of their errors, times sqrt(1 + 1 / m) for m measurements, as for a
    prediction from m of them: rows of one measurement are not independent. A row that the model was improved with in
    view counts twice, with its error before and with today's, because what was mended for one row is no proof that the
    next program comes out as well. Fitted rows and arithmetic do not count. Errors are logarithms of modelled time over
    published time, so that a band has the factors 1/f and f.
    """
    found = {}
    for family in Family:
        rows = [row for row in published_rows() if family in row.families and _is_evidence(row)]
        logs = [each for row in rows for each in _logarithms(row, errors)]
        if logs:
            measurements = len({row.measurement for row in rows})
            spread = math.sqrt(sum(each * each for each in logs) / len(logs))
            factor = math.exp(DEVIATIONS * spread * math.sqrt(1 + 1 / measurements))
            largest = max(abs(errors[row.id]) for row in rows)
            found[family] = FamilyBand(round(1 / factor, 3), round(factor, 3), len(rows), round(largest, 3))
    return found


def close_band_of_record(record: Record) -> CloseBand:
    """Return the shares of a tile between which the model cannot tell, as published outcomes and reports leave it."""
    return _band_of_rows((row for row in published_verdicts() if not row.doubtful), record.shares, record.errors)


def left_out_verdicts(compared: Iterable[ComparedVerdict], errors: Mapping[str, float]) -> tuple[ComparedVerdict, ...]:
    """Return the verdicts as they would be had the band between "fits" and "does not fit" not known the row itself."""
    rows = tuple(compared)
    shares = {each.row.id: each.share for each in rows}
    found = []
    for each in rows:
        others = (other.row for other in rows if other is not each and not other.row.doubtful)
        found.append(replace(each, verdict=_band_of_rows(others, shares, errors).verdict(each.share)))
    return tuple(found)


def _band_of_rows(rows: Iterable[VerdictRow], shares: Mapping[str, float], errors: Mapping[str, float]) -> CloseBand:
    known = tuple(rows)
    ran, failed = ([shares[row.id] for row in known if row.ran is outcome] for outcome in (True, False))
    return close_band_of(ran, failed, max(errors[row_id] for row_id in _FULLEST_TILES))


def _is_evidence(row: Row) -> bool:
    return row.kind in (Kind.PREDICTION, Kind.SCORED_BLIND)


def _logarithms(row: Row, errors: Mapping[str, float]) -> Iterable[float]:
    for error in (row.earlier_error, errors[row.id]):
        if error is not None:
            yield math.log1p(error)
