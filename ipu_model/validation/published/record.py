"""What follows from the errors of all published rows: error bands, ratios, and what is too close to call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from ipu_model.predict.band import Family, FamilyBand, RatioErrors
from ipu_model.predict.profile import CloseBand
from published.comparison import ComparedVerdict, Comparison, Record
from published.message_passing import OPS, errors, left_out
from published.rows import Curve, Kind, Row, VerdictRow, published

ALL = "all"
DEVIATIONS = 2.0
"""A band reaches as many times the root mean square of its rows' errors to each side: about 95 % of normal errors."""
# The rows that compare the fullest tile of a program with a published report of it.
_FULLEST_TILES = ("day03.memory.half", "day03.memory.float", "small.memory.fullest")


def record_of(comparison: Comparison, left_out: Mapping[str, float]) -> Record:
    return Record(
        {number.row.id: round(number.error, 4) for number in comparison.numbers},
        {row_id: round(error, 4) for row_id, error in left_out.items()},
        {verdict.row.id: round(verdict.share, 4) for verdict in comparison.verdicts},
        {verdict.row.id: verdict.outcome for verdict in comparison.verdicts},
    )


def write_record(record: Record, record_file: Path, bands_file: Path) -> None:
    bands = {"families": bands_of(record), "ratios": ratio_errors(record.errors)}
    for file, content in ((record_file, record), (bands_file, bands)):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def bands_of(record: Record) -> dict[Family, FamilyBand]:
    """Return the error band of each family that has rows.

    To each side it is twice the root mean square of their errors, times sqrt(1 + 1 / m) for m measurements, as for a
    prediction from m of them: rows of one measurement are not independent. A fitted row counts with its error when its
    measurement is left out of the fit. A row that the model was improved with in view counts twice, with its error
    before and with today's, because what was mended for one row is no proof that the next program comes out as well.
    Arithmetic does not count. Errors are logarithms of modelled time over published time, so that a band has the
    factors 1/f and f.
    """
    bands = {}
    for family, rows in _evidence(record).items():
        factor, largest = _factor(rows, record), max(abs(record.errors[row.id]) for row in rows)
        bands[family] = FamilyBand(round(1 / factor, 3), round(factor, 3), len(rows), round(largest, 3))
    counts = [float(error) for op in OPS for error in left_out(op, errors(op))]
    factor, largest = factor_of(counts, len(counts)), max(map(abs, counts))
    bands[Family.INDEXING] = FamilyBand(round(1 / factor, 3), round(factor, 3), len(counts), round(largest, 3))
    return bands


def held_bands(record: Record) -> dict[Family, tuple[int, int]]:
    """Return how many rows of each family are inside the band of its other measurements, and how many could be tested.

    A row is tested with its first error: that of the day when it was scored, or that of a fit without it.
    """
    held = {}
    for family, rows in _evidence(record).items():
        inside = []
        for row in rows:
            others = [other for other in rows if other.measurement != row.measurement]
            if others:
                inside.append(abs(math.log1p(_errors(row, record)[0])) <= math.log(_factor(others, record)))
        held[family] = sum(inside), len(inside)
    return held


def _evidence(record: Record) -> dict[Family, list[Row]]:
    """Return the rows behind each band that the record knows."""
    rows = [row for row in published().rows if row.id in record.errors and _errors(row, record)]
    evidence = {family: [row for row in rows if family in row.families] for family in Family}
    return {family: rows for family, rows in evidence.items() if rows}


def _errors(row: Row, record: Record) -> list[float]:
    """Return the errors with which a row counts, the one that is most like that of an unseen row first."""
    if row.kind is Kind.FITTED:
        return [record.left_out[row.id]] if row.id in record.left_out else []
    earlier = row.earlier_error
    return [record.errors[row.id]] if earlier is None else [earlier, record.errors[row.id]]


def _factor(rows: Sequence[Row], record: Record) -> float:
    return factor_of([error for row in rows for error in _errors(row, record)], len({row.measurement for row in rows}))


