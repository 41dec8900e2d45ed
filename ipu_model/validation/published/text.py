"""The comparison as tables, for a terminal and as a page whose words `validation.md.jinja` has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import fill

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ipu_model.predict.calibration import constant_facts
from published.comparison import Compared, ComparedVerdict, Comparison, Outcome, recorded
from published.leave_one_out import LeftOut
from published.message_passing import message_passing_lines
from published.record import ALL, bands_of, held_bands, left_out_verdicts, ratio_errors, ratios
from published.rows import Kind, published

_PAGE, _WIDTH = "validation.md.jinja", 120
_SCORED = "Scored blind"
# The tables of rows, in their order; rows that were ever scored blind stand in the first.
_KINDS = {_SCORED: None, "Predictions": Kind.PREDICTION, "Fitted": Kind.FITTED, "Arithmetic": Kind.ARITHMETIC}


@dataclass(frozen=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]

    def markdown(self, *, aligned: bool = False) -> str:
        columns = [[cell for cell in column if cell] for column in zip(*self.lines)]
        figures = [all(cell[0] in "+-0123456789" for cell in column) for column in columns]
        marks = tuple("---:" if each else "---" for each in figures)
        table = [self.columns, marks, *self.lines]
        widths = [max(map(len, column)) * aligned for column in zip(*table)]
        formats = [f"{'>' if each else '<'}{width}" for each, width in zip(figures, widths)]
        return "\n".join(f"| {' | '.join(map(format, cells, formats))} |" for cells in table)


def comparison_text(comparison: Comparison) -> str:
    lines = comparison_markdown(comparison, aligned=True).splitlines()
    return "\n".join(fill(line, _WIDTH, subsequent_indent="  ") if line.startswith("* ") else line for line in lines)


def fitted() -> tuple[str, ...]:
    """Return "section.name" of the constants that were fitted to published rows."""
    named = {f"{section}.{name}": fact for section, facts in constant_facts().items() for name, fact in facts.items()}
    return tuple(name for name, fact in named.items() if fact.confidence == "fitted")


def constants_text() -> str:
    lines = []
    for section, facts in constant_facts().items():
        for name, fact in facts.items():
            lines += [f"{section}.{name} = {fact.value:g} {fact.unit} ({fact.confidence})", f"    {fact.source}"]
    return "\n".join(lines)


def left_out_text(rows: Iterable[LeftOut]) -> str:
    """Return one line for each fitted row: its error with all rows and with its measurement left out, or why not."""
    lines = [
        (row.row.what, f"{row.with_all:+.1%}", f"{row.without:+.1%}" if not row.lacking else ", ".join(row.lacking))
        for row in rows
    ]
    columns = "row", "error", "with the constants refitted to other measurements, or those that need this one"
    return Table("Leave one out", columns, lines).markdown(aligned=True)


def comparison_markdown(comparison: Comparison, *, aligned: bool = False) -> str:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters |= {"drawn": partial(Table.markdown, aligned=aligned), "percent": lambda share: f"{share:.1%}"}
    errors = {**recorded().errors, **{number.row.id: number.error for number in comparison.numbers}}
    tables = [_rows(heading, comparison.numbers) for heading in _KINDS]
    tables += [_ratios(errors), _choices(comparison.choices), _memory(comparison.verdicts)]
    page = environment.get_template(_PAGE).render(
        today=_summary([number for number in comparison.numbers if number.row.blind is not None]),
        predicted=_summary([number for number in comparison.numbers if number.row.kind is Kind.PREDICTION]),
        fitted_rows=sum(number.row.kind is Kind.FITTED for number in comparison.numbers),
        days=published().blind,
        verdicts=_verdicts(comparison.verdicts),
        ratios=ratio_errors(errors)[ALL],
        bands=_bands(errors),
        operations=message_passing_lines() if len(comparison.numbers) == len(published().rows) else (),
        tables=[table for table in tables if table.lines],
        fitted=fitted(),
        sources=sorted({n.row.source for n in comparison.numbers} | {v.row.source for v in comparison.verdicts}),
    )
    return page.rstrip("\n") + "\n"


# --- tables


def _rows(heading: str, numbers: Iterable[Compared]) -> Table:
    lines = []
    for number in numbers:
        row, left_out = number.row, recorded().left_out.get(number.row.id)
        if (None if row.blind is not None else row.kind) is _KINDS[heading]:
            errors = (
                "" if row.earlier_error is None else f"{row.earlier_error:+.1%}",
                row.day,
                f"{number.error:+.1%}",
                "" if left_out is None else f"{left_out:+.1%}",
                f"{row.wanted:.0%}{'' if number.as_wanted else ', outside'}",
            )
            lines.append((row.what, row.unit, _number(row.value), _number(number.modelled), *errors))
    columns = ("row", "unit", "published", "modelled", "error before", "day", "error", "left out", "wanted")
    kept = [place for place, cells in enumerate(zip(*lines)) if any(cells)]
    return Table(heading, tuple(columns[place] for place in kept), [tuple(line[p] for p in kept) for line in lines])


def _ratios(errors: Mapping[str, float]) -> Table:
    lines = [(r.curve.what, r.curve.change, _number(r.published), f"{r.error:+.1%}") for r in ratios(errors)]
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
        lines.append((row.what, row.outcome, verdict.verdict.value, *shares, verdict.outcome.value, row.kind.value))
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
    held = {family: f" ({inside} of {tested})" for family, (inside, tested) in held_bands(record).items() if tested}
    bands = bands_of(record).items()
    return [f"{family} {band.low:.2f} to {band.high:.2f}{held.get(family, '')}" for family, band in bands]
