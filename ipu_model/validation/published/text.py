"""The comparison as tables, for a terminal and as a page, and how far to trust the model, which follows from it.

`validation.md.jinja` has the words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from textwrap import fill

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ipu_model.predict.calibration import constant_facts, fitted
from published.comparison import Compared, ComparedVerdict, Comparison, Outcome, recorded
from published.leave_one_out import LeftOut, Untested
from published.ratios import ALL, ratio_errors, ratios
from published.record import bands_of, held_bands, left_out_verdicts
from published.rows import BlindComparison, BlindVerdicts, Kind, published

_PAGE, _WIDTH = "validation.md.jinja", 120
_SCORED = "Scored blind"
# The tables of rows, in their order; rows that were ever scored blind stand in the first.
_KINDS = {_SCORED: None, "Predictions": Kind.PREDICTION, "Fitted": Kind.FITTED, "Arithmetic": Kind.ARITHMETIC}


@dataclass(frozen=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]

    @property
    def are_figures(self) -> list[bool]:
        """Whether each column has figures, which are aligned at their ends."""
        cells = ([cell for cell in column if cell] for column in zip(*self.lines))
        return [all(cell[0] in "+-0123456789" for cell in column) for column in cells]

    def text(self) -> str:
        table = [self.columns, *self.lines]
        widths = [max(map(len, column)) for column in zip(*table)]
        signs = [">" if figures else "<" for figures in self.are_figures]
        lines = ("  ".join(f"{c:{s}{w}}" for c, s, w in zip(cells, signs, widths)).rstrip() for cells in table)
        return "\n".join(lines)

    def markdown(self) -> str:
        marks = tuple("---:" if figures else "---" for figures in self.are_figures)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.columns, marks, *self.lines))


def comparison_text(comparison: Comparison) -> str:
    lines = _page(comparison, Table.text).splitlines()
    return "\n".join(fill(line, _WIDTH, subsequent_indent="  ") if line.startswith("* ") else line for line in lines)


def comparison_markdown(comparison: Comparison) -> str:
    return _page(comparison, Table.markdown)


def constants_text() -> str:
    lines = []
    for section, facts in constant_facts().items():
        for name, fact in facts.items():
            lines += [f"{section}.{name} = {fact.value:g} {fact.unit} ({fact.confidence})", f"    {fact.source}"]
    return "\n".join(lines)


def left_out_text(tested: Iterable[LeftOut], untested: Iterable[Untested]) -> str:
    """Return one line for each fitted row: its error with all rows and with its measurement left out, or why not."""
    lines = [(row.row.what, f"{row.with_all:+.1%}", f"{row.without:+.1%}") for row in tested]
    table = Table("Leave one out: constants refitted to the other measurements", ("row", "error", "left out"), lines)
    text = [
        table.heading,
        "",
        table.text(),
        "",
        "Rows that no other measurement determines, so they cannot be left out:",
    ]
    return "\n".join([*text, *(f"  {row.row.what} ({', '.join(row.constants)})" for row in untested)])


def _page(comparison: Comparison, drawn: Callable[[Table], str]) -> str:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters |= {"drawn": drawn, "percent": lambda share: f"{share:.1%}"}
    errors = {**recorded().errors, **{number.row.id: number.error for number in comparison.numbers}}
    tables = [_rows(heading, comparison.numbers) for heading in _KINDS]
    tables += [_ratios(errors), _choices(comparison.choices), _memory(comparison.verdicts)]
    page = environment.get_template(_PAGE).render(
        today=_summary([number for number in comparison.numbers if number.row.blind is not None]),
        predicted=_summary([number for number in comparison.numbers if number.row.kind is Kind.PREDICTION]),
        fitted_rows=sum(number.row.kind is Kind.FITTED for number in comparison.numbers),
        days=[(day, list(map(_score, of_day))) for day, of_day in groupby(published().blind, lambda score: score.day)],
        memory_days=[
            (day, list(map(_verdict_score, of_day)))
            for day, of_day in groupby(published().blind_verdicts, lambda score: score.day)
        ],
        verdicts=_verdicts(comparison.verdicts),
        ratios=ratio_errors(errors)[ALL],
        bands=_bands(errors),
        tables=[table for table in tables if table.lines],
        fitted=fitted(),
        sources=sorted({n.row.source for n in comparison.numbers} | {v.row.source for v in comparison.verdicts}),
    )
    return page.rstrip("\n") + "\n"


# --- tables


def _rows(heading: str, numbers: Iterable[Compared]) -> Table:
    earlier = {_SCORED: ("error that day", "day"), "Predictions": ("error before",)}.get(heading, ())
    later = ("left out",) if heading == _SCORED else ()
    lines = []
    for number in numbers:
        row, left_out = number.row, recorded().left_out.get(number.row.id)
        if (None if row.blind is not None else row.kind) is not _KINDS[heading]:
            continue
        before = "" if row.earlier_error is None else f"{row.earlier_error:+.1%}"
        without = "" if left_out is None else f"{left_out:+.1%}"
        wanted = f"{row.wanted:.0%}{'' if number.as_wanted else ', outside'}"
        figures = row.what, row.unit, _number(row.value), _number(number.modelled)
        errors = *(before, row.day)[: len(earlier)], f"{number.error:+.1%}", *(without,)[: len(later)]
        lines.append((*figures, *errors, wanted))
    return Table(heading, ("row", "unit", "published", "modelled", *earlier, "error", *later, "wanted"), lines)


def _ratios(errors: Mapping[str, float]) -> Table:
    lines = [
        (ratio.curve.what, ratio.curve.change, _number(ratio.published), f"{ratio.error:+.1%}")
        for ratio in ratios(errors)
    ]
    return Table("Ratios", ("programs", "what differs", "published", "error"), lines)


def _choices(choices: Iterable[Compared]) -> Table:
    lines = []
    for each in choices:
        figures = _number(each.row.value), _number(each.modelled), f"{each.error:+.1%}"
        lines.append((each.row.what, each.choice, each.row.unit, *figures))
    columns = ("row", "choice", "unit", "published", "modelled", "error")
    return Table("Choices that are not published", columns, lines)


def _memory(verdicts: Iterable[ComparedVerdict]) -> Table:
    lines = []
    for verdict in verdicts:
        row, that_day = verdict.row, "" if verdict.row.blind is None else f"{verdict.row.blind:.0%}"
        shares = f"{verdict.share:.1%}", that_day
        lines.append((row.what, row.outcome, str(verdict.verdict), *shares, str(verdict.outcome), str(row.kind)))
    columns = ("program", "published", "modelled", "share", "that day", "verdict", "kind")
    return Table("Memory: what ran and what did not", columns, lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# --- how far to trust the model


@dataclass(frozen=True)
class Summary:
    """How far off some rows are; of those that a constant was fitted on, as if it had been fitted without them."""

    rows: int
    median: float
    worst: Compared
    worst_error: float
    as_wanted: int
    left_out: int


def _summary(numbers: Sequence[Compared]) -> Summary | None:
    if not numbers:
        return None
    left_out = recorded().left_out
    errors = [left_out.get(number.row.id, number.error) for number in numbers]
    worst_error, worst = max(zip(errors, numbers), key=lambda pair: abs(pair[0]))
    fitted_rows = sum(number.row.id in left_out for number in numbers)
    wanted = sum(number.as_wanted for number in numbers)
    return Summary(len(numbers), median(map(abs, errors)), worst, worst_error, wanted, fitted_rows)


def _score(score: BlindComparison) -> str:
    largest = "" if score.largest is None else f", {score.largest:.0%} at worst"
    rows = "" if score.rows is None else f"{score.rows} "
    return f"{score.median:.1%} at the median{largest}, on {rows}{score.what}"


def _verdict_score(score: BlindVerdicts) -> str:
    every = score.right + score.close + score.wrong
    return f"of {every} {score.what}, {score.right} right, {score.close} too close to call, {score.wrong} wrong"


def _verdicts(verdicts: Sequence[ComparedVerdict]) -> list[str]:
    """Return how many verdicts are free of fits, their outcomes, and those of all verdicts when each is left out."""
    free = [verdict for verdict in verdicts if verdict.row.kind is not Kind.FITTED]
    lines = [str(len(free)), _outcomes(free)]
    if len(verdicts) == len(published().verdicts):  # without one, what is too close follows from all the others
        lines += [str(len(verdicts)), _outcomes(left_out_verdicts(verdicts, recorded().errors))]
    return lines


def _outcomes(verdicts: Iterable[ComparedVerdict]) -> str:
    count = Counter(verdict.outcome for verdict in verdicts)
    return f"{count[Outcome.RIGHT]} right, {count[Outcome.CLOSE]} too close to call, {count[Outcome.WRONG]} wrong"


def _bands(errors: Mapping[str, float]) -> list[str]:
    record = msgspec.structs.replace(recorded(), errors=errors)
    held = held_bands(record)
    return [
        f"{family} {band.low:.2f} to {band.high:.2f} ({held[family][0]} of {held[family][1]})"
        for family, band in bands_of(record).items()
    ]
