"""The comparison as tables: for a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from ipu_model.predict.calibration import constant_facts, fitted
from ipu_model.validate.comparison import Compared, ComparedVerdict, Comparison
from ipu_model.validate.cuts import OtherCut
from ipu_model.validate.leave_one_out import LeftOut, Untested
from ipu_model.validate.record import bands_of, record_of, recorded
from ipu_model.validate.rows import Kind, published_rows
from ipu_model.validate.summary import of_kind, trust

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


def comparison_text(comparison: Comparison) -> str:
    """Return the summary and one line for each row."""
    lines = [_TITLE, "", *(fill(each, _PAGE, subsequent_indent="  ") for each in _trust(comparison))]
    for kind, (heading, _) in _TABLES.items():
        rows = of_kind(comparison.numbers, kind)
        if rows:
            earlier = f" {_EARLIER[kind]:>9}" if kind in _EARLIER else ""
            lines += ["", f"{heading:{_WIDTH}} {'published':>13} {'modelled':>13}{earlier} {'error':>8} {'wanted':>7}"]
            lines += [_line(each) for each in rows]
    if comparison.cuts:
        lines += ["", f"{_CUTS_HEADING:{_WIDTH}} {'published':>13} {'modelled':>13} {'error':>8}"]
        lines += [_cut_line(each) for each in comparison.cuts]
    if comparison.verdicts:
        lines += ["", f"{'Memory':{_WIDTH}} {'published':>13} {'modelled':>13} {'that day':>9} {'share':>8}"]
        lines += [_verdict_line(each) for each in comparison.verdicts]
    return "\n".join([*lines, "", "Sources:", *(f"  {source}" for source in _sources(comparison))])


def _trust(comparison: Comparison) -> tuple[str, ...]:
    errors = {**recorded().errors, **record_of(comparison).errors}
    known = {row.id for row in published_rows()} <= set(errors)
    return trust(comparison, bands_of(errors) if known else {})


def _line(each: Compared) -> str:
    row = each.row
    what = f"{row.what} [{row.unit}]"
    earlier = f" {_signed(row.earlier_error):>9}" if row.kind in _EARLIER else ""
    outside = "" if each.as_wanted else " outside"
    return (
        f"{what:{_WIDTH}} {_number(row.value):>13} {_number(each.modelled):>13}{earlier} {each.error:>+8.1%} "
        f"{row.wanted:>7.0%}{outside}"
    )


def _cut_line(each: OtherCut) -> str:
    what = f"{each.row.what}: {each.cut}"
    return f"{what:{_WIDTH}} {_number(each.row.value):>13} {_number(each.modelled):>13} {each.error:>+8.1%}"


def _verdict_line(each: ComparedVerdict) -> str:
    blind = "" if each.row.blind is None else f"{each.row.blind:.0%}"
    return (
        f"{each.row.what:{_WIDTH}} {each.row.outcome:>13} {each.verdict.value:>17} {blind:>5} {each.share:>8.1%} "
        f"{each.outcome} ({each.row.kind})"
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as a page of its own."""
    lines = [
        f"# {_TITLE}", "",
        "`make docs` writes this page from `python -m ipu_model validate`, and a test fails when an error grows. "
        "[model.md](model.md) explains how to read it.",
        "", "## How far to trust the model", "", *(f"* {line}" for line in _trust(comparison)),
    ]  # fmt: skip
    for kind, (heading, sentence) in _TABLES.items():
        rows = of_kind(comparison.numbers, kind)
        if rows:
            lines += ["", f"## {heading}", "", sentence, "", *_table(kind, rows)]
    if comparison.cuts:
        lines += ["", f"## {_CUTS_HEADING}", "", _CUTS, "", *_cut_table(comparison.cuts)]
    lines += ["", "## Memory: what ran and what did not", "", _MEMORY, "", *_verdict_table(comparison.verdicts)]
    lines += [
        "", f"{len(fitted())} constants are fitted: {', '.join(f'`{name}`' for name in fitted())}. "
        "`python -m ipu_model validate --constants` lists all constants with their sources, and `--leave-one-out` "
        "refits them without each measurement.",
        "", "Sources:", "", *(f"* {source}" for source in _sources(comparison)), "",
    ]  # fmt: skip
    return "\n".join(lines)


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


def _table(kind: Kind, rows: Sequence[Compared]) -> list[str]:
    has_earlier = kind in _EARLIER
    lines = [
        f"| row | unit | published | modelled |{f' error {_EARLIER[kind]} |' if has_earlier else ''} error | wanted |",
        f"|---|---|---:|---:|{'---:|' if has_earlier else ''}---:|---:|",
    ]
    for each in rows:
        row = each.row
        earlier = f" {_signed(row.earlier_error)} |" if has_earlier else ""
        lines.append(
            f"| {row.what} | {row.unit} | {_number(row.value)} | {_number(each.modelled)} |{earlier} "
            f"{each.error:+.1%} | {row.wanted:.0%} |"
        )
    return lines


def _cut_table(cuts: Iterable[OtherCut]) -> list[str]:
    return [
        "| row | cut | unit | published | modelled | error |",
        "|---|---|---|---:|---:|---:|",
        *(
            f"| {each.row.what} | {each.cut} | {each.row.unit} | {_number(each.row.value)} | "
            f"{_number(each.modelled)} | {each.error:+.1%} |"
            for each in cuts
        ),
    ]


def _verdict_table(rows: Iterable[ComparedVerdict]) -> list[str]:
    lines = ["| program | published | modelled | share | that day | | |", "|---|---|---|---:|---:|---|---|"]
    for each in rows:
        that_day = "" if each.row.blind is None else f"{each.row.blind:.0%}"
        lines.append(
            f"| {each.row.what} | {each.row.outcome} | {each.verdict} | {each.share:.1%} | {that_day} | "
            f"{each.outcome} | {each.row.kind} |"
        )
    return lines


def _sources(comparison: Comparison) -> list[str]:
    numbers, verdicts = comparison.numbers, comparison.verdicts
    return sorted({each.row.source for each in numbers} | {each.row.source for each in verdicts})


def constants_text() -> str:
    """Return every calibrated constant with its value, unit, confidence and source."""
    lines = []
    for section, facts in constant_facts().items():
        for name, fact in facts.items():
            lines += [f"{section}.{name} = {fact.value:g} {fact.unit} ({fact.confidence})", f"    {fact.source}"]
    return "\n".join(lines)


def left_out_text(tested: Iterable[LeftOut], untested: Iterable[Untested]) -> str:
    """Return one line for each fitted row: its error with all rows and with its measurement left out, or why not."""
    lines = [
        "Leave one out: constants refitted to the other measurements",
        "",
        f"{'row':{_WIDTH}} {'error':>8} {'left out':>9}",
    ]
    lines += [f"{each.row.what:{_WIDTH}} {each.with_all:>+8.1%} {each.without:>+9.1%}" for each in tested]
    lines += ["", "Rows that cannot be left out, because no other measurement determines their constants:"]
    return "\n".join([*lines, *(f"  {each.row.what} ({', '.join(each.constants)})" for each in untested)])


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
