"""How far to trust the model, in five lines that follow from the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from ipu_model.predict.band import Family, FamilyBand
from ipu_model.predict.calibration import constant_facts, fitted
from ipu_model.validate.comparison import Compared, ComparedVerdict, Comparison, Outcome
from ipu_model.validate.rows import Kind


def trust(comparison: Comparison, bands: dict[Family, FamilyBand]) -> tuple[str, ...]:
    """Return five sentences, the blind scores first."""
    return (
        _blind(comparison.numbers),
        _predictions(comparison.numbers),
        _verdicts(comparison.verdicts),
        _fitted(comparison.numbers),
        _families(bands),
    )


def of_kind(compared: Iterable[Compared], kind: Kind) -> tuple[Compared, ...]:
    """Return the rows of one kind."""
    return tuple(each for each in compared if each.row.kind is kind)


def _blind(compared: Sequence[Compared]) -> str:
    rows = of_kind(compared, Kind.SCORED_BLIND)
    if not rows:
        return "None of these rows was scored blind."
    then = [abs(each.row.blind_error or 0.0) for each in rows]
    now = [abs(each.error) for each in rows]
    return (
        f"{_count(rows)} scored blind, before the model had seen them: the median error was {median(then):.1%} and the "
        f"largest {max(then):.1%}. Today they are {median(now):.1%} and {max(now):.1%}, but today's model was improved "
        "with these rows in view."
    )


def _predictions(compared: Sequence[Compared]) -> str:
    rows = of_kind(compared, Kind.PREDICTION)
    if not rows:
        return "None of these rows is a prediction."
    errors = [abs(each.error) for each in rows]
    worst = max(rows, key=lambda each: abs(each.error))
    return (
        f"{_count(rows)} predicted, without a constant chosen for them: the median error is {median(errors):.1%}, the "
        f"largest {worst.error:+.1%} ({worst.row.what}); {sum(each.as_wanted for each in rows)} are as near as wanted."
    )


def _verdicts(compared: Sequence[ComparedVerdict]) -> str:
    free = [each for each in compared if each.row.kind is not Kind.FITTED]
    if not free:
        return "None of these rows says whether a program ran."
    found = Counter(each.outcome for each in free)
    return (
        f"Of {len(free)} programs that are known to have run or to have been out of memory, the model is right about "
        f"{found[Outcome.RIGHT]}, wrong about {found[Outcome.WRONG]}, and cannot tell about {found[Outcome.CLOSE]}."
    )


def _fitted(compared: Sequence[Compared]) -> str:
    constants = sum(len(facts) for facts in constant_facts().values())
    return (
        f"{len(fitted())} of the model's {constants} constants are fitted, and {len(of_kind(compared, Kind.FITTED))} "
        "rows prove nothing because they depend on them; arithmetic on other rows is shown, but not counted."
    )


def _families(bands: dict[Family, FamilyBand]) -> str:
    found = "; ".join(f"{family} {band.low:.2f} to {band.high:.2f}" for family, band in bands.items())
    return (
        f"Error bands, as factors on modelled device time, by the published rows of each family: {found or 'none'}. "
        "Recurrent networks, overlapped transfers, several racks and whatever else has no row get a wide band, and "
        "`profile.notes` says why."
    )


def _count(rows: Sequence[Compared]) -> str:
    return "1 row was" if len(rows) == 1 else f"{len(rows)} rows were"