def factor_of(errors: Sequence[float], measurements: int) -> float:
    """Return the upper end of the band that signed relative errors of so many measurements give."""
    spread = math.sqrt(sum(math.log1p(error) ** 2 for error in errors) / len(errors))
    return math.exp(DEVIATIONS * spread * math.sqrt(1 + 1 / measurements))


def close_band_of_record(record: Record) -> CloseBand:
    """Return the shares of a tile between which the model cannot tell, as published outcomes and reports leave it."""
    return _close_band(published().verdicts, record.shares, record.errors)


def left_out_verdicts(verdicts: Iterable[ComparedVerdict], errors: Mapping[str, float]) -> tuple[ComparedVerdict, ...]:
    """Return the verdicts as they would be had the band between "fits" and "does not fit" not known the row itself."""
    verdicts = tuple(verdicts)
    shares = {verdict.row.id: verdict.share for verdict in verdicts}
    without = []
    for verdict in verdicts:
        band = _close_band((other.row for other in verdicts if other is not verdict), shares, errors)
        without.append(replace(verdict, verdict=band.verdict(verdict.share)))
    return tuple(without)


def _close_band(rows: Iterable[VerdictRow], shares: Mapping[str, float], errors: Mapping[str, float]) -> CloseBand:
    known = [row for row in rows if not row.doubtful]
    ran, failed = ([shares[row.id] for row in known if row.ran is outcome] for outcome in (True, False))
    return close_band_of(ran, failed, max(errors[row_id] for row_id in _FULLEST_TILES))


def close_band_of(ran: Iterable[float], failed: Iterable[float], overestimate: float) -> CloseBand:
    """Work out from published outcomes and memory reports between which shares of a tile the verdict stays open.

    `ran` and `failed` are the shares of a tile that the model gives to programs that ran on hardware, and to those that
    were out of memory; `overestimate` is the largest relative error by which it overfills a published report. Below a
    full tile the band reaches down to the least of the programs that failed. Above a full tile it is a margin, because
    refusing a program that would run is the worse mistake: it allows for an error as large as that of the worst report,
    and in any case includes the largest of the programs that ran. Both ends are rounded outwards to a tenth of a per
    cent. So no published program gets the wrong verdict, and the band grows where the model gets worse.
    """
    least, most = min(failed, default=math.inf), max(ran, default=1.0)
    low = 1.0 if least > 1.0 else math.floor(least * 1000) / 1000
    if low >= least:  # the lower end itself still fits, and a program that failed must not
        low = round(low - 0.001, 3)
    return CloseBand(low, math.ceil(max(1.0 + overestimate, most, 1.0) * 1000) / 1000)


# --- ratios of two rows of programs that differ in one thing: what is wrong with both figures alike cancels out in them


@dataclass(frozen=True)
class Ratio:
    """The second of two rows over the first: published, and the signed relative error of the modelled ratio."""

    curve: Curve
    rows: tuple[str, str]
    published: float
    error: float


def ratios(errors: Mapping[str, float]) -> tuple[Ratio, ...]:
    """Return the ratios of neighbours on all curves; `errors` are the signed relative errors of known rows, by id."""
    values = {row.id: row.value for row in published().rows}
    return tuple(
        Ratio(curve, (first, second), values[second] / values[first], (1 + errors[second]) / (1 + errors[first]) - 1)
        for curve in published().curves
        for first, second in pairwise(curve.rows)
        if first in errors and second in errors
    )


def ratio_errors(errors: Mapping[str, float]) -> dict[str, RatioErrors]:
    """Return the errors of all ratios, and of those by what changes; beside them those of the rows themselves."""
    found = ratios(errors)
    summaries = {}
    for change in (ALL, *dict.fromkeys(ratio.curve.change for ratio in found)):
        some = [ratio for ratio in found if change in (ALL, ratio.curve.change)]
        sizes = [abs(ratio.error) for ratio in some]
        alone = [abs(errors[row]) for row in dict.fromkeys(row for ratio in some for row in ratio.rows)]
        figures = median(sizes), max(sizes), median(alone), max(alone)
        summaries[change] = RatioErrors(len(some), *(round(figure, 3) for figure in figures))
    return summaries
