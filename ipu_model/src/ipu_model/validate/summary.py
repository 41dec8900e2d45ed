"""How far to trust the model, in five statements that follow from comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from ipu_model.predict.band import Family, FamilyBand
from ipu_model.predict.calibration import fitted
from ipu_model.validate.comparison import Compared, ComparedVerdict, Comparison, Outcome
from ipu_model.validate.record import left_out_verdicts, recorded
from ipu_model.validate.rows import (
    BlindComparison,
    BlindVerdicts,
    Kind,
    blind_comparisons,
    blind_verdicts,
    published_verdicts,
)


def trust(comparison: Comparison, bands: Mapping[Family, FamilyBand]) -> tuple[str, ...]:
    """Return five statements, the blind scores first."""
    return (
        _never_seen(blind_comparisons()),
        _released(comparison.numbers),
        _predictions(comparison.numbers),
        _verdicts(comparison.verdicts, blind_verdicts()),
        _families(bands),
    )


def _never_seen(comparisons: Iterable[BlindComparison]) -> str:
    def score(each: BlindComparison) -> str:
        largest = "" if each.largest is None else f", {each.largest:.0%} at worst"
        return f"{each.median:.1%} at the median{largest}, on {each.rows} {each.what}"

    scores = "; and by ".join(map(score, comparisons))
    return f"Scored blind, on rows that it had never seen, the model was off by {scores}."


def of_kind(compared: Iterable[Compared], kind: Kind) -> tuple[Compared, ...]:
    """Return the rows of one kind."""
    return tuple(each for each in compared if each.row.kind is kind)


def _released(compared: Sequence[Compared]) -> str:
    rows = of_kind(compared, Kind.SCORED_BLIND)
    if not rows:
        return "None of these rows was scored blind."
    then = [abs(each.row.earlier_error or 0.0) for each in rows]
    now = [abs(each.error) for each in rows]
    return (
        f"{_count(rows)} released since then. On the day of scoring, the median error was {median(then):.1%} and "
        f"the largest {max(then):.1%}. Today, they are {median(now):.1%} and {max(now):.1%}, but today's model has "
        "been improved with these rows in view."
    )


def _predictions(compared: Sequence[Compared]) -> str:
    rows = of_kind(compared, Kind.PREDICTION)
    if not rows:
        return "None of these rows is a prediction."
    errors = [abs(each.error) for each in rows]
    worst = max(rows, key=lambda each: abs(each.error))
    return (
        f"{_count(rows)} predicted, and no constant was chosen for them. The median error is "
        f"{median(errors):.1%} and the largest {worst.error:+.1%} ({worst.row.what}); "
        f"{sum(each.as_wanted for each in rows)} are within the wanted error. "
        f"{len(of_kind(compared, Kind.FITTED))} rows prove nothing, because they depend on one of {len(fitted())} "
        "fitted constants."
    )


def _verdicts(compared: Sequence[ComparedVerdict], blind: Iterable[BlindVerdicts]) -> str:
    def score(each: BlindVerdicts) -> str:
        programs = each.right + each.close + each.wrong
        return f"of {programs} {each.what}: {each.right} right, {each.close} too close to call, {each.wrong} wrong"

    that_day = f"The verdicts on memory were also scored blind, {'; '.join(map(score, blind))}."
    free = [each for each in compared if each.row.kind is not Kind.FITTED]
    if not free:
        return that_day
    today = f"{that_day} Today's verdicts on the {len(free)} whose outcome is known here: {_outcomes(free)}."
    if len(compared) < len(published_verdicts()):
        return today  # what is too close without one of them follows from all the others
    without = left_out_verdicts(compared, recorded().errors)
    return (
        f"{today} These programs themselves determine what is too close to call. If each of all {len(without)} is left "
        f"out in turn, the verdicts are: {_outcomes(without)}."
    )


def _outcomes(compared: Iterable[ComparedVerdict]) -> str:
    found = Counter(each.outcome for each in compared)
    return f"{found[Outcome.RIGHT]} right, {found[Outcome.CLOSE]} too close to call, {found[Outcome.WRONG]} wrong"


def _families(bands: Mapping[Family, FamilyBand]) -> str:
    found = "; ".join(f"{family} {band.low:.2f} to {band.high:.2f}" for family, band in bands.items())
    return (
        "Error bands are factors on modelled device time, computed from the published rows of each family: "
        f"{found or 'none'}. Programs with recurrent networks, overlapped transfers, several racks or anything else "
        "that no row covers get a wide band, and `profile.notes` says why."
    )


def _count(rows: Sequence[Compared]) -> str:
    return "1 row was" if len(rows) == 1 else f"{len(rows)} rows were"
