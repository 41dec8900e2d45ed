"""The comparison as tables, for a terminal and as a page, and how far to trust the model, which follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from textwrap import fill

from ipu_model.predict.band import Family, FamilyBand
from ipu_model.predict.calibration import constant_facts, fitted
from published.comparison import Compared, ComparedVerdict, Comparison, Outcome
from published.leave_one_out import LeftOut, Untested
from published.message_passing import message_passing_lines
from published.record import bands_of, left_out_verdicts, record_of, recorded
from published.rows import Kind, published

_PAGE, _WIDTH = 120, 96
_TITLE = "Published on hardware against the IPU Model"

# Kind -> heading and sentence of its table, in the order of the tables.
_TABLES = {
    Kind.SCORED_BLIND: (
        "Scored blind",
        "The model had never seen these figures on the day of the first error. Today's model has been improved with "
        "them in view, but no constant was fitted to them.",
    ),
    Kind.PREDICTION: (
        "Predictions",
        "No constant was chosen for these figures. If the formulas were improved with a row in view, *error before* is "
        "its error before the improvement.",
    ),
    Kind.FITTED: (
        "Fitted",
        "These figures depend on a constant that was chosen to match them, or that a published figure influenced. The "
        "rows show how well a few constants match many figures, and prove nothing else.",
    ),
    Kind.ARITHMETIC: (
        "Arithmetic",
        "These are sums, ratios, differences and repeats of other rows, and no count includes them.",
    ),
}
# How the tables call the error before the model was improved with the row in view.
_EARLIER = {Kind.SCORED_BLIND: "that day", Kind.PREDICTION: "before"}
_CUTS_HEADING = "Cuts that are not published"
_CUTS = (
    "The sources of these rows do not say which layers run on which IPU, and the tables above assume an even cut. This "
    "table shows the modelled figures of the same programs with other cuts, and therefore how much of an error the cut "
    "could explain."
)
_MEMORY = (
    "The share is the memory that the fullest tile needs, relative to the memory that it has. *That day* is the share "
    "when the row was scored blind."
)


# --- for a terminal


def comparison_text(comparison: Comparison) -> str:
    lines = [_TITLE, "", *(fill(line, _PAGE, subsequent_indent="  ") for line in _trust(comparison))]
    for kind, (heading, _) in _TABLES.items():
        numbers = _of_kind(comparison.numbers, kind)
        if numbers:
            lines += ["", _line(heading, "published", "modelled", *_earlier(kind), f"{'error':>8} {'wanted':>7}")]
        for number in numbers:
            outside = "" if number.as_wanted else " outside"
            error = f"{number.error:>+8.1%} {number.row.wanted:>7.0%}{outside}"
            lines.append(_line(f"{number.row.what} [{number.row.unit}]", *_figures(number), error))
    if comparison.cuts:
        lines += ["", _line(_CUTS_HEADING, "published", "modelled", f"{'error':>8}")]
        for cut in comparison.cuts:
            values = _number(cut.row.value), _number(cut.modelled)
            lines.append(_line(f"{cut.row.what}: {cut.cut}", *values, f"{cut.error:>+8.1%}"))
    if comparison.verdicts:
        lines += ["", _line("Memory", "published", "modelled", "that day", f"{'share':>8}")]
        for verdict in comparison.verdicts:
            row = verdict.row
            lines.append(
                f"{row.what:{_WIDTH}} {row.outcome:>13} {verdict.verdict.value:>17} {_that_day(verdict):>5} "
                f"{verdict.share:>8.1%} {verdict.outcome} ({row.kind})"
            )
    return "\n".join([*lines, "", "Sources:", *(f"  {source}" for source in _sources(comparison))])


def _line(what: str, *cells: str) -> str:
    """Align `what`, published and modelled figure, the error before if there is one, and the rest as it is."""
    *figures, rest = cells
    aligned = (f"{cell:>{width}}" for cell, width in zip(figures, (13, 13, 9)))
    return " ".join((f"{what:{_WIDTH}}", *aligned, rest))


def constants_text() -> str:
    lines = []
    for section, facts in constant_facts().items():
        for name, fact in facts.items():
            lines += [f"{section}.{name} = {fact.value:g} {fact.unit} ({fact.confidence})", f"    {fact.source}"]
    return "\n".join(lines)


def left_out_text(tested: Iterable[LeftOut], untested: Iterable[Untested]) -> str:
    """Return one line for each fitted row: its error with all rows and with its measurement left out, or why not."""
    lines = ["Leave one out: constants refitted to the other measurements", ""]
    lines.append(f"{'row':{_WIDTH}} {'error':>8} {'left out':>9}")
    lines += [f"{row.row.what:{_WIDTH}} {row.with_all:>+8.1%} {row.without:>+9.1%}" for row in tested]
    lines += ["", "Rows that cannot be left out, because no other measurement determines their constants:"]
    return "\n".join([*lines, *(f"  {row.row.what} ({', '.join(row.constants)})" for row in untested)])


# --- as a page


def comparison_markdown(comparison: Comparison) -> str:
    lines = [f"# {_TITLE}", ""]
    lines += [
        "`make docs` writes this page from `python -m ipu_model validate`, and a test fails when an error grows. "
        "[model.md](model.md) explains how to read it."
    ]
    lines += ["", "## How far to trust the model", "", *(f"* {line}" for line in _trust(comparison))]
    for kind, (heading, sentence) in _TABLES.items():
        numbers = _of_kind(comparison.numbers, kind)
        if numbers:
            earlier = [f"error {name}" for name in _earlier(kind)]
            lines += ["", f"## {heading}", "", sentence, ""]
            lines.append(_cells("row", "unit", "published", "modelled", *earlier, "error", "wanted"))
            lines.append("|---|---|" + "---:|" * (len(earlier) + 4))
        for number in numbers:
            errors = f"{number.error:+.1%}", f"{number.row.wanted:.0%}"
            lines.append(_cells(number.row.what, number.row.unit, *_figures(number), *errors))
    if comparison.cuts:
        lines += ["", f"## {_CUTS_HEADING}", "", _CUTS, ""]
        lines += ["| row | cut | unit | published | modelled | error |", "|---|---|---|---:|---:|---:|"]
        for cut in comparison.cuts:
            values = _number(cut.row.value), _number(cut.modelled), f"{cut.error:+.1%}"
            lines.append(_cells(cut.row.what, cut.cut, cut.row.unit, *values))
    lines += ["", "## Single ops", "", *(f"* {line}" for line in message_passing_lines())]
    lines += ["", "## Memory: what ran and what did not", "", _MEMORY, ""]
    lines += ["| program | published | modelled | share | that day | | |", "|---|---|---|---:|---:|---|---|"]
    for verdict in comparison.verdicts:
        shares = f"{verdict.share:.1%}", _that_day(verdict)
        row = verdict.row
        lines.append(_cells(row.what, row.outcome, str(verdict.verdict), *shares, str(verdict.outcome), str(row.kind)))
    lines += [
        "",
        f"{len(fitted())} constants are fitted: {', '.join(f'`{name}`' for name in fitted())}. "
        "`python -m ipu_model validate --constants` lists all constants with their sources, and `--leave-one-out` "
        "refits them without each measurement.",
    ]
    return "\n".join([*lines, "", "Sources:", "", *(f"* {source}" for source in _sources(comparison)), ""])


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# --- for both


def _earlier(kind: Kind) -> list[str]:
    return [_EARLIER[kind]] if kind in _EARLIER else []


def _figures(number: Compared) -> list[str]:
    """Return the published and the modelled figure, and the error before in tables that have it."""
    error = number.row.earlier_error
    earlier = ["" if error is None else f"{error:+.1%}" for _ in _earlier(number.row.kind)]
    return [_number(number.row.value), _number(number.modelled), *earlier]


def _of_kind(numbers: Iterable[Compared], kind: Kind) -> list[Compared]:
    return [number for number in numbers if number.row.kind is kind]


def _sources(comparison: Comparison) -> list[str]:
    sources = {number.row.source for number in comparison.numbers}
    return sorted(sources | {verdict.row.source for verdict in comparison.verdicts})


def _that_day(verdict: ComparedVerdict) -> str:
    return "" if verdict.row.blind is None else f"{verdict.row.blind:.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# --- how far to trust the model


def _trust(comparison: Comparison) -> tuple[str, ...]:
    errors = {**recorded().errors, **record_of(comparison).errors}
    known = {row.id for row in published().rows} <= set(errors)
    return trust(comparison, bands_of(errors) if known else {})


def trust(comparison: Comparison, bands: Mapping[Family, FamilyBand]) -> tuple[str, ...]:
    """Return five statements on how far to trust the model, the blind scores first."""
    scores = []
    for score in published().blind:
        largest = "" if score.largest is None else f", {score.largest:.0%} at worst"
        scores.append(f"{score.median:.1%} at the median{largest}, on {score.rows} {score.what}")
    return (
        f"Scored blind, on rows that it had never seen, the model was off by {'; and by '.join(scores)}.",
        _released(_of_kind(comparison.numbers, Kind.SCORED_BLIND)),
        _predictions(comparison.numbers),
        _verdicts(comparison.verdicts),
        "Error bands are factors on modelled device time, computed from the published rows of each family: "
        f"{'; '.join(f'{family} {band.low:.2f} to {band.high:.2f}' for family, band in bands.items()) or 'none'}. "
        "Programs with recurrent networks, overlapped transfers, several racks or anything else that no row covers get "
        "a wide band, and `profile.notes` says why.",
    )


def _released(numbers: Sequence[Compared]) -> str:
    if not numbers:
        return "None of these rows was scored blind."
    then = [abs(number.row.earlier_error or 0.0) for number in numbers]
    now = [abs(number.error) for number in numbers]
    return (
        f"{_count(numbers)} released since then. On the day of scoring, the median error was {median(then):.1%} and "
        f"the largest {max(then):.1%}. Today, they are {median(now):.1%} and {max(now):.1%}, but today's model has "
        "been improved with these rows in view."
    )


def _predictions(numbers: Sequence[Compared]) -> str:
    predictions = _of_kind(numbers, Kind.PREDICTION)
    if not predictions:
        return "None of these rows is a prediction."
    worst = max(predictions, key=lambda number: abs(number.error))
    return (
        f"{_count(predictions)} predicted, and no constant was chosen for them. The median error is "
        f"{median(abs(number.error) for number in predictions):.1%} and the largest {worst.error:+.1%} "
        f"({worst.row.what}); {sum(number.as_wanted for number in predictions)} are within the wanted error. "
        f"{len(_of_kind(numbers, Kind.FITTED))} rows prove nothing, because they depend on one of {len(fitted())} "
        "fitted constants."
    )


def _verdicts(verdicts: Sequence[ComparedVerdict]) -> str:
    scores = "; ".join(
        f"of {score.right + score.close + score.wrong} {score.what}: {score.right} right, {score.close} too close to "
        f"call, {score.wrong} wrong"
        for score in published().blind_verdicts
    )
    that_day = f"The verdicts on memory were also scored blind, {scores}."
    free = [verdict for verdict in verdicts if verdict.row.kind is not Kind.FITTED]
    if not free:
        return that_day
    today = f"{that_day} Today's verdicts on the {len(free)} whose outcome is known here: {_outcomes(free)}."
    if len(verdicts) < len(published().verdicts):
        return today  # what is too close without one of them follows from all the others
    without = left_out_verdicts(verdicts, recorded().errors)
    return (
        f"{today} These programs themselves determine what is too close to call. If each of all {len(without)} is left "
        f"out in turn, the verdicts are: {_outcomes(without)}."
    )


def _outcomes(verdicts: Iterable[ComparedVerdict]) -> str:
    count = Counter(verdict.outcome for verdict in verdicts)
    return f"{count[Outcome.RIGHT]} right, {count[Outcome.CLOSE]} too close to call, {count[Outcome.WRONG]} wrong"


def _count(numbers: Sequence[Compared]) -> str:
    return "1 row was" if len(numbers) == 1 else f"{len(numbers)} rows were"
